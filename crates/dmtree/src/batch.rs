//! Several writes together.

use std::collections::BTreeSet;

use dmtree_engine::DmTree;
use dmtree_fabric::{Effect, Error, ErrorKind, Result};
use dmtree_parts::{Outcome, RangeIndex, Write, check_key};

/// Writes to be applied together by [`Index::write_batch`](crate::Index::write_batch): fewer round
/// trips than one by one.
///
/// **Not atomic**: it is no transaction.
///
/// ```
/// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
/// # let index = pool.open_or_create("users", dmtree::Options::default())?;
/// let mut batch = dmtree::Batch::new();
/// batch.put("ada", "1815").insert("alan", "1912").delete("grace");
/// let outcomes = index.write_batch(&batch)?;
/// assert_eq!(outcomes[2].as_ref().ok(), Some(&dmtree::Outcome::NotFound));
/// # Ok::<(), dmtree::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    ops: Vec<Op>,
}

/// The lengths of a write's bytes, which follow those of the write before. Small: a batch of many
/// writes takes longer to be made than single writes otherwise.
#[derive(Clone, Debug)]
struct Op {
    what: What,
    key: u32,
    value: u32,
    /// The value that must be there, for compare-and-set.
    expected: u32,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Put,
    Insert,
    Update,
    Delete,
    CompareAndSet,
    CompareAndDelete,
}

impl Batch {
    /// No writes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.add(What::Put, key.as_ref(), value.as_ref(), &[])
    }

    /// Sets the value of a key that must be absent.
    pub fn insert(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.add(What::Insert, key.as_ref(), value.as_ref(), &[])
    }

    /// Sets the value of a key that must be there.
    pub fn update(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut Self {
        self.add(What::Update, key.as_ref(), value.as_ref(), &[])
    }

    /// Removes a key.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> &mut Self {
        self.add(What::Delete, key.as_ref(), &[], &[])
    }

    /// Sets the value of a key that has the value `expected`.
    pub fn compare_and_set(
        &mut self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
    ) -> &mut Self {
        self.add(What::CompareAndSet, key.as_ref(), new.as_ref(), expected.as_ref())
    }

    /// Removes a key that has the value `expected`.
    pub fn compare_and_delete(
        &mut self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
    ) -> &mut Self {
        self.add(What::CompareAndDelete, key.as_ref(), &[], expected.as_ref())
    }

    /// How many writes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Forgets the writes, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
    }

    fn add(&mut self, what: What, key: &[u8], value: &[u8], expected: &[u8]) -> &mut Self {
        let mut keep = |bytes: &[u8]| {
            // What is longer is refused at this length, too.
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.bytes.extend_from_slice(&bytes[..length as usize]);
            length
        };
        let (key, value, expected) = (keep(key), keep(value), keep(expected));
        self.ops.push(Op { what, key, value, expected });
        self
    }

    /// Refuses writes with keys or values out of range.
    pub(crate) fn check(&self) -> Result<()> {
        self.writes().try_for_each(|(key, write)| check_key(key).and_then(|()| write.check()))
    }

    pub(crate) fn writes(&self) -> impl Iterator<Item = (&[u8], Write<'_>)> {
        let mut rest = &self.bytes[..];
        self.ops.iter().map(move |op| {
            let mut next = |length: u32| {
                let (bytes, after) = rest.split_at(length as usize);
                rest = after;
                bytes
            };
            let (key, value, expected) = (next(op.key), next(op.value), next(op.expected));
            let write = match op.what {
                What::Put => Write::Put(value),
                What::Insert => Write::Insert(value),
                What::Update => Write::Update(value),
                What::Delete => Write::Delete,
                What::CompareAndSet => Write::CompareAndSet { expected, new: Some(value) },
                What::CompareAndDelete => Write::CompareAndSet { expected, new: None },
            };
            (key, write)
        })
    }
}

/// The attempts at the writes of a batch: those that had no effect because the membership ended are
/// made again, in order.
#[derive(Default)]
pub(crate) struct Repeats {
    outcomes: Vec<Result<Outcome>>,
    /// The writes of the next attempt; `None` for all.
    open: Option<Vec<usize>>,
}

impl Repeats {
    /// Makes those of the batch's writes that are open.
    ///
    /// # Errors
    /// That of a write which another attempt may make.
    pub(crate) async fn attempt(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        tree: &mut DmTree,
    ) -> Result<()> {
        match &self.open {
            None => {
                self.outcomes.reserve(writes.len());
                tree.write_many(writes, &mut self.outcomes).await?;
            }
            Some(open) => {
                let left: Vec<_> = open.iter().map(|i| writes[*i]).collect();
                let mut outcomes = Vec::with_capacity(left.len());
                tree.write_many(&left, &mut outcomes).await?;
                for (i, outcome) in open.iter().zip(outcomes) {
                    self.outcomes[*i] = outcome;
                }
            }
        }
        if self.outcomes.iter().all(Result::is_ok) {
            return Ok(());
        }
        let open = self.repeatable(writes);
        match open.first().and_then(|i| self.outcomes[*i].as_ref().err().cloned()) {
            Some(e) => {
                self.open = Some(open);
                Err(e)
            }
            None => Ok(()),
        }
    }

    /// Writes without an effect behind which no other write of the key may have had one: the order
    /// of each key's writes stays.
    fn repeatable(&self, writes: &[(&[u8], Write<'_>)]) -> Vec<usize> {
        let mut settled = BTreeSet::new();
        let mut open = Vec::new();
        for (i, outcome) in self.outcomes.iter().enumerate().rev() {
            let key = writes[i].0;
            let repeats = |e: &Error| e.kind() == ErrorKind::Revoked && e.effect() == Effect::None;
            if outcome.as_ref().is_err_and(repeats) && !settled.contains(key) {
                open.push(i);
            } else {
                settled.insert(key);
            }
        }
        open.reverse();
        open
    }

    /// The outcomes, after the last attempt.
    pub(crate) fn end(mut self, last: Result<()>) -> Result<Vec<Result<Outcome>>> {
        match (last, self.open) {
            (Ok(()), _) => Ok(self.outcomes),
            (Err(e), None) => Err(e),
            (Err(e), Some(open)) => {
                open.into_iter().for_each(|i| self.outcomes[i] = Err(e.clone()));
                Ok(self.outcomes)
            }
        }
    }
}
