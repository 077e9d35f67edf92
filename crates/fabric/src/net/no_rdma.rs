//! Replaces `rdma.rs` where the feature `verbs` is off: every request fails with `Unsupported`.

use std::sync::Arc;
use std::task::Poll;

use super::data_path::NicConfig;
use crate::addr::NodeId;
use crate::caps::Capabilities;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::membership::Member;
use crate::transport::{Progress, Ticket, WorkRequest};

/// A NIC that cannot be opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Device(());

/// There is none.
pub(super) enum Rdma {}

/// There is none.
pub(super) enum End {}

/// There is none.
pub(super) enum Client {}

fn absent() -> Error {
    Error::unsupported(
        "this binary was built without RDMA: cargo build --release -p dmtree-cli --features verbs",
    )
}

impl Device {
    pub(super) fn describe(_: &NicConfig) -> Result<String> {
        Err(absent())
    }
}

impl Rdma {
    pub(super) fn probe(_: &NicConfig) -> Result<u32> {
        Err(absent())
    }

    pub(super) fn open(_: &NicConfig, _: Member, _: Arc<Host>, _: u32) -> Result<Self> {
        Err(absent())
    }

    pub(super) fn on_chip_bytes(&self) -> u32 {
        match *self {}
    }

    pub(super) fn caps(&self, _: u32, _: u32) -> Capabilities {
        match *self {}
    }

    pub(super) fn client(&self, _: Member) -> Result<Client> {
        match *self {}
    }

    pub(super) fn accept(&self, _: Member, _: &[u8]) -> Result<(Vec<u8>, End)> {
        match *self {}
    }

    pub(super) fn revoke(&self, _: Member) {
        match *self {}
    }
}

impl std::fmt::Display for Rdma {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {}
    }
}

impl Client {
    pub(super) fn post(&self, _: &Core, _: Ticket, _: &[WorkRequest]) -> Poll<Result<()>> {
        match *self {}
    }

    pub(super) fn poll(&self, _: &Core) -> Progress {
        match *self {}
    }

    pub(super) fn outstanding(&self) -> u32 {
        match *self {}
    }

    pub(super) fn is_idle(&self) -> bool {
        match *self {}
    }

    pub(super) fn next_wanted(&self) -> Option<NodeId> {
        match *self {}
    }

    pub(super) fn next_broken(&self) -> Option<NodeId> {
        match *self {}
    }

    pub(super) fn offer(&self, _: NodeId) -> Result<Vec<u8>> {
        match *self {}
    }

    pub(super) fn connect(&self, _: &Core, _: NodeId, _: &[u8]) -> Result<()> {
        match *self {}
    }

    pub(super) fn refuse(&self, _: &Core, _: NodeId, _: &Error) {
        match *self {}
    }

    pub(super) fn disconnect(&self, _: &Core, _: NodeId, _: &Error) {
        match *self {}
    }

    pub(super) fn closed(&self, _: &Core, _: NodeId, _: Option<&Error>) {
        match *self {}
    }
}
