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
}

/// Methods of a type without values.
macro_rules! never_called {
    ($on:ty { $(fn $name:ident($($argument:ty),*) $(-> $out:ty)?;)* }) => {
        impl $on {
            $(pub(super) fn $name(&self, $(_: $argument),*) $(-> $out)? {
                match *self {}
            })*
        }
    };
}

never_called! {
    Rdma {
        fn on_chip_bytes() -> u32;
        fn caps(u32, u32) -> Capabilities;
        fn client(Member) -> Result<Client>;
        fn accept(Member, &[u8], bool) -> Result<(Vec<u8>, End)>;
        fn revoke(Member);
    }
}

never_called! {
    Client {
        fn post(&Core, Ticket, &[WorkRequest]) -> Poll<Result<()>>;
        fn poll(&Core) -> Progress;
        fn outstanding() -> u32;
        fn is_idle() -> bool;
        fn next_wanted() -> Option<NodeId>;
        fn next_broken() -> Option<NodeId>;
        fn offer(NodeId) -> Result<Vec<u8>>;
        fn connect(&Core, NodeId, &[u8]) -> Result<()>;
        fn refuse(&Core, NodeId, &Error);
        fn disconnect(&Core, NodeId, &Error);
        fn closed(&Core, NodeId, Option<&Error>);
    }
}

impl std::fmt::Display for Rdma {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {}
    }
}
