//! dmtree for Python: what `dmtree/__init__.py` builds on. Calls release the interpreter's lock
//! while the index works.
#![forbid(unsafe_code)]

mod aio;
mod arrays;
mod data;
mod errors;
mod index;
mod items;
mod lab;
mod pool;
mod wakers;

use pyo3::prelude::*;

/// The compiled part of the package.
#[pymodule]
fn _dmtree(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<pool::Pool>()?;
    m.add_class::<index::Index>()?;
    m.add_class::<items::Items>()?;
    m.add_class::<aio::AsyncIndex>()?;
    m.add_function(wrap_pyfunction!(arrays::get_rows, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::load_rows, m)?)?;
    m.add_function(wrap_pyfunction!(lab::run_experiment, m)?)?;
    m.add_function(wrap_pyfunction!(lab::list_experiments, m)?)?;
    m.add_function(wrap_pyfunction!(pool::after_fork, m)?)?;
    m.add_function(wrap_pyfunction!(wakers::before_exit, m)?)?;
    Ok(())
}
