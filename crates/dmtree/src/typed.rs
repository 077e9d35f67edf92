//! An index with keys and values of Rust types: keys in the order of their type ([`crate::keys`]),
//! values by serde in the postcard format.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use dmtree_fabric::{Error, Result};
use dmtree_parts::Outcome;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Index;
use crate::keys::{DecodeKey, EncodeKey, decode, encode};
use crate::scan::Pairs;

/// A view of an index through a type of keys and one of values. Any number of views share the
/// index, and bytes that were stored otherwise are an error when they are read.
///
/// Atomic is what is atomic at the methods of [`Index`] with the same names. Two values are the
/// same to [`Typed::compare_and_set`] and [`Typed::compare_and_swap`] when their bytes are.
///
/// ```
/// # let pool = dmtree::Pool::embedded().memory("8MiB").open()?;
/// let years = pool.open_or_create("years", dmtree::Options::default())?.typed::<String, u16>();
/// years.put("ada", &1815)?;
/// years.put("alan", &1912)?;
/// assert_eq!(years.get("ada")?, Some(1815));
/// let all: Vec<_> = years.iter().collect::<Result<_, _>>()?;
/// assert_eq!(all, [("ada".to_owned(), 1815), ("alan".to_owned(), 1912)]);
/// # Ok::<(), dmtree::Error>(())
/// ```
pub struct Typed<K, V> {
    index: Index,
    types: PhantomData<fn(K, V)>,
}

impl<K, V> Clone for Typed<K, V> {
    fn clone(&self) -> Self {
        Self { index: self.index.clone(), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for Typed<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Typed({:?})", self.index)
    }
}

impl<K, V> Typed<K, V>
where
    K: EncodeKey + DecodeKey,
    V: Serialize + DeserializeOwned,
{
    pub(crate) fn of(index: Index) -> Self {
        Self { index, types: PhantomData }
    }

    /// The index.
    pub fn untyped(&self) -> &Index {
        &self.index
    }

    /// The value of a key.
    pub fn get<Q>(&self, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.get(encode(key))?.map(|bytes| value(&bytes)).transpose()
    }

    /// Whether a key is there.
    pub fn contains_key<Q>(&self, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        Ok(self.index.get(encode(key))?.is_some())
    }

    /// Sets the value of a key.
    pub fn put<Q>(&self, key: &Q, value: &V) -> Result<Outcome>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.put(encode(key), bytes(value)?)
    }

    /// Sets the value of a key that must be absent.
    pub fn insert<Q>(&self, key: &Q, value: &V) -> Result<Outcome>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.insert(encode(key), bytes(value)?)
    }

    /// Sets the value of a key that must be there.
    pub fn update<Q>(&self, key: &Q, value: &V) -> Result<Outcome>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.update(encode(key), bytes(value)?)
    }

    /// Removes a key.
    pub fn delete<Q>(&self, key: &Q) -> Result<Outcome>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.delete(encode(key))
    }

    /// Sets a value and returns the former one. See [`Session::replace`](crate::Session::replace).
    pub fn replace<Q>(&self, key: &Q, value: &V) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.replace(encode(key), bytes(value)?)?.map(|old| self::value(&old)).transpose()
    }

    /// Removes a key and returns its value. See [`Session::take`](crate::Session::take).
    pub fn take<Q>(&self, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.take(encode(key))?.map(|old| self::value(&old)).transpose()
    }

    /// Sets the value of a key that has the value `expected`.
    pub fn compare_and_set<Q>(&self, key: &Q, expected: &V, new: &V) -> Result<Outcome>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        self.index.compare_and_set(encode(key), bytes(expected)?, bytes(new)?)
    }

    /// Sets a value in the place of another, and returns what the key had. See
    /// [`Session::compare_and_swap`](crate::Session::compare_and_swap).
    pub fn compare_and_swap<Q>(&self, key: &Q, expected: &V, new: &V) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        let found = self.index.compare_and_swap(encode(key), bytes(expected)?, bytes(new)?)?;
        found.map(|found| value(&found)).transpose()
    }

    /// The value of a key; one that is absent gets this value.
    pub fn get_or_insert<Q>(&self, key: &Q, absent: &V) -> Result<V>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        value(&self.index.get_or_insert(encode(key), bytes(absent)?)?)
    }

    /// Replaces the value of a key by what `change` makes of it, and returns the former one; as
    /// [`Index::fetch_update`].
    pub fn fetch_update<Q>(
        &self,
        key: &Q,
        mut change: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<Option<V>>
    where
        K: Borrow<Q>,
        Q: EncodeKey + ?Sized,
    {
        let mut failure = None;
        let former = self.index.fetch_update(encode(key), |old| {
            let changed = old
                .map(value)
                .transpose()
                .and_then(|old| change(old).map(|new| bytes(&new)).transpose());
            changed.unwrap_or_else(|e| {
                // Nothing changes.
                failure = Some(e);
                old.map(<[u8]>::to_vec)
            })
        })?;
        match failure {
            Some(e) => Err(e),
            None => former.map(|bytes| value(&bytes)).transpose(),
        }
    }

    /// All pairs in the order of keys, from both ends if wanted.
    pub fn iter(&self) -> TypedPairs<K, V> {
        self.range(..)
    }

    /// The pairs of a range of keys, from both ends if wanted.
    pub fn range(&self, keys: impl RangeBounds<K>) -> TypedPairs<K, V> {
        let end = |end: Bound<&K>| end.map(|key| encode(key));
        let (low, high) = (end(keys.start_bound()), end(keys.end_bound()));
        let range = (low.as_ref().map(Vec::as_slice), high.as_ref().map(Vec::as_slice));
        TypedPairs { pairs: self.index.range(range), types: PhantomData }
    }

    /// The pair with the lowest key.
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.index.first()?.map(pair).transpose()
    }

    /// The pair with the highest key.
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.index.last()?.map(pair).transpose()
    }

    /// Removes the pair with the lowest key.
    pub fn pop_first(&self) -> Result<Option<(K, V)>> {
        self.index.pop_first()?.map(pair).transpose()
    }

    /// Removes the pair with the highest key.
    pub fn pop_last(&self) -> Result<Option<(K, V)>> {
        self.index.pop_last()?.map(pair).transpose()
    }
}

/// A scan of typed pairs.
pub struct TypedPairs<K, V> {
    pairs: Pairs<Index>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> fmt::Debug for TypedPairs<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TypedPairs({:?})", self.pairs)
    }
}

impl<K: DecodeKey, V: DeserializeOwned> Iterator for TypedPairs<K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pairs.next().map(|found| pair(found?))
    }
}

impl<K: DecodeKey, V: DeserializeOwned> DoubleEndedIterator for TypedPairs<K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.pairs.next_back().map(|found| pair(found?))
    }
}

fn bytes<V: Serialize>(value: &V) -> Result<Vec<u8>> {
    let bytes = postcard::to_stdvec(value);
    bytes.map_err(|e| Error::invalid(format!("the value has no bytes: {e}")))
}

fn value<V: DeserializeOwned>(bytes: &[u8]) -> Result<V> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Error::invalid(format!(
            "the value of {} bytes is no {}: it was stored as another type",
            bytes.len(),
            std::any::type_name::<V>()
        ))),
    }
}

fn pair<K: DecodeKey, V: DeserializeOwned>((k, v): (Vec<u8>, Vec<u8>)) -> Result<(K, V)> {
    Ok((decode(&k)?, value(&v)?))
}
