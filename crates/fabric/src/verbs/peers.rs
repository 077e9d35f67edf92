//! The state of a client's connection to each host.

use std::ops::{Index, IndexMut};

use super::client::Waiting;
use super::offer::End;
use super::queue_pair::{QueuePair, Sizes};
use super::send::WorkId;
use crate::addr::{ByNode, NodeId};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// There is none, and no verb needs one.
    Idle,
    /// Verbs wait for one.
    Wanted,
    /// This end is made; the answer is awaited.
    Offered,
    /// Verbs go.
    Connected,
    /// This end is gone; the other end may still be there.
    Broken,
}

/// A host, as this client knows it.
pub(super) struct Peer {
    pub node: NodeId,
    pub standing: ConnectionState,
    pub offered: Option<(QueuePair, Sizes, End)>,
    /// Lists that wait for the connection.
    pub parked: Vec<Waiting>,
    /// Which flight requests are being staged for.
    pub flight: WorkId,
    /// Key of the words of its send queue, where the device needs one.
    pub words_key: Option<u32>,
    /// `next_wanted` or `next_broken` has named it.
    is_named: bool,
}

/// All of them; numbers stay.
#[derive(Default)]
pub(super) struct Peers {
    all: Vec<Peer>,
    /// The number of a node.
    numbers: ByNode<Option<usize>>,
    /// How many are wanted or broken and not named yet.
    unnamed: u32,
    broken: u32,
}

impl Index<usize> for Peers {
    type Output = Peer;
    fn index(&self, p: usize) -> &Peer {
        &self.all[p]
    }
}

impl IndexMut<usize> for Peers {
    fn index_mut(&mut self, p: usize) -> &mut Peer {
        &mut self.all[p]
    }
}

impl Peers {
    /// The number of a node; a new node gets one.
    pub(super) fn find(&mut self, node: NodeId) -> usize {
        *self.numbers.at(node).get_or_insert_with(|| {
            self.all.push(Peer {
                node,
                standing: ConnectionState::Idle,
                offered: None,
                parked: Vec::new(),
                flight: WorkId { flight: u32::MAX, generation: 0 },
                words_key: None,
                is_named: true,
            });
            self.all.len() - 1
        })
    }

    fn call_for(&mut self, p: usize, standing: ConnectionState) {
        let peer = &mut self.all[p];
        peer.standing = standing;
        self.unnamed += u32::from(peer.is_named);
        peer.is_named = false;
    }

    /// A list waits for the peer's connection.
    pub(super) fn park(&mut self, p: usize, list: Waiting) {
        self.all[p].parked.push(list);
        if self.all[p].standing == ConnectionState::Idle {
            self.call_for(p, ConnectionState::Wanted);
        }
    }

    /// This end of the connection is gone.
    pub(super) fn broke(&mut self, p: usize) {
        self.broken += 1;
        self.call_for(p, ConnectionState::Broken);
    }

    /// So is the other end.
    pub(super) fn closed(&mut self, p: usize) {
        self.broken -= 1;
        match self.all[p].parked.is_empty() {
            true => self.all[p].standing = ConnectionState::Idle,
            false => self.call_for(p, ConnectionState::Wanted),
        }
    }

    fn next(&mut self, standing: ConnectionState) -> Option<NodeId> {
        if self.unnamed == 0 {
            return None;
        }
        let peer = self.all.iter_mut().find(|p| !p.is_named && p.standing == standing)?;
        peer.is_named = true;
        self.unnamed -= 1;
        Some(peer.node)
    }

    pub(super) fn next_wanted(&mut self) -> Option<NodeId> {
        self.next(ConnectionState::Wanted)
    }

    pub(super) fn next_broken(&mut self) -> Option<NodeId> {
        self.next(ConnectionState::Broken)
    }

    pub(super) fn has_broken(&self) -> bool {
        self.broken > 0
    }

    pub(super) fn any_broken(&self) -> Option<NodeId> {
        self.all.iter().find(|p| p.standing == ConnectionState::Broken).map(|p| p.node)
    }

    /// Whether no list waits for a connection, and none is broken.
    pub(super) fn is_quiet(&self) -> bool {
        self.broken == 0 && self.all.iter().all(|p| p.parked.is_empty())
    }
}
