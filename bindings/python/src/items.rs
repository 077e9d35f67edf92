//! Iterators over an index.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use dmtree::{Pairs, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::errors::OrRaise;
use crate::pool::Handle;

/// Pairs that are taken from the index at a time, without the interpreter's lock.
const AT_ONCE: usize = 256;

/// What of each pair an iterator gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Keys,
    Values,
    Pairs,
}

/// An iterator over keys, values or pairs, in the order of the keys. Each pair was current at some
/// instant of the iteration; it is no snapshot.
#[pyclass(module = "dmtree", frozen)]
pub(crate) struct Items {
    handle: Arc<Handle<dmtree::Index>>,
    what: What,
    state: Mutex<State>,
}

struct State {
    /// `None` behind the last pair.
    pairs: Option<Pairs<dmtree::Index>>,
    taken: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Items {
    pub(crate) fn new(
        handle: &Arc<Handle<dmtree::Index>>,
        what: What,
        pairs: Pairs<dmtree::Index>,
    ) -> Self {
        let state = Mutex::new(State { pairs: Some(pairs), taken: VecDeque::new() });
        Self { handle: handle.clone(), what, state }
    }
}

impl State {
    fn take(&mut self) -> Result<()> {
        let Some(pairs) = &mut self.pairs else { return Ok(()) };
        while self.taken.len() < AT_ONCE {
            match pairs.next_ref() {
                Ok(Some((key, value))) => self.taken.push_back((key.to_vec(), value.to_vec())),
                Ok(None) => {
                    self.pairs = None;
                    return Ok(());
                }
                Err(e) => {
                    self.pairs = None;
                    return Err(e);
                }
            }
        }
        Ok(())
    }
}

#[pymethods]
impl Items {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.handle.get(py)?;
        let next = py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = if state.taken.is_empty() { state.take() } else { Ok(()) };
            // What was found before an error comes before it.
            state.taken.pop_front().map(Ok).or_else(|| taken.err().map(Err)).transpose()
        });
        let Some((key, value)) = next.or_raise(py)? else { return Ok(None) };
        let bytes = |bytes: &[u8]| PyBytes::new(py, bytes);
        Ok(Some(match self.what {
            What::Keys => bytes(&key).into_any().unbind(),
            What::Values => bytes(&value).into_any().unbind(),
            What::Pairs => PyTuple::new(py, [bytes(&key), bytes(&value)])?.into_any().unbind(),
        }))
    }
}
