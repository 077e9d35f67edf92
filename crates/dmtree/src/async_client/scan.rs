//! Range reads for async code.

use std::ops::Bound;
use std::sync::Arc;

use dmtree_fabric::Result;
use dmtree_parts::{Page, Resume};

use super::mailbox::Door;
use super::reply::Reply;
use super::request::ScanPage;
use crate::bounds::is_empty;
use crate::scan::{Cursor, DEFAULT_PAGE_PAIRS};

/// A scan for async code, a page at a time; made by
/// [`AsyncClient::scan`](crate::AsyncClient::scan). Promises what [`Scan`](crate::Scan) promises.
///
/// ```
/// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
/// # let index = pool.open_or_create("users", dmtree::Options::default())?;
/// # index.put("ada", "1815")?;
/// # let client = index.async_client()?;
/// # futures_executor::block_on(async {
/// let mut scan = client.scan("a".."b").limit(1000);
/// while let Some(page) = scan.next_page().await? {
///     for (key, value) in page.iter() {
///         assert_eq!((key, value), (&b"ada"[..], &b"1815"[..]));
///     }
/// }
/// # Ok::<(), dmtree::Error>(())
/// # })?;
/// # Ok::<(), dmtree::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a scan does nothing before a page is asked for"]
pub struct AsyncScan {
    door: Arc<Door>,
    /// What is left behind the pages given out.
    plan: Cursor,
    more: bool,
    page_pairs: usize,
}

impl AsyncScan {
    pub(super) fn new(door: Arc<Door>, plan: Cursor) -> Self {
        Self { door, plan, more: true, page_pairs: DEFAULT_PAGE_PAIRS }
    }

    /// From the upper end downwards. To be called before the first page.
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

    /// At most `pairs` pairs in a page, 256 by default.
    pub fn page_size(mut self, pairs: usize) -> Self {
        self.page_pairs = pairs.max(1);
        self
    }

    /// The next page, not empty; `None` at the end. Dropped before it is ready, nothing is lost:
    /// the next call asks for the same page.
    ///
    /// # Errors
    /// Those of the index; `Busy`, `Closed`. The next call tries again.
    pub async fn next_page(&mut self) -> Result<Option<Page>> {
        while self.more && self.plan.left > 0 && !is_empty(&self.plan.low, &self.plan.high) {
            let (page, resume) = self.fetch().await?;
            self.plan.left = self.plan.left.saturating_sub(page.len() as u64);
            match (resume, page.iter().next_back()) {
                (None, last) => {
                    self.more = false;
                    // For a cursor taken now: nothing is left behind the last pair.
                    if let Some((key, _)) = last {
                        self.set_end(Bound::Excluded(key.to_vec()));
                    }
                }
                (Some(Resume(next)), _) => self.set_end(next),
            }
            if !page.is_empty() {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// What is left behind the pages given out, as bytes to keep. See
    /// [`Pairs::cursor`](crate::Pairs::cursor).
    pub fn cursor(&self) -> Vec<u8> {
        self.plan.encode()
    }

    fn set_end(&mut self, end: Bound<Vec<u8>>) {
        if self.plan.reverse {
            self.plan.high = end;
        } else {
            self.plan.low = end;
        }
    }

    fn fetch(&self) -> Reply<(Page, Option<Resume>)> {
        let plan = self.plan.clone();
        let limit = self.page_pairs.min(usize::try_from(plan.left).unwrap_or(usize::MAX));
        Reply::new(&self.door, ScanPage(plan, limit))
    }
}
