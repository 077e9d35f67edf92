//! Pairs of a source that may fail, for a bulk load.

use dmtree_fabric::{Error, Result};

/// A pair.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// The pairs of a source. One that fails must not end in a load of what came before: a pair with an
/// empty key, which no index takes, makes the load fail.
pub(crate) struct Feed<I> {
    pairs: I,
    failure: Option<Error>,
    /// How many are still to come, if that is known.
    left: Option<u64>,
}

impl<I: Iterator<Item = Result<Pair>>> Feed<I> {
    pub(crate) fn new(pairs: I, count: Option<u64>) -> Self {
        Self { pairs, failure: None, left: count }
    }

    /// The result of the load: the error of the source, if it has failed.
    pub(crate) fn ended<T>(self, loaded: Result<T>) -> Result<T> {
        self.failure.map_or(loaded, Err)
    }
}

impl<I: Iterator<Item = Result<Pair>>> Iterator for Feed<I> {
    type Item = Pair;

    fn next(&mut self) -> Option<Pair> {
        if self.failure.is_some() {
            return None;
        }
        match self.pairs.next()? {
            Ok(pair) => {
                self.left = self.left.map(|left| left.saturating_sub(1));
                Some(pair)
            }
            Err(e) => {
                self.failure = Some(e);
                Some((Vec::new(), Vec::new()))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self.left {
            Some(left) => (left as usize, Some(left as usize)),
            None => (0, None),
        }
    }
}
