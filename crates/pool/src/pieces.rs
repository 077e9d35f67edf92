//! Free memory that goes from one holder to another: pieces, and their bytes in a message.
//!
//! A piece has 26 bytes: a tag (kind, and whether operations may still read it), arena kind, index,
//! object size, and two words (address or id, generation or length). A message holds at most
//! [`MAX_PIECES`], so that it fits one call. Bytes come from other nodes: an unknown tag or a short
//! piece is an error, and the receiver checks addresses against its own layout
//! (`Supply::put_piece`, `Deposits::put`).

use dmtree_fabric::{Error, GlobalAddr, MAX_RPC_BYTES, Result};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::arena::{ArenaKey, Grant};
use crate::gc_log::Span;
use crate::ids::TableId;
use crate::wire;

/// Bytes of an encoded piece.
const PIECE_BYTES: usize = 26;
/// Most pieces of one message.
pub(crate) const MAX_PIECES: usize = (MAX_RPC_BYTES - 1024) / PIECE_BYTES;

const OBJECT: u8 = 1;
const FRESH: u8 = 2;
const SPACE: u8 = 3;
const CELL: u8 = 4;
const RETIRED: u8 = 0x80;

/// Free memory of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A reusable object with its last generation.
    Object(ArenaKey, Grant),
    /// Objects that were never granted: where the first is, and their bytes.
    Fresh(ArenaKey, GlobalAddr, u64),
    /// Space for blocks of an index.
    Space(u32, GlobalAddr, u64),
    /// A table cell of an index.
    Cell(u32, TableId),
}

/// The kind of free memory that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "PackedWanted", try_from = "PackedWanted")]
pub(crate) enum Wanted {
    /// Objects of an arena.
    Objects(ArenaKey),
    /// Space for blocks of an index, in one piece of so many bytes at least.
    Space(u32, u64),
    /// Table cells of an index, of so many lines.
    Cells(u32, u8),
}

/// The kind of a piece or of a request, with its arena.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Kind {
    tag: u8,
    kind: u8,
    #[serde(with = "fixint::le")]
    index: u32,
    #[serde(with = "fixint::le")]
    object_bytes: u32,
}

impl Kind {
    fn new(tag: u8, key: ArenaKey) -> Self {
        Self { tag, kind: key.kind, index: key.index, object_bytes: key.object_bytes }
    }

    fn key(self) -> ArenaKey {
        ArenaKey { index: self.index, kind: self.kind, object_bytes: self.object_bytes }
    }
}

/// A piece in a message. All pieces have the same length.
#[derive(Serialize, Deserialize)]
struct Packed {
    what: Kind,
    #[serde(with = "fixint::le")]
    at: u64,
    /// The generation of an object, or bytes.
    #[serde(with = "fixint::le")]
    amount: u64,
}

/// A request in a message. All requests have the same length.
#[derive(Serialize, Deserialize)]
struct PackedWanted {
    what: Kind,
    #[serde(with = "fixint::le")]
    least: u64,
}

fn no_key(index: u32) -> ArenaKey {
    ArenaKey { index, kind: 0, object_bytes: 0 }
}

impl Piece {
    /// The memory.
    pub(crate) fn span(&self) -> Span {
        match *self {
            Self::Object(key, g) => Span::object(g.addr, u64::from(key.object_bytes)),
            Self::Fresh(_, at, bytes) | Self::Space(_, at, bytes) => Span::Bytes(at.bits(), bytes),
            Self::Cell(_, t) => Span::table(t),
        }
    }

    /// The memory node where it is deposited.
    pub(crate) fn holder(&self) -> usize {
        match self {
            Self::Object(_, g) => g.addr.node().index(),
            Self::Fresh(_, at, _) | Self::Space(_, at, _) => at.node().index(),
            Self::Cell(..) => 0,
        }
    }
}

