//! Pools.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use dmtree::{Options, Result};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{OrRaise, exception};
use crate::index::Index;

/// How often this process was forked: handles of the parent do not work in the child, because the
/// threads that serve them are not there.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process is the child of a fork.
#[pyfunction]
pub(crate) fn after_fork() {
    FORKS.fetch_add(1, Relaxed);
}

/// Something that is open until its pool is closed.
pub(crate) struct Handle<T> {
    what: &'static str,
    forks: u64,
    open: RwLock<Option<T>>,
}

impl<T: Clone> Handle<T> {
    fn new(what: &'static str, open: T) -> Arc<Self> {
        Arc::new(Self { what, forks: FORKS.load(Relaxed), open: RwLock::new(Some(open)) })
    }

    /// What is open.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<T> {
        let what = self.what;
        if FORKS.load(Relaxed) != self.forks {
            let e = format!(
                "this process was forked: open a pool of its own, the {what} is the parent's"
            );
            return Err(exception(py, "Closed", &e, false));
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner).clone();
        open.ok_or_else(|| exception(py, "Closed", &format!("the {what} was closed"), false))
    }

    fn close(&self) -> Option<T> {
        let open = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
        if FORKS.load(Relaxed) == self.forks {
            return open;
        }
        // Its threads are the parent's: to end them would wait for ever.
        std::mem::forget(open);
        None
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if FORKS.load(Relaxed) != self.forks {
            let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(open);
        }
    }
}

/// A pool of memory with indexes: in this process (`Pool.embedded`) or of several processes
/// (`Pool.connect`). A context manager: it closes the pool.
#[pyclass(module = "dmtree", frozen)]
pub(crate) struct Pool {
    handle: Arc<Handle<dmtree::Pool>>,
    /// Indexes that close with it.
    indexes: Mutex<Vec<Weak<Handle<dmtree::Index>>>>,
}

impl Pool {
    fn new(pool: dmtree::Pool) -> Self {
        Self { handle: Handle::new("pool", pool), indexes: Mutex::default() }
    }

    fn index(
        &self,
        py: Python<'_>,
        open: impl FnOnce(&dmtree::Pool) -> Result<dmtree::Index> + Send,
    ) -> PyResult<Index> {
        let pool = self.handle.get(py)?;
        let index = py.detach(|| open(&pool)).or_raise(py)?;
        let name = index.name().to_owned();
        let handle = Handle::new("index", index);
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.retain(|index| index.strong_count() > 0);
        indexes.push(Arc::downgrade(&handle));
        Ok(Index { handle, name })
    }
}

#[pymethods]
impl Pool {
    /// A pool in this process. Sizes are numbers of bytes, or texts such as "64MiB". It is gone
    /// with the process, unless `durable` names a directory for its journal.
    #[staticmethod]
    #[pyo3(signature = (*, memory=None, cache=None, memory_nodes=1, compute_nodes=1, durable=None, sync=false))]
    fn embedded(
        py: Python<'_>,
        memory: Option<Bound<'_, PyAny>>,
        cache: Option<Bound<'_, PyAny>>,
        memory_nodes: u16,
        compute_nodes: u16,
        durable: Option<PathBuf>,
        sync: bool,
    ) -> PyResult<Self> {
        let mut builder =
            dmtree::Pool::embedded().memory_nodes(memory_nodes).compute_nodes(compute_nodes);
        if let Some(size) = memory {
            builder = builder.memory(size_of(&size, "memory")?);
        }
        if let Some(size) = cache {
            builder = builder.cache(size_of(&size, "cache")?);
        }
        if let Some(directory) = durable {
            builder = builder.durable(directory);
        }
        if sync {
            builder = builder.sync();
        }
        py.detach(|| builder.open()).or_raise(py).map(Self::new)
    }

