//! Indexes: a mapping from bytes to bytes, in the order of the keys.

use std::ops::Bound;
use std::sync::Arc;

use dmtree::{Batch, LoadOrder, Outcome, Result};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice, PyTuple};

use crate::aio::AsyncIndex;
use crate::data::{all, data, pairs};
use crate::errors::OrRaise;
use crate::items::{Items, What};
use crate::pool::Handle;

/// Pairs of a long walk between two looks at signals.
const UNINTERRUPTED: usize = 65_536;

type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// An index of a pool. Any thread may use it.
#[pyclass(module = "dmtree", frozen)]
pub(crate) struct Index {
    pub(crate) handle: Arc<Handle<dmtree::Index>>,
    pub(crate) name: String,
}

impl Index {
    /// A call, without the interpreter's lock.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dmtree::Index) -> Result<T> + Send,
    ) -> PyResult<T> {
        let index = self.handle.get(py)?;
        py.detach(|| call(&index)).or_raise(py)
    }

    /// A write of one key: whether it took effect.
    fn write(
        &self,
        py: Python<'_>,
        write: impl FnOnce(&dmtree::Index) -> Result<Outcome> + Send,
    ) -> PyResult<bool> {
        Ok(self.call(py, write)? == Outcome::Done)
    }

    /// The value that a key had.
    fn former(
        &self,
        py: Python<'_>,
        write: impl FnOnce(&dmtree::Index) -> Result<Option<Vec<u8>>> + Send,
    ) -> PyResult<Option<Py<PyBytes>>> {
        Ok(self.call(py, write)?.map(|value| PyBytes::new(py, &value).unbind()))
    }

    fn items_of(&self, py: Python<'_>, what: What, over: &Over<'_>) -> PyResult<Items> {
        let mut scan = self.handle.get(py)?.scan(range(over.low, over.high)?);
        if let Some(prefix) = over.prefix {
            scan = scan.prefix(data(prefix, "prefix")?);
        }
        if over.reverse {
            scan = scan.rev();
        }
        if let Some(limit) = over.limit {
            scan = scan.limit(limit);
        }
        Ok(Items::new(&self.handle, what, scan.pairs()))
    }

    /// The pair of one end.
    fn end(
        &self,
        py: Python<'_>,
        end: impl FnOnce(&dmtree::Index) -> Result<Option<(Vec<u8>, Vec<u8>)>> + Send,
    ) -> PyResult<Option<(Py<PyBytes>, Py<PyBytes>)>> {
        let bytes = |bytes: &[u8]| PyBytes::new(py, bytes).unbind();
        Ok(self.call(py, end)?.map(|(key, value)| (bytes(&key), bytes(&value))))
    }
}

/// What an iterator covers.
struct Over<'a> {
    low: Option<&'a Bound_<'a>>,
    high: Option<&'a Bound_<'a>>,
    prefix: Option<&'a Bound_<'a>>,
    reverse: bool,
    limit: Option<u64>,
}

type Bound_<'a> = pyo3::Bound<'a, PyAny>;

/// From `low` on, and below `high`.
fn range(low: Option<&Bound_<'_>>, high: Option<&Bound_<'_>>) -> PyResult<Range> {
    let end = |key: Option<&Bound_<'_>>, what| {
        key.map(|key| data(key, what).map(|bytes| bytes.into_owned())).transpose()
    };
    Ok((
        end(low, "key")?.map_or(Bound::Unbounded, Bound::Included),
        end(high, "key")?.map_or(Bound::Unbounded, Bound::Excluded),
    ))
}

#[pymethods]
impl Index {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The value of a key, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get(
        &self,
        py: Python<'_>,
        key: &Bound_<'_>,
        default: Option<Py<PyAny>>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let key = data(key, "key")?;
        let value = self.call(py, |index| index.get(&key))?;
        Ok(value.map(|value| PyBytes::new(py, &value).into_any().unbind()).or(default))
    }

