//! Free memory that goes from one holder to another: pieces, and their bytes in a message.
//!
//! A piece has 26 bytes: a tag (kind, and whether operations may still read it), arena kind, index,
//! object size, and two words (address or id, generation or length). A message holds at most
//! [`MAX_PIECES`], so that it fits one call. Bytes come from other nodes: an unknown tag or a short
//! piece is an error, and the receiver checks addresses against its own layout
//! (`PoolNode::put_piece`, `Deposits::put`).

use dmtree_fabric::{Error, GlobalAddr, MAX_RPC_BYTES, Result};

use crate::arena::{ArenaKey, Grant};
use crate::gc_log::Span;
use crate::ids::TableId;
use crate::wire::Fields;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Objects of an arena.
    Objects(ArenaKey),
    /// Space for blocks of an index, in one piece of so many bytes at least.
    Space(u32, u64),
    /// Table cells of an index, of so many lines.
    Cells(u32, u8),
}

fn header(out: &mut Vec<u8>, tag: u8, key: ArenaKey) {
    out.push(tag);
    out.push(key.kind);
    out.extend(key.index.to_le_bytes());
    out.extend(key.object_bytes.to_le_bytes());
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

    fn encode(&self, retired: bool, out: &mut Vec<u8>) {
        let flag = if retired { RETIRED } else { 0 };
        let (first, second) = match *self {
            Self::Object(key, g) => {
                header(out, OBJECT | flag, key);
                (g.addr.bits(), u64::from(g.generation))
            }
            Self::Fresh(key, at, bytes) => {
                header(out, FRESH | flag, key);
                (at.bits(), bytes)
            }
            Self::Space(index, at, bytes) => {
                header(out, SPACE | flag, no_key(index));
                (at.bits(), bytes)
            }
            Self::Cell(index, t) => {
                header(out, CELL | flag, no_key(index));
                (t.bits(), 0)
            }
        };
        out.extend(first.to_le_bytes());
        out.extend(second.to_le_bytes());
    }

    fn decode(f: &mut Fields<'_>) -> Result<(Self, bool)> {
        let (tag, kind) = (f.u8()?, f.u8()?);
        let (index, object_bytes, first, second) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?);
        let key = ArenaKey { index, kind, object_bytes };
        let at = GlobalAddr::from_bits(first);
        let piece = match tag & !RETIRED {
            OBJECT => Self::Object(key, Grant { addr: at, generation: second.min(0xffff) as u16 }),
            FRESH => Self::Fresh(key, at, second),
            SPACE => Self::Space(index, at, second),
            CELL => Self::Cell(index, TableId::from_bits(first)),
            other => {
                return Err(Error::corrupt(format!("there is no free memory of kind {other}")));
            }
        };
        Ok((piece, tag & RETIRED != 0))
    }
}

/// Appends pieces to a message; with each, whether operations may still read it.
pub(crate) fn encode(pieces: impl IntoIterator<Item = (Piece, bool)>, out: &mut Vec<u8>) {
    pieces.into_iter().for_each(|(p, retired)| p.encode(retired, out));
}

/// Decodes the pieces of the remainder of a message.
pub(crate) fn decode(mut f: Fields<'_>) -> Result<Vec<(Piece, bool)>> {
    let mut out = Vec::with_capacity(f.0.len() / PIECE_BYTES);
    while !f.0.is_empty() {
        out.push(Piece::decode(&mut f)?);
    }
    Ok(out)
}

impl Wanted {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        let least = match self {
            Self::Objects(key) => {
                header(&mut out, OBJECT, key);
                0
            }
            Self::Space(index, least) => {
                header(&mut out, SPACE, no_key(index));
                least
            }
            Self::Cells(index, lines) => {
                header(&mut out, CELL, no_key(index));
                u64::from(lines)
            }
        };
        out.extend(least.to_le_bytes());
        out
    }

    pub(crate) fn decode(f: &mut Fields<'_>) -> Result<Self> {
        let (tag, kind) = (f.u8()?, f.u8()?);
        let (index, object_bytes, least) = (f.u32()?, f.u32()?, f.u64()?);
        match tag {
            OBJECT => Ok(Self::Objects(ArenaKey { index, kind, object_bytes })),
            SPACE => Ok(Self::Space(index, least)),
            CELL if (1..=4).contains(&least) => Ok(Self::Cells(index, least as u8)),
            other => Err(Error::invalid(format!("no free memory is of kind {other}"))),
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
        let mut bytes = Vec::new();
        encode(all, &mut bytes);
        assert_eq!(bytes.len(), all.len() * PIECE_BYTES);
        assert_eq!(decode(Fields(&bytes)).expect("whole"), all);
        assert!(decode(Fields(&bytes[1..])).is_err());
        for w in [Wanted::Objects(key), Wanted::Space(4, 2048), Wanted::Cells(7, 3)] {
            assert_eq!(Wanted::decode(&mut Fields(&w.encode())).expect("whole"), w);
        }
    }
}
