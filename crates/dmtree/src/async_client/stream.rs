//! A scan as a stream of pairs.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dmtree_fabric::Result;
use dmtree_parts::{Page, Resume};
use futures_core::Stream;
use futures_core::stream::FusedStream;

use super::reply::Reply;
use super::scan::AsyncScan;

/// The pairs of an [`AsyncScan`], one by one; made by [`AsyncScan::pairs`]. It asks for a page when
/// the former one is given out. After an error the next poll asks for the same page again.
#[derive(Debug)]
pub struct AsyncPairs {
    scan: AsyncScan,
    /// The page that is given out, and the pair that comes next.
    page: (Page, usize),
    asked: Option<Reply<(Page, Option<Resume>)>>,
}

impl AsyncPairs {
    pub(super) fn of(scan: AsyncScan) -> Self {
        Self { scan, page: (Page::new(), 0), asked: None }
    }
}

impl Stream for AsyncPairs {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let it = self.get_mut();
        loop {
            let (page, next) = &mut it.page;
            if let Some((key, value)) = page.get(*next) {
                *next += 1;
                return Poll::Ready(Some(Ok((key.to_vec(), value.to_vec()))));
            }
            if it.asked.is_none() && !it.scan.has_more() {
                return Poll::Ready(None);
            }
            let asked = it.asked.get_or_insert_with(|| it.scan.fetch());
            let answer = ready!(Pin::new(asked).poll(cx));
            it.asked = None;
            match answer {
                Err(e) => return Poll::Ready(Some(Err(e))),
                Ok((page, resume)) => {
                    it.scan.gave(&page, resume);
                    it.page = (page, 0);
                }
            }
        }
    }
}

impl FusedStream for AsyncPairs {
    fn is_terminated(&self) -> bool {
        self.page.0.len() == self.page.1 && self.asked.is_none() && !self.scan.has_more()
    }
}
