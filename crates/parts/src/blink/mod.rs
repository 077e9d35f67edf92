//! The page tree of published designs: a B-link tree of pages on memory nodes, generic over the
//! format of a page ([`Format`]) and over how a page is locked and written back ([`PageTree`]).
//!
//! Leaves are level 0, and the design knows what is in them. Inner pages have a leftmost child and
//! sorted records of a key and a child. Every page has two fence keys and a right sibling. A client
//! finds leaves with [`Descent`], and adds the pages that splits make with [`Separators`];
//! [`Levels`] has the bulk load of inner pages and the walk that checks them.
//!
//! Invariants: a page keeps its address and its lower fence key; a split only lowers its upper
//! fence key. So a route that is older than a split leads to a page at or left of the right one,
//! and right links lead on from there. Without operations in flight an inner page has a free slot:
//! the operation that fills the last one splits the page.

mod change;
mod descent;
mod levels;
mod load;

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Verified};
use dmtree_pool::Bump;

pub use change::Separators;
pub use descent::{Descent, NamedChild, Route};
pub use levels::{Chain, Levels, Named};
pub use load::BulkLoad;

use crate::cache::NodeCache;
use crate::held::Unlock;
use crate::published::{Published, Spare};

/// The level of cached pages: their children are leaves.
const BOTTOM: u8 = 1;
/// A bound that no tree reaches.
const MAX_LEVELS: usize = 24;

/// The lowest lower fence key.
pub fn lowest(key_bytes: usize) -> Vec<u8> {
    vec![0; key_bytes]
}

/// An upper fence key as stored: all ones are the right end. No separator has this value, because
/// the keys behind a separator are above it.
pub fn highest(key_bytes: usize) -> Vec<u8> {
    vec![0xff; key_bytes]
}

/// An upper fence key as stored; `None` for the right end.
pub fn upper(fence: &[u8]) -> Option<&[u8]> {
    if fence.iter().all(|b| *b == 0xff) { None } else { Some(fence) }
}

/// The header of every page.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// The leftmost child; null in a leaf.
    pub leftmost: GlobalAddr,
    /// The right sibling; null at the right end.
    pub sibling: GlobalAddr,
    /// 0 for leaves.
    pub level: u8,
    /// Records of an inner page.
    pub records: usize,
    /// Lower fence key, inclusive.
    pub low: &'a [u8],
    /// Upper fence key, exclusive, as stored.
    pub high: &'a [u8],
    /// The leftmost child of the right sibling: the child after the last one. Null at the right
    /// end, and where the format does not keep it.
    pub beyond: GlobalAddr,
}

impl<'a> Header<'a> {
    /// The header of a leaf.
    pub fn of_leaf(sibling: GlobalAddr, low: &'a [u8], high: &'a [u8]) -> Self {
        let (leftmost, beyond) = (GlobalAddr::NULL, GlobalAddr::NULL);
        Self { leftmost, sibling, level: 0, records: 0, low, high, beyond }
    }

    /// Whether a key lies left of the page.
    pub fn begins_after(&self, key: &[u8]) -> bool {
        key < self.low
    }

    /// Whether a key lies right of the page.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        upper(self.high).is_some_and(|high| key >= high)
    }

    /// Whether the page covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        !self.begins_after(key) && !self.ends_before(key)
    }
}

/// The bytes of pages.
pub trait Format {
    /// Bytes of a key.
    fn key_bytes(&self) -> usize;
    /// Records of an inner page.
    fn inner_slots(&self) -> usize;
    /// Bytes of an inner page as a writer reads and writes it.
    fn inner_bytes(&self) -> usize;
    /// Bytes that a descent READs of any page: enough for both kinds.
    fn page_bytes(&self) -> usize;
    /// Bytes that a page takes.
    fn footprint(&self) -> usize;

