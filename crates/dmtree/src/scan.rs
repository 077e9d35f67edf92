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
        Pairs {
            source: self.source,
            plan: self.plan,
            fetched: Bound::Unbounded,
            more: true,
            page_pairs: self.page_pairs,
            page: Page::new(),
            at: 0,
        }
    }
}

impl<S: PageSource> IntoIterator for Scan<S> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    type IntoIter = Pairs<S>;
    fn into_iter(self) -> Pairs<S> {
        self.pairs()
    }
}

/// A scan that runs: an iterator over pairs. It ends after an error; [`Pairs::cursor`] then says
/// where to go on.
#[derive(Debug)]
pub struct Pairs<S> {
    source: S,
    /// What is left when the pairs taken so far are subtracted, but for the end at which the scan
    /// goes on: that follows from the last pair taken of the page.
    plan: Cursor,
    /// Where the next page begins, as the index said; meaningful after the first page.
    fetched: OwnedBound,
    more: bool,
    page_pairs: usize,
    page: Page,
    at: usize,
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
        while self.at >= self.page.len() {
            if !self.more {
                return Ok(None);
            }
            self.fetch()?;
        }
        let i = self.at;
        self.at += 1;
        self.plan.left -= 1;
        Ok(self.page.get(i))
    }

    /// What is left of this scan, as bytes to keep: [`Index::resume`](crate::Index::resume) goes on
    /// behind the last pair that was taken, in this process or another one, at any later time.
    pub fn cursor(&self) -> Vec<u8> {
        let mut plan = self.plan.clone();
        plan.taken(&self.page, self.at);
        plan.encode()
    }

    #[inline(never)]
    fn fetch(&mut self) -> Result<()> {
        self.plan.taken(&self.page, self.at);
        self.at = 0;
        self.page.clear();
        if is_empty(&self.plan.low, &self.plan.high) {
            self.more = false;
            return Ok(());
        }
        let limit = self.page_pairs.min(usize::try_from(self.plan.left).unwrap_or(usize::MAX));
        let from = match &self.fetched {
            Bound::Unbounded if self.plan.reverse => &self.plan.high,
            Bound::Unbounded => &self.plan.low,
            known => known,
        };
        let (low, high) = match self.plan.reverse {
            false => (borrowed(from), borrowed(&self.plan.high)),
            true => (borrowed(&self.plan.low), borrowed(from)),
        };
        let request = ScanRequest { low, high, reverse: self.plan.reverse, limit };
        match self.source.page(&request, &mut self.page) {
            Ok(Some(Resume(next))) => self.fetched = next,
            Ok(None) => self.more = false,
            Err(e) => {
                // A caller that skips errors must not loop for ever.
                self.more = false;
                self.page.clear();
                return Err(e);
            }
        }
        Ok(())
    }
}

impl<S: PageSource> Iterator for Pairs<S> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;
    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.next_ref().transpose()?;
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
        let Some((key, _)) = last else { return };
        match self.end() {
            Bound::Excluded(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
            other => *other = Bound::Excluded(key.to_vec()),
        }
    }

    /// The end at which it goes on.
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
