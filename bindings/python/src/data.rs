//! Keys and values: bytes, anything with a buffer of bytes, or a text, which is its UTF-8.

use std::borrow::Cow;

use pyo3::Borrowed;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// The bytes of an object.
pub(crate) fn data<'a>(object: &'a Bound<'_, PyAny>, what: &str) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Cow::Borrowed(text.to_str()?.as_bytes()));
    }
    match PyBuffer::<u8>::get(object) {
        Ok(buffer) => buffer.to_vec(object.py()).map(Cow::Owned),
        Err(_) => {
            let class = object.get_type().name()?;
            Err(PyTypeError::new_err(format!("a {what} is bytes or str, not {class}")))
        }
    }
}

/// The bytes of an argument of a call that is awaited.
pub(crate) struct Data(pub(crate) Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for Data {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        data(&object, "key or value").map(|bytes| Self(bytes.into_owned()))
    }
}

/// The bytes of each object of an iterable.
pub(crate) fn all(objects: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<Vec<u8>>> {
    if objects.is_instance_of::<PyString>() || objects.is_instance_of::<PyBytes>() {
        return Err(PyTypeError::new_err(format!("several {what}s are a list, not one {what}")));
    }
    objects.try_iter()?.map(|object| data(&object?, what).map(Cow::into_owned)).collect()
}

/// Pairs of a mapping, or of an iterable of pairs.
pub(crate) fn pairs(objects: &Bound<'_, PyAny>) -> PyResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let objects = match objects.hasattr("items")? {
        true => objects.call_method0("items")?,
        false => objects.clone(),
    };
    let pair = |object: PyResult<Bound<'_, PyAny>>| {
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = object?.extract()?;
        Ok((data(&key, "key")?.into_owned(), data(&value, "value")?.into_owned()))
    };
    objects.try_iter()?.map(pair).collect()
}
