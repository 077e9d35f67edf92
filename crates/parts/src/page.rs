//! What reads of several keys return: pairs of a scan, values of several gets, each in one piece of
//! memory.

use serde::{Deserialize, Serialize};

/// Pairs in one reused piece of memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Page {
    data: Vec<u8>,
    spans: Vec<(u32, u32, u32)>,
}

impl Page {
    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties it, keeps the memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.spans.clear();
    }

    /// Adds a pair.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let at = self.data.len() as u32;
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        self.spans.push((at, key.len() as u32, value.len() as u32));
    }

    /// Adds pairs of keys of `k` and values of `v` bytes, each value behind its key.
    pub fn extend_joined<'p>(
        &mut self,
        pairs: impl ExactSizeIterator<Item = &'p [u8]>,
        (k, v): (usize, usize),
    ) {
        let from = self.data.len();
        let spans = (0..pairs.len()).map(|i| ((from + i * (k + v)) as u32, k as u32, v as u32));
        self.spans.extend(spans);
        self.data.resize(from + pairs.len() * (k + v), 0);
        let to = &mut self.data[from..];
        // A call to copy a pair of the usual size takes longer than the copy.
        match k + v {
            16 => copy_all::<16>(to, pairs),
            32 => copy_all::<32>(to, pairs),
            len => to.chunks_exact_mut(len).zip(pairs).for_each(|(to, p)| to.copy_from_slice(p)),
        }
    }

    /// Makes room for so many more pairs of so many bytes each.
    pub fn reserve(&mut self, pairs: usize, bytes: usize) {
        self.spans.reserve(pairs);
        self.data.reserve(pairs * bytes);
    }

    /// How many pairs.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Pair number `i`.
    #[inline]
    pub fn get(&self, i: usize) -> Option<(&[u8], &[u8])> {
        let (at, k, v) = *self.spans.get(i)?;
        let (at, k, v) = (at as usize, k as usize, v as usize);
        Some(self.data[at..at + k + v].split_at(k))
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> + ExactSizeIterator {
        (0..self.len()).map(|i| self.get(i).expect("inside"))
    }

    /// All pairs in order, each a part of the page's memory: none is copied, and the memory stays
    /// until the last of them is dropped.
    #[cfg(feature = "bytes")]
    pub fn into_bytes(
        self,
    ) -> impl DoubleEndedIterator<Item = (bytes::Bytes, bytes::Bytes)> + ExactSizeIterator + use<>
    {
        let memory = bytes::Bytes::from(self.data);
        self.spans.into_iter().map(move |(at, k, v)| {
            let (at, k, v) = (at as usize, k as usize, v as usize);
            (memory.slice(at..at + k), memory.slice(at + k..at + k + v))
        })
    }
}

/// Copies pairs of `N` bytes one behind the other.
fn copy_all<'p, const N: usize>(to: &mut [u8], pairs: impl Iterator<Item = &'p [u8]>) {
    for (to, pair) in to.as_chunks_mut::<N>().0.iter_mut().zip(pairs) {
        to.copy_from_slice(pair);
    }
}

/// Values of several keys in one reused piece of memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Values {
    data: Vec<u8>,
    spans: Vec<Option<(u32, u32)>>,
}

impl Values {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `n` keys, all absent so far.
    pub fn reset(&mut self, n: usize) {
        self.data.clear();
        self.spans.clear();
        self.spans.resize(n, None);
    }

    /// Sets the value of key number `i`.
    pub fn set(&mut self, i: usize, value: &[u8]) {
        self.spans[i] = Some((self.data.len() as u32, value.len() as u32));
        self.data.extend_from_slice(value);
    }

    /// The value of key number `i`; `None` when it is absent.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let (at, len) = (*self.spans.get(i)?)?;
        Some(&self.data[at as usize..(at + len) as usize])
    }

    /// The values of all keys, each a part of this memory: none is copied, and the memory stays
    /// until the last of them is dropped.
    #[cfg(feature = "bytes")]
    pub fn into_bytes(self) -> impl ExactSizeIterator<Item = Option<bytes::Bytes>> + use<> {
        let memory = bytes::Bytes::from(self.data);
        self.spans
            .into_iter()
            .map(move |span| span.map(|(at, len)| memory.slice(at as usize..(at + len) as usize)))
    }
}
