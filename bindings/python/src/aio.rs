//! An index for `async` code. The futures wake the event loop that awaits them; worker threads of
//! the library serve them.

use std::sync::Arc;

use dmtree::{AsyncClient, Outcome, Result};
use pyo3::prelude::*;

use crate::data::Data;
use crate::errors::raised;
use crate::pool::Handle;
use crate::wakers::awaited;

/// An index for calls that are awaited, made by `Index.asynchronous`.
#[pyclass(module = "dmtree", frozen)]
pub(crate) struct AsyncIndex {
    pub(crate) client: Arc<AsyncClient>,
    pub(crate) handle: Arc<Handle<dmtree::Index>>,
}

impl AsyncIndex {
    /// The client, while the pool is open.
    fn client(&self) -> PyResult<Arc<AsyncClient>> {
        Python::attach(|py| self.handle.get(py)).map(|_| self.client.clone())
    }
}

fn or_raise<T>(result: Result<T>) -> PyResult<T> {
    result.map_err(|e| Python::attach(|py| raised(py, &e)))
}

fn done(outcome: Result<Outcome>) -> PyResult<bool> {
    or_raise(outcome).map(|outcome| outcome == Outcome::Done)
}

#[pymethods]
impl AsyncIndex {
    /// The value of a key, or `None`.
    async fn get(&self, key: Data) -> PyResult<Option<Vec<u8>>> {
        or_raise(awaited(self.client()?.get(key.0)).await)
    }

    /// The values of several keys, `None` for those that are absent.
    async fn get_many(&self, keys: Vec<Data>) -> PyResult<Vec<Option<Vec<u8>>>> {
        let keys: Vec<Vec<u8>> = keys.into_iter().map(|key| key.0).collect();
        or_raise(awaited(self.client()?.get_many(&keys)).await)
    }

    /// Sets the value of a key.
    async fn put(&self, key: Data, value: Data) -> PyResult<()> {
        done(awaited(self.client()?.put(key.0, value.0)).await).map(drop)
    }

    /// Sets the value of a key that is absent; whether it was.
    async fn insert(&self, key: Data, value: Data) -> PyResult<bool> {
        done(awaited(self.client()?.insert(key.0, value.0)).await)
    }

    /// Sets the value of a key that is there; whether it was.
    async fn replace(&self, key: Data, value: Data) -> PyResult<bool> {
        done(awaited(self.client()?.update(key.0, value.0)).await)
    }

    /// Removes a key; whether it was there.
    async fn delete(&self, key: Data) -> PyResult<bool> {
        done(awaited(self.client()?.delete(key.0)).await)
    }

    /// Sets the value of a key that has the value `expected`; whether it had.
    async fn compare_and_set(&self, key: Data, expected: Data, new: Data) -> PyResult<bool> {
        done(awaited(self.client()?.compare_and_set(key.0, expected.0, new.0)).await)
    }

    /// Removes a key that has the value `expected`; whether it had.
    async fn compare_and_delete(&self, key: Data, expected: Data) -> PyResult<bool> {
        done(awaited(self.client()?.compare_and_delete(key.0, expected.0)).await)
    }

    /// Sets the value of a key and returns the former one, or `None`.
    async fn exchange(&self, key: Data, value: Data) -> PyResult<Option<Vec<u8>>> {
        or_raise(awaited(self.client()?.replace(key.0, value.0)).await)
    }

    /// Removes a key and returns its value, or `None`.
    async fn take(&self, key: Data) -> PyResult<Option<Vec<u8>>> {
        or_raise(awaited(self.client()?.take(key.0)).await)
    }

    /// Sets a value in the place of another, and returns what the key had.
    async fn compare_and_swap(
        &self,
        key: Data,
        expected: Data,
        new: Data,
    ) -> PyResult<Option<Vec<u8>>> {
        or_raise(awaited(self.client()?.compare_and_swap(key.0, expected.0, new.0)).await)
    }

    /// About how many keys there are, from samples.
    async fn len_estimate(&self) -> PyResult<u64> {
        or_raise(awaited(self.client()?.len_estimate()).await)
    }
}