    /// Joins a pool: its first memory node listens at `address`. `wait` is in seconds.
    #[staticmethod]
    #[pyo3(signature = (address, *, key_file=None, listen=None, cache=None, wait=None, insecure=false))]
    fn connect(
        py: Python<'_>,
        address: &str,
        key_file: Option<PathBuf>,
        listen: Option<&str>,
        cache: Option<Bound<'_, PyAny>>,
        wait: Option<f64>,
        insecure: bool,
    ) -> PyResult<Self> {
        let mut connector = dmtree::Pool::connect(address);
        if let Some(path) = key_file {
            connector = connector.key_file(path);
        }
        if let Some(at) = listen {
            connector = connector.listen(at);
        }
        if let Some(size) = cache {
            connector = connector.cache(size_of(&size, "cache")?);
        }
        if let Some(seconds) = wait {
            let wait = Duration::try_from_secs_f64(seconds)
                .map_err(|e| PyValueError::new_err(format!("wait is {seconds}: {e}")))?;
            connector = connector.wait(wait);
        }
        if insecure {
            connector = connector.insecure();
        }
        py.detach(|| connector.open()).or_raise(py).map(Self::new)
    }

    /// Creates an index. Options: `key_inline_bytes`, `value_inline_bytes`, `leaf_capacity`,
    /// `fanout`, `images`, `log_kib`, `timeout_ms`.
    #[pyo3(signature = (name, **options))]
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Index> {
        let options = chosen(options)?;
        self.index(py, |pool| pool.create(name, options))
    }

    /// Opens an index.
    fn open(&self, py: Python<'_>, name: &str) -> PyResult<Index> {
        self.index(py, |pool| pool.open(name))
    }

    /// Opens an index, which is created if there is none. Options as of `create`.
    #[pyo3(signature = (name, **options))]
    fn open_or_create(
        &self,
        py: Python<'_>,
        name: &str,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Index> {
        let options = chosen(options)?;
        self.index(py, |pool| pool.open_or_create(name, options))
    }

    /// Removes an index and all that is in it.
    fn drop(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let pool = self.handle.get(py)?;
        py.detach(|| pool.drop_index(name)).or_raise(py)
    }

    /// The names of the indexes.
    fn list(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let pool = self.handle.get(py)?;
        py.detach(|| pool.list()).or_raise(py)
    }

    /// Bytes of memory: those in use, and all.
    fn memory(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let pool = self.handle.get(py)?;
        let stats = py.detach(|| pool.stats()).or_raise(py)?;
        Ok((stats.used_bytes(), stats.total_bytes()))
    }

    /// Closes the pool and its indexes. A pool in this process is gone, unless it lasts.
    fn close(&self, py: Python<'_>) {
        let indexes =
            std::mem::take(&mut *self.indexes.lock().unwrap_or_else(PoisonError::into_inner));
        py.detach(|| {
            indexes.iter().filter_map(Weak::upgrade).for_each(|index| drop(index.close()));
            drop(self.handle.close());
        });
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.handle.get(py).and_then(|pool| py.detach(|| pool.list()).or_raise(py)) {
            Ok(names) => format!("<dmtree.Pool {names:?}>"),
            Err(_) => "<dmtree.Pool, closed>".to_owned(),
        }
    }
}

/// A size as a text, which the library reads.
fn size_of(size: &Bound<'_, PyAny>, what: &str) -> PyResult<String> {
    if let Ok(bytes) = size.extract::<u64>() {
        return Ok(bytes.to_string());
    }
    let wrong =
        || PyTypeError::new_err(format!("{what} is a number of bytes or a text such as \"64MiB\""));
    size.extract::<String>().map_err(|_| wrong())
}

fn chosen(options: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let mut chosen = Options::default();
    for (name, value) in options.into_iter().flatten() {
        let name = name.extract::<String>()?;
        match name.as_str() {
            "key_inline_bytes" => chosen.key_inline_bytes = value.extract()?,
            "value_inline_bytes" => chosen.value_inline_bytes = value.extract()?,
            "leaf_capacity" => chosen.leaf_capacity = value.extract()?,
            "fanout" => chosen.fanout = value.extract()?,
            "images" => chosen.images = value.extract()?,
            "log_kib" => chosen.log_kib = value.extract()?,
            "timeout_ms" => chosen.timeout_ms = value.extract()?,
            other => {
                let known = "key_inline_bytes, value_inline_bytes, leaf_capacity, fanout, images, \
                             log_kib, timeout_ms";
                return Err(PyTypeError::new_err(format!(
                    "{other} is no option; they are {known}"
                )));
            }
        }
    }
    Ok(chosen)
}