    /// The plain image of a page that was READ: all other functions take plain images. A format
    /// with versions between its bytes checks them and takes them out; `None` for a torn page.
    fn plain<'a>(&self, read: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        Some(Cow::Borrowed(read))
    }

    /// Whether the bytes of a page that was READ are a leaf's; `None` while it is being written.
    fn is_leaf(&self, read: &[u8]) -> Option<bool> {
        Some(self.header(read)?.level == 0)
    }

    /// The header of a page that passes its check.
    fn header<'a>(&self, image: &'a [u8]) -> Option<Header<'a>>;
    /// The header of an image that was accepted before, and perhaps changed since.
    fn accepted<'a>(&self, image: &'a [u8]) -> Option<Header<'a>>;
    /// Key of record `i` of an inner page.
    fn key<'a>(&self, image: &'a [u8], i: usize) -> &'a [u8];
    /// Child of record `i`.
    fn child(&self, image: &[u8], i: usize) -> GlobalAddr;

    /// Writes a header.
    fn put_header(&self, image: &mut [u8], h: &Header<'_>);
    /// Writes record `i`.
    fn put_record(&self, image: &mut [u8], i: usize, key: &[u8], child: GlobalAddr);
    /// Adds a record at position `i` of a page with `count` records; there is room. A format with
    /// unsorted records may put it behind the others, if it does not fill the page.
    fn insert_record(&self, image: &mut [u8], place: (usize, usize), key: &[u8], child: GlobalAddr);
    /// Divides a full page: the records behind `middle` move to an empty image, which will be at
    /// `at`, and record `middle` becomes the separator, which is returned.
    fn divide(
        &self,
        left: &mut [u8],
        right: &mut [u8],
        middle: usize,
        at: GlobalAddr,
    ) -> Option<Vec<u8>> {
        let old = self.accepted(left)?;
        let (separator, leftmost) = (self.key(left, middle).to_vec(), self.child(left, middle));
        let (low, high, count) = (old.low.to_vec(), old.high.to_vec(), old.records);
        let old = Header { low: &low, high: &high, ..old };
        for i in middle + 1..count {
            let (key, child) = (self.key(left, i).to_vec(), self.child(left, i));
            self.put_record(right, i - middle - 1, &key, child);
        }
        let key = vec![0; self.key_bytes()];
        (middle..count).for_each(|i| self.put_record(left, i, &key, GlobalAddr::NULL));
        let records = count - middle - 1;
        self.put_header(right, &Header { leftmost, records, low: &separator, ..old });
        let (beyond, high) = (leftmost, &separator[..]);
        self.put_header(left, &Header { sibling: at, beyond, records: middle, high, ..old });
        Some(separator)
    }
    /// Prepares a page to be written whole: the image is not plain any more.
    fn seal(&self, image: &mut [u8]);

    /// Prepares a page with a new record to be written, which had `count` before: the image is not
    /// plain any more. Returns the bytes to write.
    fn seal_added(&self, image: &mut [u8], _count: usize) -> Range<usize> {
        self.seal(image);
        0..image.len()
    }
}

/// An accepted image of an inner page.
#[derive(Debug)]
pub struct Inner<'a, F> {
    format: &'a F,
    image: &'a [u8],
    /// Its header.
    pub h: Header<'a>,
}

impl<'a, F: Format> Inner<'a, F> {
    /// Accepts a page that passes its check if its keys ascend between its fence keys.
    pub fn check(format: &'a F, image: &'a [u8]) -> Option<Self> {
        let h = format.header(image).filter(|h| h.level > 0)?;
        let n = Self { format, image, h };
        let mut last = h.low;
        for i in 0..h.records {
            let key = n.key(i);
            if key <= last {
                return None;
            }
            last = key;
        }
        (h.records == 0 || !h.ends_before(last)).then_some(n)
    }

    /// Takes an image that was accepted before.
    ///
    /// # Errors
    /// `Corrupt` for an image that cannot have been.
    pub fn of(format: &'a F, image: &'a [u8]) -> Result<Self> {
        let h = format.accepted(image);
        let h = h.ok_or_else(|| Error::corrupt("an inner page without a header"))?;
        Ok(Self { format, image, h })
    }

    fn key(&self, i: usize) -> &'a [u8] {
        self.format.key(self.image, i)
    }

    /// The children with their lower fence keys, in order.
    fn children(&self) -> impl Iterator<Item = (&'a [u8], GlobalAddr)> {
        let record = |i| (self.key(i), self.format.child(self.image, i));
        std::iter::once((self.h.low, self.h.leftmost)).chain((0..self.h.records).map(record))
    }

    /// The child that covers a key, and the child after it.
    fn child_of(&self, key: &[u8]) -> Route {
        let child = |n: usize| match n {
            0 => self.h.leftmost,
            n if n > self.h.records => self.h.beyond,
            n => self.format.child(self.image, n - 1),
        };
        let n = self.rank(key);
        Route { leaf: child(n), cached: false, next: child(n + 1) }
    }

    /// How many records have keys that are at most `key`.
    fn rank(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.h.records);
        while low < high {
            let mid = (low + high) / 2;
            if self.key(mid) <= key { low = mid + 1 } else { high = mid }
        }
        low
    }
}

