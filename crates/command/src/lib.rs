//! What the commands of the binary and of the laboratory share: why a command has failed and its
//! exit status ([`failure`]), sizes ([`bytes`]), the key of a pool ([`mod@access`]), the names of
//! fabrics ([`fabrics`]), and the text form of a dump ([`dump`]).
#![forbid(unsafe_code)]

pub mod access;
pub mod bytes;
pub mod dump;
pub mod fabrics;
pub mod failure;

pub use failure::{Failure, Result};