    /// The values of several keys, `None` for those that are absent: faster than one by one.
    fn get_list(&self, py: Python<'_>, keys: &Bound_<'_>) -> PyResult<Vec<Option<Py<PyBytes>>>> {
        let keys = all(keys, "key")?;
        let values = self.call(py, |index| index.get_many(&keys))?;
        let bytes = |value: Vec<u8>| PyBytes::new(py, &value).unbind();
        Ok(values.into_iter().map(|value| value.map(bytes)).collect())
    }

    /// Sets the value of a key.
    fn put(&self, py: Python<'_>, key: &Bound_<'_>, value: &Bound_<'_>) -> PyResult<()> {
        let (key, value) = (data(key, "key")?, data(value, "value")?);
        self.write(py, |index| index.put(&key, &value)).map(drop)
    }

    /// Sets the value of a key that is absent; whether it was.
    fn insert(&self, py: Python<'_>, key: &Bound_<'_>, value: &Bound_<'_>) -> PyResult<bool> {
        let (key, value) = (data(key, "key")?, data(value, "value")?);
        self.write(py, |index| index.insert(&key, &value))
    }

    /// Sets the value of a key that is there; whether it was.
    fn replace(&self, py: Python<'_>, key: &Bound_<'_>, value: &Bound_<'_>) -> PyResult<bool> {
        let (key, value) = (data(key, "key")?, data(value, "value")?);
        self.write(py, |index| index.update(&key, &value))
    }

    /// Removes a key; whether it was there.
    fn delete(&self, py: Python<'_>, key: &Bound_<'_>) -> PyResult<bool> {
        let key = data(key, "key")?;
        self.write(py, |index| index.delete(&key))
    }

    /// Sets the value of a key that has the value `expected`; whether it had.
    fn compare_and_set(
        &self,
        py: Python<'_>,
        key: &Bound_<'_>,
        expected: &Bound_<'_>,
        new: &Bound_<'_>,
    ) -> PyResult<bool> {
        let (key, expected) = (data(key, "key")?, data(expected, "value")?);
        let new = data(new, "value")?;
        self.write(py, |index| index.compare_and_set(&key, &expected, &new))
    }

    /// Removes a key that has the value `expected`; whether it had.
    fn compare_and_delete(
        &self,
        py: Python<'_>,
        key: &Bound_<'_>,
        expected: &Bound_<'_>,
    ) -> PyResult<bool> {
        let (key, expected) = (data(key, "key")?, data(expected, "value")?);
        self.write(py, |index| index.compare_and_delete(&key, &expected))
    }

    /// Sets the value of a key and returns the former one, `None` if there was none. Atomic, and no
    /// further round trip.
    fn exchange(
        &self,
        py: Python<'_>,
        key: &Bound_<'_>,
        value: &Bound_<'_>,
    ) -> PyResult<Option<Py<PyBytes>>> {
        let (key, value) = (data(key, "key")?, data(value, "value")?);
        self.former(py, |index| index.replace(&key, &value))
    }

    /// Removes a key and returns its value, `None` if there is none. Atomic, and no further round
    /// trip.
    fn take(&self, py: Python<'_>, key: &Bound_<'_>) -> PyResult<Option<Py<PyBytes>>> {
        let key = data(key, "key")?;
        self.former(py, |index| index.take(&key))
    }

    /// As `take`; a key that is absent gives `default`, or raises `KeyError` without one.
    #[pyo3(signature = (key, *default))]
    fn pop(
        &self,
        py: Python<'_>,
        key: &Bound_<'_>,
        default: &pyo3::Bound<'_, PyTuple>,
    ) -> PyResult<Py<PyAny>> {
        if default.len() > 1 {
            let e = format!("pop takes a key and one default, not {}", default.len());
            return Err(PyTypeError::new_err(e));
        }
        match (self.take(py, key)?, default.get_item(0)) {
            (Some(value), _) => Ok(value.into_any()),
            (None, Ok(default)) => Ok(default.unbind()),
            (None, Err(_)) => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// As `compare_and_set`, and returns the value that the key had: the new one is set when that
    /// is `expected`. Atomic, and no further round trip.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: &Bound_<'_>,
        expected: &Bound_<'_>,
        new: &Bound_<'_>,
    ) -> PyResult<Option<Py<PyBytes>>> {
        let (key, expected) = (data(key, "key")?, data(expected, "value")?);
        let new = data(new, "value")?;
        self.former(py, |index| index.compare_and_swap(&key, &expected, &new))
    }

    /// About how many keys there are, from samples: soon, for any size. `len` counts.
    fn len_estimate(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |index| index.len_estimate())
    }