impl Packed {
    fn new((piece, retired): (Piece, bool)) -> Self {
        let (tag, key, at, amount) = match piece {
            Piece::Object(key, g) => (OBJECT, key, g.addr.bits(), u64::from(g.generation)),
            Piece::Fresh(key, at, bytes) => (FRESH, key, at.bits(), bytes),
            Piece::Space(index, at, bytes) => (SPACE, no_key(index), at.bits(), bytes),
            Piece::Cell(index, t) => (CELL, no_key(index), t.bits(), 0),
        };
        let tag = tag | if retired { RETIRED } else { 0 };
        Self { what: Kind::new(tag, key), at, amount }
    }

    fn piece(&self) -> Result<(Piece, bool)> {
        let Self { what, at, amount } = *self;
        let addr = GlobalAddr::from_bits(at);
        let piece = match what.tag & !RETIRED {
            OBJECT => {
                Piece::Object(what.key(), Grant { addr, generation: amount.min(0xffff) as u16 })
            }
            FRESH => Piece::Fresh(what.key(), addr, amount),
            SPACE => Piece::Space(what.index, addr, amount),
            CELL => Piece::Cell(what.index, TableId::from_bits(at)),
            other => {
                return Err(Error::corrupt(format!("there is no free memory of kind {other}")));
            }
        };
        Ok((piece, what.tag & RETIRED != 0))
    }
}

/// The bytes of a message that ends in pieces; with each, whether operations may still read it.
pub(crate) fn encode(
    head: &impl Serialize,
    pieces: impl IntoIterator<Item = (Piece, bool)>,
) -> Vec<u8> {
    wire::with_list(head, pieces.into_iter().map(Packed::new))
}

/// Decodes the pieces of the remainder of a message.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<(Piece, bool)>> {
    wire::decode_list::<Packed>(bytes)?.iter().map(Packed::piece).collect()
}

impl From<Wanted> for PackedWanted {
    fn from(w: Wanted) -> Self {
        let (tag, key, least) = match w {
            Wanted::Objects(key) => (OBJECT, key, 0),
            Wanted::Space(index, least) => (SPACE, no_key(index), least),
            Wanted::Cells(index, lines) => (CELL, no_key(index), u64::from(lines)),
        };
        Self { what: Kind::new(tag, key), least }
    }
}

impl TryFrom<PackedWanted> for Wanted {
    type Error = &'static str;

    fn try_from(PackedWanted { what, least }: PackedWanted) -> Result<Self, Self::Error> {
        match what.tag {
            OBJECT => Ok(Self::Objects(what.key())),
            SPACE => Ok(Self::Space(what.index, least)),
            CELL if (1..=u64::from(u8::MAX)).contains(&least) => {
                Ok(Self::Cells(what.index, least as u8))
            }
            _ => Err("no free memory is of that kind"),
        }
    }
}

#[cfg(test)]
mod tests {
    use dmtree_fabric::NodeId;

    use super::*;

    #[test]
    fn pieces_survive_the_wire() {
        let key = ArenaKey { index: 7, kind: 2, object_bytes: 1408 };
        let at = GlobalAddr::new(NodeId::memory(3), 64 << 20);
        let all = [
            (Piece::Object(key, Grant { addr: at, generation: 9 }), false),
            (Piece::Fresh(key, at, 14080), false),
            (Piece::Space(7, at, 640), true),
            (Piece::Cell(7, TableId::new(5, 2, 77)), true),
        ];
        let bytes = encode(&(), all);
        assert_eq!(bytes.len(), all.len() * PIECE_BYTES);
        assert_eq!(decode(&bytes).expect("whole"), all);
        assert!(decode(&bytes[1..]).is_err());
        for w in [Wanted::Objects(key), Wanted::Space(4, 2048), Wanted::Cells(7, 3)] {
            let bytes = wire::encode(&w);
            assert_eq!(bytes.len(), 18);
            assert_eq!(wire::decode::<Wanted>(&bytes).expect("whole"), w);
        }
    }
}
