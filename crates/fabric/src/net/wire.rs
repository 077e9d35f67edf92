//! Wire format between processes: frames, and the messages of connection set-up and of the
//! membership server.
//!
//! A frame is a length (4 bytes, little endian, of what follows) and a body of at most 64 MiB.
//! Everything that comes from a peer is checked before it is used: it may be another version,
//! another program, or damaged.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::data_path::Common;
use super::node_directory::NodeDirectory;
use super::roles::Issued;
use super::status::NodeStatus;
use crate::addr::Role;
pub(super) use crate::error::Failure;
use crate::error::{Error, Result};
use crate::membership::{Change, Lease, Member, MembershipState};
use crate::transport::Nanos;

/// First bytes of every connection.
pub(super) const MAGIC: [u8; 8] = *b"dmtwire\n";
/// Processes of different versions do not talk to each other. A layout of memory that nodes share
/// is part of the version, too.
pub(super) const VERSION: u32 = 10;
/// Longest body of a frame.
pub(super) const MAX_FRAME: usize = 64 << 20;
/// Longest message of connection set-up and of the membership server.
pub(super) const MAX_MESSAGE: usize = 4 << 20;

/// Identifies a pool. Its first memory node draws it at its start, so that a memory node that comes
/// back empty differs from the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolId(pub u64);

/// Shows that a connection speaks for a member (`roles.rs`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Credential {
    pub member: Member,
    pub badge: [u8; 32],
}

/// The purpose of a connection, as the connecting side states it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Hello {
    /// Questions and answers, one after the other.
    Ask {
        /// The pool; `None` when the asker does not know it yet.
        pool: Option<PoolId>,
        /// The member in the name of which it asks; `None` before registration.
        credential: Option<Credential>,
    },
    /// Verbs and calls of one client thread.
    Link {
        pool: PoolId,
        /// The member that the link belongs to.
        credential: Credential,
        to: Member,
        /// Number of this link in the process of that member.
        number: u64,
        /// The link that this one replaces; 0: none.
        replaces: u64,
    },
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// Admitted. The clock of the host, ns: frames carry their use-by time by that clock.
    Granted { clock: Nanos },
    /// Refused.
    Refused(Failure),
}

/// A node's registration request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    pub role: Role,
    /// The number it wants among the nodes of its role.
    pub wanted: Option<u16>,
    /// Where it listens; an unspecified address stands for the source address of its connection.
    pub listens: String,
    pub region_bytes: u64,
    /// Drawn by the asker: it makes a repeated registration idempotent.
    pub nonce: u64,
    /// Of a journal node: what its directory says.
    pub journal: Option<JournalDirectory>,
}

/// What the directory of a journal node says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalDirectory {
    /// Which part of which journal it is; `None` when it is new.
    pub mark: Option<ShardMark>,
    /// Whether it has indexes.
    pub has_indexes: bool,
    /// It begins a part anew, because the directory of the part is lost: the part has a gap.
    pub replaces: bool,
}

/// Which part of which journal a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardMark {
    /// The journal: all its directories have the same number.
    pub journal: u64,
    /// How many parts the journal has.
    pub shards: u16,
    /// Which part it is.
    pub shard: u16,
    /// The parts that lack writes, as far as it knows: bit n is that of part n.
    #[serde(default)]
    pub gaps: u64,
}

/// Questions. All but the last three are for the first memory node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    PoolConfig,
    Register(Introduction),
    /// A memory node is ready to be used.
    Ready {
        me: Member,
        /// On-chip memory that it exposes, bytes.
        on_chip_bytes: u32,
    },
    /// A node that has registered could not start: its number is free again.
    Withdraw(Member),
    NodeDirectory,
    /// The compute nodes that have joined and are not gone.
    Members,
    Join(Member),
    Renew(Member),
    MembershipState {
        me: Member,
        /// The newest state that the asker knows.
        known: u64,
    },
    Propose(Member, Change),
    /// For every host: revoke this member's access.
    Revoke(Member),
    /// For every host: what it says of itself.
    Status,
    /// For the host of this compute node: an operator asks it to leave.
    Leave(Member),
}

/// Answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    PoolConfig {
        pool: PoolId,
        common: Common,
        /// For the layer above.
        options: Vec<u8>,
    },
    Registered {
        me: Member,
        node_directory: NodeDirectory,
        /// What it shows badges with.
        issued: Issued,
        /// For a journal node: what its directory is from now on.
        mark: Option<ShardMark>,
    },
    NodeDirectory(NodeDirectory),
    Members(Vec<Member>),
    Lease(Lease),
    /// `None` when the asker knows it.
    MembershipState(Option<MembershipState>),
    Done,
    Refused(Failure),
    Status(Box<NodeStatus>),
}

/// The body of a message.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(|e| Error::invalid(format!("not a message: {e}")))
}

/// A message from its body.
pub(super) fn decode<T: DeserializeOwned>(body: &[u8], from: &str) -> Result<T> {
    postcard::from_bytes(body)
        .map_err(|e| Error::corrupt(format!("{from} sent {} bytes of no message: {e}", body.len())))
}

/// The error of a broken connection.
pub(super) fn broken(name: &str, e: &std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    // TLS has said why.
    if let Some(why) = e.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
        return why.clone().context(name);
    }
    let what = match e.kind() {
        Io::ConnectionRefused => {
            "no process listens there: start the node, or check the address".into()
        }
        Io::WouldBlock | Io::TimedOut => {
            "no answer in time: are it and the network to it up?".into()
        }
        Io::UnexpectedEof | Io::ConnectionReset | Io::BrokenPipe | Io::ConnectionAborted => {
            "it closed the connection".to_string()
        }
        _ => e.to_string(),
    };
    Error::unreachable(format!("{name}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_survive_encoding() {
        let plain = Error::full("no room").context("insert");
        for e in [plain.clone(), plain.effect_unknown()] {
            let body = encode(&Failure::from(&e)).expect("encodes");
            let back: Error = decode::<Failure>(&body, "mn0").expect("decodes").into();
            assert_eq!(
                (back.kind(), back.effect(), back.to_string()),
                (e.kind(), e.effect(), e.to_string())
            );
        }
    }

    #[test]
    fn garbage_is_no_message() {
        for len in 0..40 {
            let body = vec![0xff; len];
            assert!(decode::<Ask>(&body, "mn0").is_err());
        }
    }
}
