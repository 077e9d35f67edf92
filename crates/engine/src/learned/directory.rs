//! A directory: the pages of all keys, as one compute node knows them.
//!
//! On memory nodes a directory is a block that names the block of each page, and the index's
//! directory word names that block. Both are immutable: a training writes new pages and a new
//! directory, and the word changes by one compare-and-swap. The image of either begins with a
//! [`Head`].

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard};

use dmtree_pool::BlockPtr;
use serde::{Deserialize, Serialize};

use crate::learned::page::{Fenced, ModelPage};

/// "learn", and the version of the format.
const MAGIC: u32 = 0x6c65_6172;
const VERSION: u16 = 1;

/// What every image begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    magic: u32,
    version: u16,
    index: u32,
    /// The tag of the claim under which it was written.
    pub stamp: u64,
}

impl Head {
    /// Of an image of an index.
    pub fn of(index: u32, stamp: u64) -> Self {
        Self { magic: MAGIC, version: VERSION, index, stamp }
    }

    /// The same in another version of the format.
    #[cfg(test)]
    pub fn of_version(index: u32, stamp: u64, version: u16) -> Self {
        Self { version, ..Self::of(index, stamp) }
    }

    /// Whether this is the beginning of an image of an index, whatever its stamp.
    pub fn is_of(self, index: u32) -> bool {
        self == Self::of(index, self.stamp)
    }
}

/// A page as its directory names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PageName {
    /// The first key of its range, which ends where the next page's begins.
    pub lo: Vec<u8>,
    /// Its block; 0 where nothing is trained.
    at: u64,
    /// The stamp in its image.
    pub stamp: u64,
}

impl PageName {
    /// The page in a block.
    pub fn new(lo: Vec<u8>, at: BlockPtr, stamp: u64) -> Self {
        Self { lo, at: at.bits(), stamp }
    }

    /// A range without models.
    pub fn untrained(lo: Vec<u8>) -> Self {
        Self { lo, at: 0, stamp: 0 }
    }

    /// Its block; `None` where nothing is trained.
    pub fn block(&self) -> Option<BlockPtr> {
        (self.at != 0).then(|| BlockPtr::from_bits(self.at))
    }
}

/// The image of a directory.
pub(crate) fn encoded(head: Head, pages: &[PageName]) -> Vec<u8> {
    postcard::to_stdvec(&(head, pages)).expect("memory takes any image")
}

/// The stamp and the pages of an image that has passed its checksum; `None` when it is no directory
/// of the index.
pub(crate) fn decoded(index: u32, bytes: &[u8]) -> Option<(u64, Vec<PageName>)> {
    let (head, pages): (Head, Vec<PageName>) = postcard::from_bytes(bytes).ok()?;
    let is_whole = head.is_of(index)
        && pages.first().is_some_and(|page| page.lo.is_empty())
        && pages.windows(2).all(|pair| pair[0].lo < pair[1].lo);
    is_whole.then_some((head.stamp, pages))
}

/// A page of a directory, with what a compute node knows of it.
#[derive(Debug)]
pub(crate) struct PageRef {
    pub name: PageName,
    /// Ways that were longer than one round trip, since it was trained or last looked for.
    pub longer: AtomicU32,
    /// It was used since the last search for room.
    pub used: AtomicBool,
    loaded: Mutex<Option<Arc<ModelPage>>>,
    /// Leaves behind the last one of the last page, which have split off since: the end of the
    /// table while keys ascend.
    tail: Mutex<Vec<Fenced>>,
}

impl PageRef {
    /// A page without its models.
    pub fn new(name: PageName) -> Arc<Self> {
        Arc::new(Self {
            name,
            longer: AtomicU32::new(0),
            used: AtomicBool::new(true),
            loaded: Mutex::default(),
            tail: Mutex::default(),
        })
    }

    /// Its models, if they are here; to be put or taken.
    pub fn loaded(&self) -> MutexGuard<'_, Option<Arc<ModelPage>>> {
        self.loaded.lock().expect("no panic under this lock")
    }

    /// The leaves behind the last one.
    pub fn tail(&self) -> MutexGuard<'_, Vec<Fenced>> {
        self.tail.lock().expect("no panic under this lock")
    }
}

/// All pages.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The content of the directory word; 0 for none.
    pub word: u64,
    /// The stamp in its image. (The address of its block may be another one's by now.)
    pub stamp: u64,
    pub pages: Vec<Arc<PageRef>>,
    /// Its pages are those that the word names: the node has room for them.
    pub is_kept: bool,
}

/// The number of the page of a key, among pages with these first keys.
pub(crate) fn number_of<P>(pages: &[P], lo: impl Fn(&P) -> &[u8], key: &[u8]) -> usize {
    pages.partition_point(|page| lo(page) <= key).saturating_sub(1)
}

impl Directory {
    /// Of these pages.
    pub fn of((word, stamp): (u64, u64), names: Vec<PageName>) -> Self {
        let pages = names.into_iter().map(PageRef::new).collect();
        Self { word, stamp, pages, is_kept: true }
    }

    /// Without models.
    pub fn empty(word: u64, is_kept: bool) -> Self {
        Self { is_kept, ..Self::of((word, 0), vec![PageName::untrained(Vec::new())]) }
    }

    /// The number of the page of a key.
    pub fn number(&self, key: &[u8]) -> usize {
        number_of(&self.pages, |page| &page.name.lo, key)
    }

    /// Where the range of a page ends; `None` at the right end.
    pub fn end(&self, number: usize) -> Option<&[u8]> {
        self.pages.get(number + 1).map(|page| &page.name.lo[..])
    }

    /// Bytes that it takes, without models.
    pub fn memory_bytes(&self) -> u64 {
        let of = |page: &Arc<PageRef>| size_of::<PageRef>() + page.name.lo.len();
        self.pages.iter().map(of).sum::<usize>() as u64
    }
}
