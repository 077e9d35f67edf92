//! Messages to the service of a memory node, and its answers.

use dmtree_fabric::{Error, MAX_RPC_BYTES, NodeId, Result};
use dmtree_pool::DataService;
use serde::{Deserialize, Serialize};

use crate::format::Format;
use crate::key::{KeyRange, Seq};
use crate::table::{Extent, Meta};

/// The number of this index's service on memory nodes.
pub(crate) const SERVICE: DataService = DataService(2);
/// Bytes that one call carries.
pub(crate) const MOST_BYTES: usize = MAX_RPC_BYTES - 256;

/// What is to be merged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Merge {
    pub(crate) index: u32,
    /// The opening of the index that has what it makes.
    pub(crate) owner: u64,
    /// Sorted runs, newest first; the tables of a run ascend and do not overlap.
    pub(crate) runs: Vec<Vec<Meta>>,
    pub(crate) rule: Rule,
}

/// How it is merged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) range: KeyRange,
    /// The oldest snapshot: newer versions stay, and the newest one up to it.
    pub(crate) oldest: Seq,
    /// No deeper level has the keys: deletions go.
    pub(crate) bottom: bool,
    pub(crate) format: Format,
    pub(crate) table_bytes: u64,
    pub(crate) piece_bytes: u32,
    /// [`crate::options::Defects::skips_keys`], in a part with a lower border.
    pub(crate) skips_one: bool,
    /// [`crate::options::Defects::splits_keys`]: the first version at the upper border belongs to
    /// this part, that at the lower border to the one before.
    pub(crate) splits: bool,
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request<'a> {
    /// A job: merge tables. The answer is a list of [`Meta`].
    Merge(Merge),
    /// Frees what jobs have allocated, once for each number of a batch of an owner.
    Free { owner: u64, batch: u64, extents: Vec<Extent> },
    /// What jobs have made is another owner's from now on.
    Adopt { owner: u64, extents: Vec<Extent> },
    /// The owners of what jobs have made for an index.
    Owners { index: u32 },
    /// Frees what jobs have made for an owner that is dead, and no other has adopted.
    FreeOf { index: u32, owner: u64 },
    /// Bytes of the node's memory.
    Read { offset: u64, bytes: u32 },
    /// Stores bytes.
    Write { offset: u64, bytes: &'a [u8] },
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Bytes(Vec<u8>),
    Owners(Vec<u64>),
    /// So many pieces, and their bytes.
    Freed {
        pieces: u64,
        bytes: u64,
    },
}

/// A request with the number of the service before it.
pub(crate) fn message(request: &Request<'_>) -> Result<Vec<u8>> {
    postcard::to_extend(request, vec![SERVICE.0]).map_err(bad)
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(bad)
}

/// Decodes all of some bytes.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes).map_err(bad)? {
        (value, []) => Ok(value),
        (_, rest) => {
            Err(Error::corrupt(format!("a message of dlsm has {} bytes too many", rest.len())))
        }
    }
}

fn bad(e: postcard::Error) -> Error {
    Error::corrupt(format!("a message of dlsm: {e}"))
}

#[cold]
pub(crate) fn unexpected(from: NodeId) -> Error {
    Error::corrupt(format!("{from} gave an answer to another question"))
}
