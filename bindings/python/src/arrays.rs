//! Keys and values of one length each, in one piece of memory: what arrays of numpy are.

use dmtree::{LoadOrder, Values};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::index::Index;

/// Values and their lengths, in one piece of memory each.
type Columns = (Py<PyByteArray>, Py<PyByteArray>);

/// The rows of a buffer.
fn rows(py: Python<'_>, buffer: &PyBuffer<u8>, width: usize, what: &str) -> PyResult<Vec<u8>> {
    let bytes = buffer.to_vec(py)?;
    match width {
        0 => Err(PyValueError::new_err(format!("a {what} has 1 byte at least"))),
        width if bytes.len() % width != 0 => {
            let e = format!("{} bytes are no whole number of {what}s of {width}", bytes.len());
            Err(PyValueError::new_err(e))
        }
        _ => Ok(bytes),
    }
}

/// The values of keys of one length, one behind the other: rows of the longest value, and the
/// length of each as an `int32`, -1 for a key that is absent.
#[pyfunction]
pub(crate) fn get_rows(
    py: Python<'_>,
    index: &Index,
    keys: PyBuffer<u8>,
    width: usize,
) -> PyResult<Columns> {
    let keys = rows(py, &keys, width, "key")?;
    let (rows, lengths) = index.call(py, |index| {
        let keys: Vec<&[u8]> = keys.chunks_exact(width).collect();
        let mut values = Values::new();
        index.get_many_into(&keys, &mut values)?;
        let found = || (0..keys.len()).map(|i| values.get(i));
        let longest = found().flatten().map(<[u8]>::len).max().unwrap_or(0);
        let mut rows = vec![0; longest * keys.len()];
        let mut lengths = Vec::with_capacity(4 * keys.len());
        for (i, value) in found().enumerate() {
            let value = value.inspect(|value| {
                rows[i * longest..][..value.len()].copy_from_slice(value);
            });
            let length = value.map_or(-1, |value| value.len() as i32);
            lengths.extend_from_slice(&length.to_ne_bytes());
        }
        Ok((rows, lengths))
    })?;
    let column = |bytes: &[u8]| PyByteArray::new(py, bytes).unbind();
    Ok((column(&rows), column(&lengths)))
}

/// Stores keys of one length with values of one length; how many.
#[pyfunction]
pub(crate) fn load_rows(
    py: Python<'_>,
    index: &Index,
    keys: (PyBuffer<u8>, usize),
    values: (PyBuffer<u8>, usize),
    sorted: bool,
) -> PyResult<usize> {
    let (key_bytes, value_bytes) = (keys.1, values.1);
    let keys = rows(py, &keys.0, key_bytes, "key")?;
    let values = rows(py, &values.0, value_bytes, "value")?;
    let count = keys.len() / key_bytes;
    if values.len() / value_bytes != count {
        let e = format!("{count} keys and {} values", values.len() / value_bytes);
        return Err(PyValueError::new_err(e));
    }
    let order = if sorted { LoadOrder::Sorted } else { LoadOrder::Unsorted };
    index.call(py, |index| {
        let pairs = keys.chunks_exact(key_bytes).zip(values.chunks_exact(value_bytes));
        index.load(pairs.map(|(key, value)| (key.to_vec(), value.to_vec())), order)
    })?;
    Ok(count)
}
