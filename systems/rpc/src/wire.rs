//! Requests to the service of a memory node, and its replies, as bytes.
//!
//! A request is the number of the service, a [`Head`], and a [`Request`]. What does not fit a call
//! goes in parts, in either direction: [`Request::Part`] and [`Request::Fetch`].

use dmtree_fabric::{Error, MAX_RPC_BYTES, Result};
use dmtree_parts::tree::Geometry;
use dmtree_parts::{Outcome, Page, Resume, ScanRequest, Shape, Write};
use dmtree_pool::DataService;
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::options::Options;

/// The number of this index's service on memory nodes.
pub(crate) const SERVICE: DataService = DataService(1);

/// Bytes of a request or of a reply that one call carries, beside head and framing.
pub(crate) const CALL_BYTES: usize = MAX_RPC_BYTES - 64;

/// The begin of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The index.
    #[serde(with = "fixint::le")]
    pub index: u32,
    /// The client, among those of its compute node: of what goes in parts each has one.
    #[serde(with = "fixint::le")]
    pub client: u32,
    /// The number of its request, which all parts of it and of its reply have: it grows, also from
    /// one incarnation of the compute node to the next.
    #[serde(with = "fixint::le")]
    pub number: u64,
    #[serde(with = "fixint::le")]
    k: u16,
    #[serde(with = "fixint::le")]
    v: u16,
    slots: u8,
    /// Whether the client knows how keys are cut into ranges.
    pub knows_borders: bool,
}

impl Head {
    pub(crate) fn new(
        index: u32,
        (client, number): (u32, u64),
        o: &Options,
        knows_borders: bool,
    ) -> Self {
        let (k, v) = (o.key_inline_bytes as u16, o.value_inline_bytes as u16);
        Self { index, client, number, k, v, slots: o.leaf_slots as u8, knows_borders }
    }

    /// The layout of the leaves.
    ///
    /// # Errors
    /// `InvalidArgument` for one that no client asks for.
    pub(crate) fn geometry(&self) -> Result<Geometry> {
        let o = Options {
            key_inline_bytes: self.k.into(),
            value_inline_bytes: self.v.into(),
            leaf_slots: self.slots.into(),
            ..Options::default()
        };
        o.check()?;
        Ok(o.geometry())
    }
}

/// A pair as it is loaded.
pub(crate) type Pair<'a> = (&'a [u8], &'a [u8]);

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request<'a> {
    /// The value of a key.
    Get(&'a [u8]),
    /// The values of several keys.
    GetMany(#[serde(borrow)] Vec<&'a [u8]>),
    /// The leaf of a key.
    Locate(&'a [u8]),
    /// The leaves from that of a key on.
    Route(&'a [u8]),
    /// A write.
    Write(&'a [u8], #[serde(borrow)] Write<'a>),
    /// Several writes, in order.
    WriteMany(#[serde(borrow)] Vec<(&'a [u8], Write<'a>)>),
    /// A page of a scan.
    Scan(#[serde(borrow)] ScanRequest<'a>),
    /// Pairs behind all others: a leaf for each list.
    Append(#[serde(borrow)] Vec<Vec<Pair<'a>>>),
    /// Cuts the keys of an empty index into ranges.
    Cut(#[serde(borrow)] Vec<&'a [u8]>),
    /// Checks the tree.
    Walk,
    /// A part of a request, the last of which is executed.
    Part { at: u32, bytes: &'a [u8], last: bool },
    /// A part of the last reply.
    Fetch { at: u32 },
}

/// How one write of a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wrote {
    /// It is over.
    Ended(Outcome),
    /// There was no room.
    Full,
    /// Its key belongs to another memory node.
    Moved,
}

/// How a write is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Counts {
    Hit,
    Absent,
    Inserted,
    Split,
}

/// The leaves of a stretch of keys: low fence and offset of each, and where it ends.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stretch {
    pub leaves: Vec<(Vec<u8>, u64)>,
    pub end: Option<Vec<u8>>,
}

/// A reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Value(Option<Vec<u8>>),
    Values(Vec<Option<Vec<u8>>>),
    Leaf(#[serde(with = "fixint::le")] u64),
    Leaves(Stretch),
    Wrote(Outcome, Counts),
    WroteMany(Vec<Wrote>),
    Page(Page, Option<Resume>),
    /// How many leaves were written.
    Appended(u64),
    /// Whether the index was empty.
    Cut(bool),
    Shape(Shape),
    /// The client shall learn how keys are cut, and ask again.
    Borders(Vec<Vec<u8>>),
    /// A part of the request has arrived.
    Next,
    /// The reply has so many bytes and waits.
    Long(u32),
    Piece(Vec<u8>),
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(|e| Error::corrupt(format!("a message of rpc: {e}")))
}

/// Decodes the begin of some bytes; the rest of them.
pub(crate) fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes).map_err(|e| Error::corrupt(format!("a message of rpc: {e}")))
}

/// Decodes all of some bytes.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match take(bytes)? {
        (value, []) => Ok(value),
        (_, rest) => {
            Err(Error::corrupt(format!("a message of rpc has {} bytes too many", rest.len())))
        }
    }
}
