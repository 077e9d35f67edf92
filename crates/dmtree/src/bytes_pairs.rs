//! A scan with keys and values as `bytes::Bytes`.

use bytes::Bytes;
use dmtree_fabric::Result;

use crate::scan::{PageSource, Pairs};

/// A pair, both in the memory of its page.
type Pair = (Bytes, Bytes);

/// A scan that runs, with pairs as `bytes::Bytes`; made by
/// [`Scan::into_bytes`](crate::Scan::into_bytes). It ends after an error.
#[derive(Debug)]
pub struct BytesPairs<S: PageSource> {
    pairs: Pairs<S>,
    page: std::vec::IntoIter<Pair>,
}

impl<S: PageSource> BytesPairs<S> {
    /// The pairs of a scan that has not begun.
    pub(crate) fn of(pairs: Pairs<S>) -> Self {
        Self { pairs, page: Vec::new().into_iter() }
    }
}

impl<S: PageSource> Iterator for BytesPairs<S> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.page.next() {
                return Some(Ok(pair));
            }
            match self.pairs.next_page() {
                Ok(Some(page)) => self.page = page.into_bytes().collect::<Vec<_>>().into_iter(),
                Ok(None) => return None,
                Err(e) => return Some(Err(e)),
            }
        }
    }
}
