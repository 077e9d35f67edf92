//! Turns of the writers of keys: a fixed number of local mutexes, of which a key's hash picks one.

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{Endpoint, Result, WaitReason};

/// The mutexes. Two keys may share one: that costs waiting.
#[derive(Debug)]
pub(crate) struct Turns(Box<[FifoMutex]>);

/// Mutexes that a writer has; released when dropped.
#[must_use = "the turns end when this is dropped"]
pub(crate) struct Held<'t> {
    all: &'t Turns,
    held: Vec<usize>,
}

impl Turns {
    pub(crate) fn new(mutexes: usize) -> Self {
        Self((0..mutexes.max(1)).map(|_| FifoMutex::new()).collect())
    }

    /// The turn of a key with this hash, if it is free.
    pub(crate) fn try_take(&self, hash: u64) -> Option<Held<'_>> {
        let i = (hash % self.0.len() as u64) as usize;
        self.0[i].try_acquire().then(|| Held { all: self, held: vec![i] })
    }

    /// Waits for the turns of keys with these hashes, in one order for all writers.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub(crate) async fn take(
        &self,
        ep: &Endpoint,
        hashes: impl IntoIterator<Item = u64>,
    ) -> Result<Held<'_>> {
        let n = self.0.len() as u64;
        let mut wanted: Vec<usize> = hashes.into_iter().map(|hash| (hash % n) as usize).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut held = Held { all: self, held: Vec::with_capacity(wanted.len()) };
        for i in wanted {
            let why = WaitReason { what: "the turn of a writer", at: i as u64 };
            self.0[i].acquire(ep, why).await?;
            held.held.push(i);
        }
        Ok(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for i in &self.held {
            self.all.0[*i].release();
        }
    }
}
