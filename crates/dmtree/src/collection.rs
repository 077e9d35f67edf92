//! The calls that users of maps and embedded stores know, made of the index's own.
//!
//! Each says what of it is atomic: an operation on one key is, a loop over several is not.

use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_parts::Outcome;

use crate::bounds::KeyRange;
use crate::scan::Pairs;
use crate::{Batch, Index};

/// Deletes of one batch of [`Index::delete_range`].
const BATCH_PAIRS: usize = 256;
/// An operation that other clients undo so often gives up.
const MOST_TRIES: u32 = 10_000;

/// A pair.
type Pair = (Vec<u8>, Vec<u8>);

impl Index {
    /// A view of it through types of keys and values.
    #[cfg(feature = "serde")]
    pub fn typed<K, V>(&self) -> crate::Typed<K, V>
    where
        K: crate::keys::EncodeKey + crate::keys::DecodeKey,
        V: serde::Serialize + serde::de::DeserializeOwned,
    {
        crate::Typed::of(self.clone())
    }

    /// All pairs in key order, from both ends if wanted: a scan, as [`Index::scan`].
    pub fn iter(&self) -> Pairs<Self> {
        self.scan(..).pairs()
    }

    /// The pairs of a range in key order: a scan, as [`Index::scan`].
    pub fn range(&self, range: impl KeyRange) -> Pairs<Self> {
        self.scan(range).pairs()
    }

