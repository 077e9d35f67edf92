//! The stand-in for `tls` in a build without it: there are no keys, and all connections are plain.

use std::io;

use super::identity::{Identity, KeyRole};
use super::io::{Interest, Party};
use crate::error::{Error, Result};

fn missing() -> Error {
    Error::unsupported(
        "this program is built without the feature `tls`, which keys need: build it with that, or use a pool without keys",
    )
}

/// Keys: there are none.
pub(super) enum Bundle {}

impl Bundle {
    pub(super) fn of(_: &str) -> Result<Self> {
        Err(missing())
    }

    pub(super) fn draw(_: u32) -> Result<String> {
        Err(missing())
    }

    pub(super) fn issue(&self, _: KeyRole, _: u32) -> Result<String> {
        match *self {}
    }

    pub(super) fn identity(&self) -> Identity {
        match *self {}
    }
}

/// TLS on a connection: there is none.
pub(super) enum Session {}

impl Session {
    pub(super) fn new(keys: &Bundle, _: Party) -> Result<Self> {
        match *keys {}
    }

    pub(super) fn peer(&self) -> Option<Identity> {
        match *self {}
    }

    pub(super) fn has_buffered(&self) -> bool {
        match *self {}
    }

    pub(super) fn interest(&self, _: Interest) -> Interest {
        match *self {}
    }

    pub(super) fn meet<R>(&mut self, _: &mut R) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn read<R>(&mut self, _: &mut R, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn write<R>(&mut self, _: &mut R, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }
}