    /// Adds to a counter, 8 bytes in little endian, and returns the former number. Atomic.
    fn fetch_add(&self, py: Python<'_>, key: &Bound_<'_>, add: i64) -> PyResult<i64> {
        let key = data(key, "key")?;
        self.call(py, |index| index.fetch_add(&key, add))
    }

    /// The value of a key, which is set to `value` if it is absent. Atomic.
    fn setdefault(
        &self,
        py: Python<'_>,
        key: &Bound_<'_>,
        value: &Bound_<'_>,
    ) -> PyResult<Py<PyBytes>> {
        let (key, value) = (data(key, "key")?, data(value, "value")?);
        let found = self.call(py, |index| index.get_or_insert(&key, &value))?;
        Ok(PyBytes::new(py, &found).unbind())
    }

    /// Sets the values of several keys, from a mapping or pairs, with fewer round trips than one by
    /// one. Not atomic: the first error is raised, and other pairs may be set.
    fn update(&self, py: Python<'_>, pairs_or_mapping: &Bound_<'_>) -> PyResult<()> {
        let mut batch = Batch::new();
        pairs(pairs_or_mapping)?.iter().for_each(|(key, value)| _ = batch.put(key, value));
        let outcomes = self.call(py, |index| index.write_batch(&batch))?;
        outcomes.into_iter().try_for_each(|outcome| outcome.or_raise(py).map(drop))
    }

    /// Stores many pairs, from a mapping or pairs: the fastest way to fill an index that is empty.
    /// With `sorted` the keys ascend strictly. How many.
    #[pyo3(signature = (pairs_or_mapping, *, sorted=false))]
    fn load_pairs(
        &self,
        py: Python<'_>,
        pairs_or_mapping: &Bound_<'_>,
        sorted: bool,
    ) -> PyResult<u64> {
        let pairs = pairs(pairs_or_mapping)?;
        let count = pairs.len() as u64;
        let order = if sorted { LoadOrder::Sorted } else { LoadOrder::Unsorted };
        self.call(py, |index| index.load(pairs, order))?;
        Ok(count)
    }

    /// Iterates over pairs from key `low` on and below `high`.
    #[pyo3(signature = (low=None, high=None, *, prefix=None, reverse=false, limit=None))]
    fn items(
        &self,
        py: Python<'_>,
        low: Option<&Bound_<'_>>,
        high: Option<&Bound_<'_>>,
        prefix: Option<&Bound_<'_>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Items> {
        self.items_of(py, What::Pairs, &Over { low, high, prefix, reverse, limit })
    }

    /// Iterates over keys from `low` on and below `high`.
    #[pyo3(signature = (low=None, high=None, *, prefix=None, reverse=false, limit=None))]
    fn keys(
        &self,
        py: Python<'_>,
        low: Option<&Bound_<'_>>,
        high: Option<&Bound_<'_>>,
        prefix: Option<&Bound_<'_>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Items> {
        self.items_of(py, What::Keys, &Over { low, high, prefix, reverse, limit })
    }

    /// Iterates over the values of keys from `low` on and below `high`.
    #[pyo3(signature = (low=None, high=None, *, prefix=None, reverse=false, limit=None))]
    fn values(
        &self,
        py: Python<'_>,
        low: Option<&Bound_<'_>>,
        high: Option<&Bound_<'_>>,
        prefix: Option<&Bound_<'_>>,
        reverse: bool,
        limit: Option<u64>,
    ) -> PyResult<Items> {
        self.items_of(py, What::Values, &Over { low, high, prefix, reverse, limit })
    }

