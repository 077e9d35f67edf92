//! Range reads, page by page, and cursors to go on later.

use std::ops::Bound;

use dmtree_fabric::{Error, Result};
use dmtree_parts::{Page, Resume, ScanRequest, behind_prefix};
use serde::{Deserialize, Serialize};

use crate::bounds::{KeyRange, OwnedBound, borrowed, higher_low, is_empty, lower_high, owned};

/// Pairs fetched at a time by default.
const DEFAULT_PAGE_PAIRS: usize = 256;

/// Where the pages of a scan come from.
pub trait PageSource {
    /// Fills a page.
    fn page(&mut self, request: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>>;

    /// Memory for pages, that of an earlier scan if there is any.
    fn spare_page(&mut self) -> Page {
        Page::new()
    }

    /// The memory of a scan that has ended.
    fn keep_page(&mut self, _page: Page) {}
}

/// A scan that has not begun: says what it covers. Iterate over it to run it.
///
/// Each pair was current at some instant of the scan; keys come in order, each at most once; a key
/// that is there during the whole scan is not missed. It is **not a snapshot**: writes that happen
/// meanwhile may or may not be seen.
#[derive(Debug)]
#[must_use = "a scan does nothing before pairs are asked for"]
pub struct Scan<S> {
    pub(crate) source: S,
    pub(crate) plan: Cursor,
    pub(crate) page_pairs: usize,
}

impl<S> Scan<S> {
    pub(crate) fn new(source: S, range: impl KeyRange) -> Self {
        Self::from_cursor(source, Cursor::new(&range))
    }

    pub(crate) fn from_cursor(source: S, plan: Cursor) -> Self {
        Self { source, plan, page_pairs: DEFAULT_PAGE_PAIRS }
    }

    /// From the upper end downwards.
    pub fn rev(mut self) -> Self {
        self.plan.reverse = !self.plan.reverse;
        self
    }

    /// At most `pairs` pairs.
    pub fn limit(mut self, pairs: u64) -> Self {
        self.plan.left = self.plan.left.min(pairs);
        self
    }

    /// Only keys that begin with `prefix`.
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.plan.narrow(prefix.as_ref());
        self
    }

    /// Fetches `pairs` pairs at a time, 256 by default: more mean fewer round trips and more
    /// memory.
    pub fn page_size(mut self, pairs: usize) -> Self {
        self.page_pairs = pairs.max(1);
        self
    }
}

impl<S: PageSource> Scan<S> {
    /// Begins. The same as `into_iter`.
    pub fn pairs(self) -> Pairs<S> {
        let Self { mut source, plan, page_pairs } = self;
        let front = Side::new(source.spare_page());
        Pairs { source, plan, page_pairs, front, back: None }
    }

    /// Begins, with keys and values as `bytes::Bytes`: parts of the memory of the page that they
    /// came in, which stays until the last of them is dropped.
    ///
    /// ```
    /// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
    /// # let index = pool.open_or_create("users", dmtree::Options::default())?;
    /// # index.put("ada", "1815")?;
    /// let (_, born) = index.scan("a"..).into_bytes().next().transpose()?.expect("a pair");
    /// assert_eq!(born, "1815");
    /// // What a get returns has its own memory, which `Bytes` takes over.
    /// let born = index.get("ada")?.map(bytes::Bytes::from);
    /// # Ok::<(), dmtree::Error>(())
    /// ```
    #[cfg(feature = "bytes")]
    pub fn into_bytes(self) -> crate::BytesPairs<S> {
        crate::BytesPairs::of(self.pairs())
    }
}

impl<S: PageSource> IntoIterator for Scan<S> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    type IntoIter = Pairs<S>;
    fn into_iter(self) -> Pairs<S> {
        self.pairs()
    }
}

/// A scan that runs: an iterator over pairs, from both ends if that is wanted. It ends after an
/// error; [`Pairs::cursor`] then says where to go on.
#[derive(Debug)]
pub struct Pairs<S: PageSource> {
    source: S,
    /// What is left when the pairs taken so far are subtracted, but for the end at which the front
    /// goes on while there is no back: that follows from the last pair taken of its page.
    plan: Cursor,
    page_pairs: usize,
    front: Side,
    /// Where pairs are taken from the other end.
    back: Option<Box<Side>>,
}

/// The pages of one end of a scan.
#[derive(Debug)]
struct Side {
    /// Where the next page begins, as the index said; meaningful after the first page.
    fetched: OwnedBound,
    more: bool,
    page: Page,
    at: usize,
    /// The pairs of the page that are given out without a look at the other end: all, or none once
    /// there are two ends.
    end: usize,
}