    /// The pairs with keys that begin with `prefix`, in key order: a scan, as [`Index::scan`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Pairs<Self> {
        self.scan_prefix(prefix).pairs()
    }

    /// All keys in order: a scan, as [`Index::scan`].
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = Result<Vec<u8>>> + use<> {
        self.iter().map(|pair| pair.map(|(key, _)| key))
    }

    /// All values in the order of their keys: a scan, as [`Index::scan`].
    pub fn values(&self) -> impl DoubleEndedIterator<Item = Result<Vec<u8>>> + use<> {
        self.iter().map(|pair| pair.map(|(_, value)| value))
    }

    /// The pair with the lowest key; it was that at some instant of the call.
    pub fn first(&self) -> Result<Option<Pair>> {
        self.scan(..).limit(1).pairs().next().transpose()
    }

    /// The pair with the highest key; it was that at some instant of the call.
    pub fn last(&self) -> Result<Option<Pair>> {
        self.scan(..).rev().limit(1).pairs().next().transpose()
    }

    /// Removes the pair with the lowest key. The removal is atomic, so that of several callers each
    /// gets another pair; a lower key that is inserted meanwhile may be left.
    pub fn pop_first(&self) -> Result<Option<Pair>> {
        self.pop(Self::first)
    }

    /// Removes the pair with the highest key; as [`Index::pop_first`].
    pub fn pop_last(&self) -> Result<Option<Pair>> {
        self.pop(Self::last)
    }

    fn pop(&self, end: impl Fn(&Self) -> Result<Option<Pair>>) -> Result<Option<Pair>> {
        for _ in 0..MOST_TRIES {
            let Some((key, value)) = end(self)? else { return Ok(None) };
            if self.compare_and_delete(&key, &value)? == Outcome::Done {
                return Ok(Some((key, value)));
            }
        }
        Err(contended("the end of the index"))
    }

    /// Whether there was no key at some instant of the call.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.first()?.is_none())
    }

    /// The number of pairs: a scan of all of them, as [`Index::scan`].
    pub fn len(&self) -> Result<u64> {
        let mut pairs = self.iter();
        let mut len = 0;
        while pairs.next_ref()?.is_some() {
            len += 1;
        }
        Ok(len)
    }

    /// About how many keys there are, from 64 samples of the structure: some hundred READs for any
    /// size. [`Index::len`] counts.
    pub fn len_estimate(&self) -> Result<u64> {
        self.here(|s| s.len_estimate())
    }

    /// The value of a key; one that is absent gets this value. Atomic: of several callers one
    /// inserts its value, and all get it.
    pub fn get_or_insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let (key, value) = (key.as_ref(), value.as_ref());
        for _ in 0..MOST_TRIES {
            if let Some(found) = self.get(key)? {
                return Ok(found);
            }
            if self.insert(key, value)? == Outcome::Done {
                return Ok(value.to_vec());
            }
        }
        Err(contended("the key"))
    }

    /// Replaces the value of a key by what `change` makes of it (`None` is an absent key, before
    /// and after), and returns the former one. Atomic: `change` is called again when another client
    /// has changed the value meanwhile.
    ///
    /// ```
    /// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
    /// # let index = pool.open_or_create("users", dmtree::Options::default())?;
    /// index.put("ada", "1815")?;
    /// let former = index.fetch_update("ada", |year| year.map(|y| [y, b"?"].concat()))?;
    /// assert_eq!(former.as_deref(), Some(&b"1815"[..]));
    /// assert_eq!(index.get("ada")?.as_deref(), Some(&b"1815?"[..]));
    /// # Ok::<(), dmtree::Error>(())
    /// ```
    pub fn fetch_update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let key = key.as_ref();
        for _ in 0..MOST_TRIES {
            let old = self.get(key)?;
            let outcome = match (&old, change(old.as_deref())) {
                (Some(old), Some(new)) => self.compare_and_set(key, old, new)?,
                (Some(old), None) => self.compare_and_delete(key, old)?,
                (None, Some(new)) => self.insert(key, new)?,
                (None, None) => Outcome::Done,
            };
            if outcome == Outcome::Done {
                return Ok(old);
            }
        }
        Err(contended("the key"))
    }

    /// Adds to a counter, 8 bytes in little endian, and returns the former number; an absent key
    /// counts as 0. Atomic. It wraps around.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a value that is no counter.
    pub fn fetch_add(&self, key: impl AsRef<[u8]>, add: i64) -> Result<i64> {
        let mut former = Ok(0);
        self.fetch_update(key, |old| {
            former = old.map_or(Ok(0), counter);
            match &former {
                Ok(number) => Some(number.wrapping_add(add).to_le_bytes().to_vec()),
                Err(_) => old.map(<[u8]>::to_vec),
            }
        })?;
        former
    }

    /// Removes all keys of a range; how many it has removed. Not atomic: a scan with batches of
    /// deletes. Keys that are inserted meanwhile may be left.
    pub fn delete_range(&self, range: impl KeyRange) -> Result<u64> {
        let (mut pairs, mut batch, mut deleted) = (self.range(range), Batch::new(), 0);
        while let Some((key, _)) = pairs.next_ref()? {
            batch.delete(key);
            if batch.len() == BATCH_PAIRS {
                deleted += self.delete_all(&std::mem::take(&mut batch))?;
            }
        }
        Ok(deleted + self.delete_all(&batch)?)
    }

    fn delete_all(&self, batch: &Batch) -> Result<u64> {
        let mut deleted = 0;
        for outcome in self.write_batch(batch)? {
            deleted += u64::from(outcome? == Outcome::Done);
        }
        Ok(deleted)
    }

    /// Removes all keys; as [`Index::delete_range`].
    pub fn clear(&self) -> Result<()> {
        self.delete_range(..).map(drop)
    }

    /// Removes the pairs that `keep` refuses; how many it has removed. Not atomic: a scan; each
    /// removal is, so that a pair that has changed since `keep` saw it stays.
    pub fn retain(&self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<u64> {
        let (mut pairs, mut removed) = (self.iter(), 0);
        while let Some((key, value)) = pairs.next_ref()? {
            if !keep(key, value) {
                removed += u64::from(self.compare_and_delete(key, value)? == Outcome::Done);
            }
        }
        Ok(removed)
    }
}

fn counter(value: &[u8]) -> Result<i64> {
    let bytes: [u8; 8] = value.try_into().map_err(|_| {
        Error::invalid(format!("a value of {} bytes is no counter: it has 8", value.len()))
    })?;
    Ok(i64::from_le_bytes(bytes))
}

fn contended(what: &str) -> Error {
    let message = format!("other clients have changed {what} {MOST_TRIES} times meanwhile");
    Error::new(ErrorKind::Contended, message)
}
