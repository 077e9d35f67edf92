//! Range reads for async code.

use std::ops::Bound;
use std::sync::Arc;

use dmtree_fabric::Result;
use dmtree_parts::{Page, Resume};

use super::mailbox::Door;
use super::reply::Reply;
use super::request::ScanPage;
use crate::bounds::is_empty;
use crate::scan::{Cursor, Scan};

/// A scan for async code, a page at a time; made by
/// [`AsyncClient::scan`](crate::AsyncClient::scan). Promises what [`Scan`](crate::Scan) promises.
///
/// ```
/// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
/// # let index = pool.open_or_create("users", dmtree::Options::default())?;
/// # index.put("ada", "1815")?;
/// # let client = index.async_client()?;
/// # pollster::block_on(async {
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
pub type AsyncScan = Scan<AsyncPages>;

/// The source of the pages of an [`AsyncScan`].
#[derive(Debug)]
pub struct AsyncPages {
    door: Arc<Door>,
    more: bool,
}

impl AsyncScan {
    /// What is left behind the pages given out is `plan`.
    pub(super) fn asked_of(door: Arc<Door>, plan: Cursor) -> Self {
        Self::from_cursor(AsyncPages { door, more: true }, plan)
    }

    /// The next page, not empty; `None` at the end. Dropped before it is ready, nothing is lost:
    /// the next call asks for the same page.
    ///
    /// # Errors
    /// Those of the index; `Busy`, `Closed`. The next call tries again.
    pub async fn next_page(&mut self) -> Result<Option<Page>> {
        while self.has_more() {
            let (page, resume) = self.fetch().await?;
            self.gave(&page, resume);
            if !page.is_empty() {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// The pairs one by one, as a stream: what is left of the scan.
    ///
    /// ```
    /// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
    /// # let index = pool.open_or_create("users", dmtree::Options::default())?;
    /// # index.put("ada", "1815")?;
    /// # let client = index.async_client()?;
    /// use futures_core::Stream;
    /// use std::{future::poll_fn, pin::pin};
    ///
    /// # pollster::block_on(async {
    /// let mut pairs = pin!(client.scan("a"..).pairs());
    /// // `StreamExt::next` of the crate `futures` is shorter.
    /// let first = poll_fn(|cx| pairs.as_mut().poll_next(cx)).await.transpose()?;
    /// assert_eq!(first, Some((b"ada".to_vec(), b"1815".to_vec())));
    /// # Ok::<(), dmtree::Error>(())
    /// # })?;
    /// # Ok::<(), dmtree::Error>(())
    /// ```
    #[cfg(feature = "stream")]
    pub fn pairs(self) -> super::AsyncPairs {
        super::AsyncPairs::of(self)
    }

    pub(super) fn has_more(&self) -> bool {
        self.source.more && self.plan.left > 0 && !is_empty(&self.plan.low, &self.plan.high)
    }

    /// A page was given out: what is left is behind it.
    pub(super) fn gave(&mut self, page: &Page, resume: Option<Resume>) {
        self.plan.left = self.plan.left.saturating_sub(page.len() as u64);
        match (resume, page.iter().next_back()) {
            (None, last) => {
                self.source.more = false;
                // For a cursor taken now: nothing is left behind the last pair.
                if let Some((key, _)) = last {
                    *self.plan.end() = Bound::Excluded(key.to_vec());
                }
            }
            (Some(Resume(next)), _) => *self.plan.end() = next,
        }
    }

    /// What is left behind the pages given out, as bytes to keep. See
    /// [`Pairs::cursor`](crate::Pairs::cursor).
    pub fn cursor(&self) -> Vec<u8> {
        self.plan.encode()
    }

    pub(super) fn fetch(&self) -> Reply<(Page, Option<Resume>)> {
        let plan = self.plan.clone();
        let limit = self.page_pairs.min(usize::try_from(plan.left).unwrap_or(usize::MAX));
        Reply::new(&self.source.door, ScanPage(plan, limit))
    }
}