/// An end of a scan that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

impl Side {
    fn new(page: Page) -> Self {
        Self { fetched: Bound::Unbounded, more: true, page, at: 0, end: 0 }
    }

    /// Fetches the next page of what is left in its direction.
    fn fetch(
        &mut self,
        source: &mut impl PageSource,
        plan: &Cursor,
        reverse: bool,
        page_pairs: usize,
    ) -> Result<()> {
        self.at = 0;
        self.page.clear();
        if is_empty(&plan.low, &plan.high) {
            self.more = false;
            return Ok(());
        }
        let limit = page_pairs.min(usize::try_from(plan.left).unwrap_or(usize::MAX));
        let from = match &self.fetched {
            Bound::Unbounded if reverse => &plan.high,
            Bound::Unbounded => &plan.low,
            known => known,
        };
        let (low, high) = match reverse {
            false => (borrowed(from), borrowed(&plan.high)),
            true => (borrowed(&plan.low), borrowed(from)),
        };
        match source.page(&ScanRequest { low, high, reverse, limit }, &mut self.page) {
            Ok(Some(Resume(next))) => self.fetched = next,
            Ok(None) => self.more = false,
            Err(e) => {
                // A caller that skips errors must not loop for ever.
                self.more = false;
                self.page.clear();
                self.end = 0;
                return Err(e);
            }
        }
        Ok(())
    }
}

impl<S: PageSource> Pairs<S> {
    /// The next pair, in place: no allocation per pair.
    ///
    /// # Errors
    /// Those of the index: `TimedOut`, `Closed`, `InvalidArgument` for an end over 1 KiB.
    #[inline]
    pub fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.plan.left == 0 {
            return Ok(None);
        }
        while self.front.at >= self.front.end {
            if self.back.is_some() {
                return self.step(End::Front);
            }
            if !self.front.more {
                return Ok(None);
            }
            self.fetch(End::Front)?;
        }
        let i = self.front.at;
        self.front.at += 1;
        self.plan.left -= 1;
        Ok(self.front.page.get(i))
    }

    /// The next pair from the other end, as [`Pairs::next_ref`]. The two ends meet: no pair comes
    /// from both.
    ///
    /// # Errors
    /// As [`Pairs::next_ref`].
    pub fn next_back_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if self.back.is_none() {
            self.plan.taken(&self.front.page, self.front.at);
            self.back = Some(Box::new(Side::new(Page::new())));
            self.front.end = 0;
        }
        self.step(End::Back)
    }

    /// A pair from one of two ends. A page may have pairs that the other end has passed.
    #[inline(never)]
    fn step(&mut self, end: End) -> Result<Option<(&[u8], &[u8])>> {
        if self.plan.left == 0 {
            return Ok(None);
        }
        while self.side(end).at >= self.side(end).page.len() {
            if !self.side(end).more {
                return Ok(None);
            }
            self.fetch(end)?;
        }
        let reverse = self.goes_down(end);
        let side = match end {
            End::Front => &mut self.front,
            End::Back => self.back.as_mut().expect("it was begun"),
        };
        let Some((key, value)) = side.page.get(side.at) else { return Ok(None) };
        if !self.plan.has(key, !reverse) {
            side.more = false;
            return Ok(None);
        }
        side.at += 1;
        self.plan.left -= 1;
        self.plan.pass(key, reverse);
        Ok(Some((key, value)))
    }

    fn goes_down(&self, end: End) -> bool {
        self.plan.reverse != (end == End::Back)
    }

    fn side(&mut self, end: End) -> &mut Side {
        match end {
            End::Front => &mut self.front,
            End::Back => self.back.as_mut().expect("it was begun"),
        }
    }

    /// What is left of this scan, as bytes to keep: [`Index::resume`](crate::Index::resume) goes on
    /// behind the last pair that was taken, in this process or another one, at any later time.
    pub fn cursor(&self) -> Vec<u8> {
        let mut plan = self.plan.clone();
        if self.back.is_none() {
            plan.taken(&self.front.page, self.front.at);
        }
        plan.encode()
    }

    /// The rest of the page at the front, or the next one; `None` at the end. For pairs that are
    /// not taken from the other end.
    #[cfg(feature = "bytes")]
    pub(crate) fn next_page(&mut self) -> Result<Option<Page>> {
        while self.front.page.is_empty() {
            if !self.front.more || self.plan.left == 0 {
                return Ok(None);
            }
            self.fetch(End::Front)?;
        }
        let page = std::mem::take(&mut self.front.page);
        self.front.end = 0;
        self.plan.taken(&page, page.len());
        self.plan.left -= page.len() as u64;
        Ok(Some(page))
    }

    #[inline(never)]
    fn fetch(&mut self, end: End) -> Result<()> {
        if self.back.is_none() {
            self.plan.taken(&self.front.page, self.front.at);
        }
        let reverse = self.goes_down(end);
        let Self { source, plan, page_pairs, front, back } = self;
        let side = match (end, back) {
            (End::Back, Some(back)) => back,
            _ => front,
        };
        side.fetch(source, plan, reverse, *page_pairs)?;
        if self.back.is_none() {
            self.front.end = self.front.page.len();
        }
        Ok(())
    }
}

