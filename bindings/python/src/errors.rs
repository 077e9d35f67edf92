//! Errors of the index as exceptions of the package, which Python defines (`dmtree/errors.py`).

use dmtree::{Effect, Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// The class of an exception.
fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidArgument => "InvalidArgument",
        ErrorKind::Full => "Full",
        ErrorKind::Contended => "Contended",
        ErrorKind::TimedOut => "TimedOut",
        ErrorKind::Unreachable => "Unreachable",
        ErrorKind::Revoked => "Revoked",
        ErrorKind::Corrupt => "Corrupt",
        ErrorKind::Incompatible => "Incompatible",
        ErrorKind::Unsupported => "Unsupported",
        ErrorKind::Exists => "Exists",
        ErrorKind::NotFound => "NotFound",
        ErrorKind::Busy => "Busy",
        ErrorKind::Closed => "Closed",
        _ => "Error",
    }
}

/// The exception of an error.
pub(crate) fn raised(py: Python<'_>, e: &Error) -> PyErr {
    let unknown = e.effect() == Effect::Unknown;
    exception(py, name(e.kind()), &e.to_string(), unknown)
}

/// An exception of the package.
pub(crate) fn exception(py: Python<'_>, class: &str, message: &str, unknown: bool) -> PyErr {
    let made = MODULE
        .get_or_try_init(py, || py.import("dmtree.errors").map(Bound::unbind))
        .and_then(|module| module.bind(py).getattr(class))
        .and_then(|class| class.call1((message, unknown)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}

/// A result of the index in Python.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for dmtree::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| raised(py, &e))
    }
}