    /// The pair with the smallest key.
    fn first(&self, py: Python<'_>) -> PyResult<Option<(Py<PyBytes>, Py<PyBytes>)>> {
        self.end(py, |index| index.first())
    }

    /// The pair with the largest key.
    fn last(&self, py: Python<'_>) -> PyResult<Option<(Py<PyBytes>, Py<PyBytes>)>> {
        self.end(py, |index| index.last())
    }

    /// Removes the pair with the smallest key, and returns it. Atomic.
    fn pop_first(&self, py: Python<'_>) -> PyResult<Option<(Py<PyBytes>, Py<PyBytes>)>> {
        self.end(py, |index| index.pop_first())
    }

    /// Removes the pair with the largest key, and returns it. Atomic.
    fn pop_last(&self, py: Python<'_>) -> PyResult<Option<(Py<PyBytes>, Py<PyBytes>)>> {
        self.end(py, |index| index.pop_last())
    }

    /// Removes all keys from `low` on and below `high`; how many. Not atomic.
    #[pyo3(signature = (low=None, high=None))]
    fn delete_range(
        &self,
        py: Python<'_>,
        low: Option<&Bound_<'_>>,
        high: Option<&Bound_<'_>>,
    ) -> PyResult<u64> {
        let range = range(low, high)?;
        self.call(py, |index| index.delete_range(range))
    }

    /// Removes all keys. Not atomic.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |index| index.clear())
    }

    /// The same index for `async` code: its calls are awaited.
    fn asynchronous(&self, py: Python<'_>) -> PyResult<AsyncIndex> {
        let client = self.call(py, |index| index.async_client())?;
        Ok(AsyncIndex { client: Arc::new(client), handle: self.handle.clone() })
    }

    fn __getitem__(&self, py: Python<'_>, key: &Bound_<'_>) -> PyResult<Py<PyAny>> {
        if let Ok(slice) = key.cast::<PySlice>() {
            let part = |name: &str| slice.getattr(name).map(|end| (!end.is_none()).then_some(end));
            let (low, high) = (part("start")?, part("stop")?);
            if part("step")?.is_some() {
                return Err(PyValueError::new_err("a range of keys has no step"));
            }
            let over = Over {
                low: low.as_ref(),
                high: high.as_ref(),
                prefix: None,
                reverse: false,
                limit: None,
            };
            let items = self.items_of(py, What::Pairs, &over)?;
            return Ok(Py::new(py, items)?.into_any());
        }
        let found = self.get(py, key, None)?;
        found.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound_<'_>, value: &Bound_<'_>) -> PyResult<()> {
        self.put(py, key, value)
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound_<'_>) -> PyResult<()> {
        match self.delete(py, key)? {
            true => Ok(()),
            false => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound_<'_>) -> PyResult<bool> {
        let key = data(key, "key")?;
        self.call(py, |index| index.contains(&key))
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Items> {
        let over = Over { low: None, high: None, prefix: None, reverse: false, limit: None };
        self.items_of(py, What::Keys, &over)
    }

    fn __reversed__(&self, py: Python<'_>) -> PyResult<Items> {
        let over = Over { low: None, high: None, prefix: None, reverse: true, limit: None };
        self.items_of(py, What::Keys, &over)
    }

    /// How many keys: a walk over all of them. Ctrl-C ends it.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let mut pairs = self.handle.get(py)?.iter();
        let mut count = 0;
        loop {
            let (seen, more) = py
                .detach(|| {
                    for seen in 0..UNINTERRUPTED {
                        if pairs.next_ref()?.is_none() {
                            return Ok((seen, false));
                        }
                    }
                    Ok((UNINTERRUPTED, true))
                })
                .or_raise(py)?;
            count += seen;
            if !more {
                return Ok(count);
            }
            py.check_signals()?;
        }
    }

    fn __bool__(&self) -> PyResult<bool> {
        Err(PyTypeError::new_err("an index is neither true nor false: ask len() or first()"))
    }

    fn __repr__(&self) -> String {
        format!("<dmtree.Index {:?}>", self.name)
    }
}