impl<S: PageSource> Drop for Pairs<S> {
    fn drop(&mut self) {
        self.source.keep_page(std::mem::take(&mut self.front.page));
    }
}

impl<S: PageSource> Iterator for Pairs<S> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.next_ref().transpose()?;
        Some(pair.map(|(k, v)| (k.to_vec(), v.to_vec())))
    }
}

impl<S: PageSource> DoubleEndedIterator for Pairs<S> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let pair = self.next_back_ref().transpose()?;
        Some(pair.map(|(k, v)| (k.to_vec(), v.to_vec())))
    }
}

/// What is left of a scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursor {
    pub(crate) low: OwnedBound,
    pub(crate) high: OwnedBound,
    pub(crate) reverse: bool,
    pub(crate) left: u64,
}

const MAGIC: &[u8; 4] = b"dmc2";

impl Cursor {
    pub(crate) fn new(range: &impl KeyRange) -> Self {
        let (low, high) = range.ends();
        Self { low: owned(low), high: owned(high), reverse: false, left: u64::MAX }
    }

    pub(crate) fn narrow(&mut self, prefix: &[u8]) {
        let take = |b: &mut OwnedBound| std::mem::replace(b, Bound::Unbounded);
        if !prefix.is_empty() {
            self.low = higher_low(take(&mut self.low), Bound::Included(prefix.to_vec()));
        }
        let high = behind_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        self.high = lower_high(take(&mut self.high), high);
    }

    /// So many pairs of a page were given out: the scan goes on behind the last one.
    pub(crate) fn taken(&mut self, page: &Page, pairs: usize) {
        let last = pairs.checked_sub(1).and_then(|i| page.get(i));
        if let Some((key, _)) = last {
            self.pass(key, self.reverse);
        }
    }

    /// A key was given out, downwards or upwards: the scan goes on behind it.
    fn pass(&mut self, key: &[u8], down: bool) {
        match if down { &mut self.high } else { &mut self.low } {
            Bound::Excluded(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
            other => *other = Bound::Excluded(key.to_vec()),
        }
    }

    /// Whether a key is within the upper end, or the lower one.
    fn has(&self, key: &[u8], upper: bool) -> bool {
        match if upper { &self.high } else { &self.low } {
            Bound::Unbounded => true,
            Bound::Included(end) if upper => key <= &end[..],
            Bound::Included(end) => key >= &end[..],
            Bound::Excluded(end) if upper => key < &end[..],
            Bound::Excluded(end) => key > &end[..],
        }
    }

    /// The end at which it goes on.
    #[cfg(feature = "async")]
    pub(crate) fn end(&mut self) -> &mut OwnedBound {
        if self.reverse { &mut self.high } else { &mut self.low }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let out = postcard::to_extend(self, MAGIC.to_vec());
        let mut out = out.expect("plain fields have bytes");
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes).ok_or_else(|| {
            Error::invalid(format!(
                "these {} bytes are no cursor of a scan, or were changed: keep what `cursor` gave as it is",
                bytes.len()
            ))
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return None;
        }
        let fields = body.strip_prefix(MAGIC)?;
        let (cursor, rest) = postcard::take_from_bytes(fields).ok()?;
        rest.is_empty().then_some(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_as_bytes_and_nothing_else_passes() {
        let mut c = Cursor::new(&("a".."c"));
        c.reverse = true;
        c.left = 6;
        let mut page = Page::new();
        page.push(b"bb", b"");
        c.taken(&page, 1);
        let bytes = c.encode();
        assert_eq!(Cursor::decode(&bytes).expect("whole"), c);
        assert_eq!((c.left, &c.high), (6, &Bound::Excluded(b"bb".to_vec())));
        for cut in 0..bytes.len() {
            assert!(Cursor::decode(&bytes[..cut]).is_err());
            let mut flipped = bytes.clone();
            flipped[cut] ^= 1;
            assert!(Cursor::decode(&flipped).is_err());
        }
    }
}