/// The plain image of a page that was READ and accepted.
#[derive(Debug)]
pub enum Image {
    /// As it was READ.
    Read(Verified),
    /// Taken out of what was READ.
    Plain(Vec<u8>),
}

impl Image {
    fn new((plain, read): (Option<Vec<u8>>, Verified)) -> Self {
        plain.map_or(Self::Read(read), Self::Plain)
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Read(image) => image,
            Self::Plain(image) => image,
        }
    }
}

/// Whether a plain image has to be kept apart from what was READ.
fn apart(plain: Cow<'_, [u8]>) -> Option<Vec<u8>> {
    match plain {
        Cow::Borrowed(_) => None,
        Cow::Owned(plain) => Some(plain),
    }
}

/// A page that was READ.
pub enum Page {
    /// An inner page.
    Inner(Image),
    /// A leaf: a descent needs no more of it.
    Leaf,
}

/// What a compute node knows of the pages of one index.
#[derive(Debug)]
pub struct Pages {
    /// Pages directly above the leaves; with `upper_levels` all inner pages.
    pub cache: NodeCache,
    /// A descent begins at the lowest page of its key in the cache. Otherwise at the root.
    upper_levels: bool,
    /// Every descent READs the root word: a format without fence keys in its leaves does not show
    /// that a leaf is the root no more.
    reads_root: bool,
    /// The root as a client of this node has last seen it; 0 when unknown.
    top: AtomicU64,
    memory: Bump,
}

impl Pages {
    /// Those of an index that allocates its pages from `memory`.
    pub fn new(cache_bytes: u64, memory: Bump) -> Self {
        let (cache, top) = (NodeCache::new(cache_bytes, None), AtomicU64::new(0));
        Self { cache, upper_levels: false, reads_root: false, top, memory }
    }

    /// With the pages of all inner levels in the cache.
    #[must_use]
    pub fn with_upper_levels(self, on: bool) -> Self {
        Self { upper_levels: on, ..self }
    }

    /// With the root word READ by every descent that begins at the root.
    #[must_use]
    pub fn with_root_read(self) -> Self {
        Self { reads_root: true, ..self }
    }

    /// The root as far as it is known; 0 when it is not.
    fn known_top(&self) -> u64 {
        if self.reads_root { 0 } else { self.top.load(Ordering::Relaxed) }
    }

    /// Makes the next descent READ the root pointer.
    pub fn forget_top(&self) {
        self.top.store(0, Ordering::Relaxed);
    }
}

/// What a client keeps from one step of an operation to the next.
#[derive(Debug, Default)]
pub struct Way {
    /// Inner pages of the last descent, by level; empty when the cache supplied the leaf.
    path: RefCell<Vec<GlobalAddr>>,
    /// Pages allocated before a split begins.
    spare: Spare,
}

/// A client of a page tree: how it locks pages and writes them back.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait PageTree: Published + Unlock<<Self as PageTree>::Held> {
    /// The bytes of its pages.
    type Format: Format;
    /// A held lock of a page.
    type Held;

    /// The bytes of its pages.
    fn format(&self) -> &Self::Format;
    /// What its compute node knows of the pages.
    fn pages(&self) -> &Pages;
    /// What the client itself keeps.
    fn way(&self) -> &Way;
    /// READs a page of any kind for a descent: [`Descent::read_page_once`], or the same under the
    /// page's lock.
    async fn read_page(&self, at: GlobalAddr) -> Result<Page>;
    /// Takes the lock of a page.
    async fn lock(&self, page: GlobalAddr) -> Result<Self::Held>;
    /// WRITEs a part of a page, and releases its lock. `split`: the page was divided, and its right
    /// half is written.
    async fn write_back(
        &self,
        held: Self::Held,
        at: GlobalAddr,
        image: Buf,
        split: bool,
    ) -> Result<()>;

    /// Memory for a page.
    async fn new_page(&self) -> Result<GlobalAddr> {
        self.take(&self.way().spare, &self.pages().memory, self.format().footprint()).await
    }

    /// Allocates spare pages, so that a split finds memory. One that cascades through more levels
    /// allocates more pages on its way.
    async fn reserve(&self, count: usize) -> Result<()> {
        let bytes = self.format().footprint();
        self.fill(&self.way().spare, count, &self.pages().memory, bytes).await
    }
}
