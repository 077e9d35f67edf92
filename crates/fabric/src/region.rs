//! Memory that verbs reach: words of `AtomicU64`, copied word by word, so that a READ racing a WRITE is defined in Rust too
//! (a mix of old and new words) instead of undefined behaviour.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A node's memory. Offsets are bytes; aligned multiples of 8 are the fast path; any other offset and length works, and the
/// partial words at the edges of a WRITE are merged by compare-exchange, so that a neighbour's bytes survive.
pub struct Region {
    words: Box<[AtomicU64]>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes)", self.len())
    }
}

impl Region {
    /// Zeroed memory of `bytes`, rounded up to whole lines. The operating system commits pages when they are first touched.
    pub fn new(bytes: u64) -> Self {
        let words = (bytes.div_ceil(64) * 8) as usize;
        let zeroed: Box<[u64]> = vec![0u64; words].into_boxed_slice();
        let raw = Box::into_raw(zeroed) as *mut [AtomicU64];
        // SAFETY: `AtomicU64` has the size, alignment and bit validity of `u64`; the box is the only owner.
        let words = unsafe { Box::from_raw(raw) };
        Self { words }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether `len` bytes from `offset` lie inside.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Asks the processor to bring the first lines of a range near; no more than a hint.
    pub fn prefetch(&self, offset: u64, len: u32) {
        if let Some(word) = self.words.get((offset / 8) as usize) {
            prefetch(std::ptr::from_ref(word).addr(), (len as usize).min(256));
        }
    }

    /// Copies memory at `offset` into `out`. The range must be inside; the transport has checked it.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        assert!(self.contains(offset, out.len() as u64), "the transport checks bounds");
        let mut at = offset;
        let mut rest = out;
        let lead = (offset.wrapping_neg() % 8).min(rest.len() as u64) as usize;
        if lead > 0 {
            let (head, tail) = rest.split_at_mut(lead);
            self.read_part(at, head);
            (at, rest) = (at + lead as u64, tail);
        }
        let first = (at / 8) as usize;
        let whole = rest.len() / 8;
        let (body, tail) = rest.split_at_mut(whole * 8);
        for (dst, word) in body.chunks_exact_mut(8).zip(&self.words[first..first + whole]) {
            dst.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        if !tail.is_empty() {
            self.read_part(at + whole as u64 * 8, tail);
        }
        fence(Ordering::Acquire);
    }

    /// Copies `src` into memory at `offset`. The range must be inside.
    pub fn write(&self, offset: u64, src: &[u8]) {
        assert!(self.contains(offset, src.len() as u64), "the transport checks bounds");
        fence(Ordering::Release);
        let mut at = offset;
        let mut rest = src;
        let lead = (offset.wrapping_neg() % 8).min(rest.len() as u64) as usize;
        if lead > 0 {
            let (head, tail) = rest.split_at(lead);
            self.write_part(at, head);
            (at, rest) = (at + lead as u64, tail);
        }
        let first = (at / 8) as usize;
        let whole = rest.len() / 8;
        let (body, tail) = rest.split_at(whole * 8);
        for (src, word) in body.chunks_exact(8).zip(&self.words[first..first + whole]) {
            word.store(u64::from_le_bytes(src.try_into().expect("8 bytes")), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            self.write_part(at + whole as u64 * 8, tail);
        }
        // A completed WRITE precedes every later verb of anybody, a READ of its own issuer included.
        fence(Ordering::SeqCst);
    }

    /// Bytes inside one word.
    fn read_part(&self, at: u64, out: &mut [u8]) {
        let word = self.words[(at / 8) as usize].load(Ordering::Relaxed).to_le_bytes();
        let skip = (at % 8) as usize;
        out.copy_from_slice(&word[skip..skip + out.len()]);
    }

    /// Bytes inside one word, merged so that the others keep what concurrent writers store.
    fn write_part(&self, at: u64, src: &[u8]) {
        let skip = (at % 8) as usize;
        let cell = &self.words[(at / 8) as usize];
        let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            let mut word = old.to_le_bytes();
            word[skip..skip + src.len()].copy_from_slice(src);
            Some(u64::from_le_bytes(word))
        });
    }

    /// The aligned word at `offset`.
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "the transport checks alignment");
        &self.words[(offset / 8) as usize]
    }

    /// Reads one aligned word.
    pub fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    /// Stores one aligned word.
    pub fn store(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::SeqCst);
    }

    /// Compare-and-swap; returns the previous word.
    pub fn cas(&self, offset: u64, old: u64, new: u64) -> u64 {
        match self.word(offset).compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(previous) | Err(previous) => previous,
        }
    }

    /// Fetch-and-add, wrapping; returns the previous word.
    pub fn faa(&self, offset: u64, add: u64) -> u64 {
        self.word(offset).fetch_add(add, Ordering::SeqCst)
    }
}

/// Asks the processor to bring memory near that will be used soon. Any address will do: a hint has no other effect.
pub(crate) fn prefetch(at: usize, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..(at % 64 + bytes).div_ceil(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = std::ptr::without_provenance(at.wrapping_add(line * 64));
        // SAFETY: the instruction never faults and changes nothing but the cache.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn atomics_return_the_previous_word() {
        let r = Region::new(64);
        assert_eq!(r.cas(8, 0, 5), 0);
        assert_eq!(r.cas(8, 0, 9), 5);
        assert_eq!(r.faa(8, 2), 5);
        assert_eq!(r.load(8), 7);
    }

    #[test]
    fn unaligned_writers_of_one_word_keep_each_others_bytes() {
        let r = Region::new(64);
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        std::thread::scope(|s| {
            s.spawn(|| (0..rounds).for_each(|i| r.write(1, &[i as u8; 3])));
            s.spawn(|| (0..rounds).for_each(|i| r.write(4, &[i as u8; 3])));
        });
        let mut out = [0; 8];
        r.read(0, &mut out);
        let last = (rounds - 1) as u8;
        assert_eq!(out, [0, last, last, last, last, last, last, 0]);
    }

    #[test]
    fn racing_copies_are_defined_and_mix_only_words() {
        let r = Region::new(256);
        let rounds = if cfg!(miri) { 10 } else { 5_000 };
        std::thread::scope(|s| {
            s.spawn(|| (0..rounds).for_each(|i| r.write(0, &[i as u8; 256])));
            s.spawn(|| {
                let mut out = [0; 256];
                for _ in 0..rounds {
                    r.read(0, &mut out);
                    assert!(
                        out.chunks(8).all(|w| w.iter().all(|b| *b == w[0])),
                        "a word is never torn"
                    );
                }
            });
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]
        #[test]
        fn any_offset_and_length(offset in 0u64..100, data in proptest::collection::vec(any::<u8>(), 0..100)) {
            let r = Region::new(256);
            r.write(0, &[0xaa; 256]);
            r.write(offset, &data);
            let mut model = vec![0xaa; 256];
            model[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
            let mut all = vec![0; 256];
            r.read(0, &mut all);
            prop_assert_eq!(&all, &model);
            let mut part = vec![0; data.len()];
            r.read(offset, &mut part);
            prop_assert_eq!(part, data);
        }
    }
}
