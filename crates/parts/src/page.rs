//! What reads of several keys return: pairs of a scan, values of several gets, each in one piece of
//! memory.

use serde::{Deserialize, Serialize};

/// Pairs in one reused piece of memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Received")]
pub struct Page {
    data: Vec<u8>,
    /// The first pairs, as far as they have the same lengths.
    alike: Alike,
    /// Where each of the others is, and the lengths of its key and value.
    spans: Vec<(u32, u32, u32)>,
}

/// The fields of a page from another node.
#[derive(Deserialize)]
struct Received {
    data: Vec<u8>,
    alike: Alike,
    spans: Vec<(u32, u32, u32)>,
}

impl TryFrom<Received> for Page {
    type Error = &'static str;

    /// Every pair lies in the data, and of pairs without bytes there is one at most.
    fn try_from(Received { data, alike, spans }: Received) -> Result<Self, Self::Error> {
        let bytes = data.len() as u64;
        let Alike { pairs, key, value } = alike;
        let alike_bytes = u64::from(pairs).checked_mul(u64::from(key) + u64::from(value));
        let is_inside = alike_bytes.is_some_and(|len| len <= bytes)
            && spans.iter().all(|&(at, k, v)| u64::from(at) + u64::from(k) + u64::from(v) <= bytes);
        match is_inside && u64::from(pairs) <= bytes.max(1) {
            true => Ok(Self { data, alike, spans }),
            false => Err("a page of pairs that are not in it"),
        }
    }
}

/// Pairs of the same lengths, one behind the other.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Alike {
    pairs: u32,
    key: u32,
    value: u32,
}

impl Page {
    /// An empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties it, keeps the memory.
    pub fn clear(&mut self) {
        self.data.clear();
        self.alike = Alike::default();
        self.spans.clear();
    }

    /// Whether pairs of these lengths are like all the others.
    #[inline]
    fn is_alike(&self, (k, v): (usize, usize)) -> bool {
        let Alike { pairs, key, value } = self.alike;
        self.spans.is_empty() && (pairs == 0 || (key as usize, value as usize) == (k, v))
    }

    /// Notes pairs of the same lengths that come next in the data.
    #[inline]
    fn note(&mut self, pairs: usize, (k, v): (usize, usize)) {
        let at = self.data.len();
        if self.is_alike((k, v)) {
            let pairs = self.alike.pairs + pairs as u32;
            self.alike = Alike { pairs, key: k as u32, value: v as u32 };
        } else {
            let span = |i| ((at + i * (k + v)) as u32, k as u32, v as u32);
            self.spans.extend((0..pairs).map(span));
        }
    }

    /// Adds a pair.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.note(1, (key.len(), value.len()));
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
    }

    /// Adds pairs of keys of `k` and values of `v` bytes, each value behind its key.
    pub fn extend_joined<'p>(
        &mut self,
        pairs: impl ExactSizeIterator<Item = &'p [u8]>,
        (k, v): (usize, usize),
    ) {
        self.note(pairs.len(), (k, v));
        let from = self.data.len();
        self.data.resize(from + pairs.len() * (k + v), 0);
        let to = &mut self.data[from..];
        // A call to copy a pair of the usual size takes longer than the copy.
        match k + v {
            16 => copy_all::<16>(to, pairs),
            32 => copy_all::<32>(to, pairs),
            len => to.chunks_exact_mut(len).zip(pairs).for_each(|(to, p)| to.copy_from_slice(p)),
        }
    }

    /// Makes room for so many more bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.data.reserve(bytes);
    }

    /// How many pairs.
    #[inline]
    pub fn len(&self) -> usize {
        self.alike.pairs as usize + self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Where pair number `i` is, and the lengths of its key and value.
    #[inline]
    fn span(&self, i: usize) -> Option<(usize, usize, usize)> {
        let Alike { pairs, key: k, value: v } = self.alike;
        match i.checked_sub(pairs as usize) {
            None => {
                let (k, v) = (k as usize, v as usize);
                Some((i * (k + v), k, v))
            }
            Some(other) => {
                let (at, k, v) = *self.spans.get(other)?;
                Some((at as usize, k as usize, v as usize))
            }
        }
    }

    /// Pair number `i`.
    #[inline]
    pub fn get(&self, i: usize) -> Option<(&[u8], &[u8])> {
        let (at, k, v) = self.span(i)?;
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
        mut self,
    ) -> impl DoubleEndedIterator<Item = (bytes::Bytes, bytes::Bytes)> + ExactSizeIterator + use<>
    {
        let memory = bytes::Bytes::from(std::mem::take(&mut self.data));
        (0..self.len()).map(move |i| {
            let (at, k, v) = self.span(i).expect("inside");
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pairs_come_back_whatever_their_lengths(
            pairs in proptest::collection::vec(
                prop_oneof![Just((3usize, 2usize)), (1usize..4, 0usize..4)], 0..20),
            joined: bool,
        ) {
            let mut page = Page::new();
            page.push(b"before", b"");
            page.clear();
            let of = |i: usize, len: usize| vec![i as u8; len];
            let mut wanted = Vec::new();
            for (i, &(k, v)) in pairs.iter().enumerate() {
                let (key, value) = (of(i, k), of(i + 100, v));
                match joined {
                    true => page.extend_joined([&[&key[..], &value].concat()[..]].into_iter(), (k, v)),
                    false => page.push(&key, &value),
                }
                wanted.push((key, value));
            }
            let found: Vec<_> = page.iter().map(|(k, v)| (k.to_vec(), v.to_vec())).collect();
            prop_assert_eq!(page.bytes(), found.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>());
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(page.get(pairs.len()), None);
            let sent = postcard::to_allocvec(&page).expect("bytes");
            let received: Page = postcard::from_bytes(&sent).expect("a page");
            prop_assert!(received.iter().eq(page.iter()));
        }

        #[test]
        fn no_received_page_has_pairs_outside_of_it(
            data in proptest::collection::vec(any::<u8>(), 0..9),
            alike in (0u32..9, 0u32..4, 0u32..4),
            spans in proptest::collection::vec((0u32..9, 0u32..4, 0u32..4), 0..3),
            huge: bool,
        ) {
            let pairs = if huge { u32::MAX } else { alike.0 };
            let sent = postcard::to_allocvec(&(data, (pairs, alike.1, alike.2), spans));
            if let Ok(page) = postcard::from_bytes::<Page>(&sent.expect("bytes")) {
                prop_assert!(page.len() < 20);
                page.iter().for_each(drop);
            }
        }
    }
}
