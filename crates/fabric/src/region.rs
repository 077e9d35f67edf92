//! Memory that verbs reach: words of `AtomicU64`, copied word by word, so that a READ racing a
//! WRITE is defined in Rust too (a mix of old and new words) instead of undefined behaviour.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::error::{Error, Result};

/// A node's memory. Offsets are bytes; aligned multiples of 8 are the fast path; any other offset
/// and length works, and the partial words at the edges of a WRITE are merged by compare-exchange,
/// so that a neighbour's bytes survive.
pub struct Region {
    /// Page aligned and never moved, so that it is registered with a NIC once.
    words: NonNull<AtomicU64>,
    count: usize,
    pages: Pages,
    /// Owns the words.
    _memory: Memory,
}

/// The page kind of a region's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The processor's ordinary pages.
    Ordinary,
    /// The system was asked to join ordinary pages to huge ones where it can.
    Transparent,
    /// Reserved huge pages; wanted but not there, as [`Pages::Transparent`].
    Huge,
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ordinary => "ordinary pages",
            Self::Transparent => "transparent huge pages",
            Self::Huge => "huge pages",
        })
    }
}

#[cfg(not(miri))]
type Memory = memmap2::MmapRaw;
/// Miri watches a box as well, and faster.
#[cfg(miri)]
type Memory = Vec<AtomicU64>;

// SAFETY: the words are atomics, and the memory belongs to the region alone, or is shared with the
// operating system, which keeps what is stored and changes nothing.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

crate::debug_line!(Region, it => "Region({} bytes)", it.len());

impl Region {
    /// Zeroed memory of `bytes`, rounded up to whole lines. The operating system commits pages when
    /// they are first touched.
    ///
    /// # Panics
    /// When there is no memory; [`Region::map`] returns an error.
    pub fn new(bytes: u64) -> Self {
        match Self::map(bytes, Pages::Ordinary) {
            Ok(region) => region,
            Err(e) => panic!("{e}"),
        }
    }

    /// The same, on larger pages where they are wanted and the system has any: a NIC, or a
    /// processor, then needs fewer translations.
    ///
    /// # Errors
    /// `Full` when the system refuses.
    pub fn map(bytes: u64, want: Pages) -> Result<Self> {
        let count = usize::try_from(bytes.div_ceil(64).saturating_mul(8)).unwrap_or(usize::MAX);
        let refused = |why: &dyn std::fmt::Display| {
            Error::full(format!(
                "a region of {bytes} bytes cannot be had ({why}): ask for a smaller one"
            ))
        };
        let len = count.checked_mul(8).filter(|l| *l <= isize::MAX as usize);
        let len = len.ok_or_else(|| refused(&"more than can be addressed"))?;
        let (memory, pages) = allocate(len, want).map_err(|e| refused(&e))?;
        let words = base(&memory);
        Ok(Self { words, count, pages, _memory: memory })
    }

    /// The bytes of a file, shared with the operating system: what is written survives the process.
    /// No other process may have the file open. Its blocks are written before, so that a full
    /// device refuses none of them later.
    ///
    /// # Errors
    /// `Full` when the system refuses, `InvalidArgument` for a file of other than whole lines.
    #[cfg(not(miri))]
    pub fn of_file(file: &std::fs::File) -> Result<Self> {
        let memory = memmap2::MmapRaw::map_raw(file)
            .map_err(|e| Error::full(format!("the file cannot be mapped ({e})")))?;
        if memory.len() == 0 || !memory.len().is_multiple_of(64) {
            return Err(Error::invalid(format!("a file of {} bytes", memory.len())));
        }
        let (words, count) = (base(&memory), memory.len() / 8);
        Ok(Self { words, count, pages: Pages::Ordinary, _memory: memory })
    }

    /// The page kind of its memory.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Where its memory begins: for registering it.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only a NIC asks"))]
    pub(crate) fn base(&self) -> usize {
        self.words.as_ptr().expose_provenance()
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory is at least `count` words, with a value each (zeroed at first, or a
        // file's), aligned to a page, and lives as long as the region.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.count as u64 * 8
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes the contents of another region of the same length.
    #[cfg(feature = "sim")]
    pub(crate) fn copy_from(&self, other: &Self) {
        for (to, from) in self.words().iter().zip(other.words()) {
            let word = from.load(Ordering::Relaxed);
            // Pages that were never touched stay so.
            if word != 0 {
                to.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Whether `len` bytes from `offset` lie inside.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Where a byte of it is in this process: for [`prefetch`] only.
    pub(crate) fn place(&self, offset: u64) -> usize {
        self.words.as_ptr().addr().wrapping_add(offset as usize)
    }

    /// Copies memory at `offset` into `out`. The range must be inside; the transport has checked
    /// it.
    #[inline(always)]
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let (words, rest) = out.as_chunks_mut::<8>();
        if !offset.is_multiple_of(8) || !rest.is_empty() {
            return self.read_unaligned(offset, out);
        }
        let first = (offset / 8) as usize;
        let from = &self.words()[first..first + words.len()];
        copy(from, words);
        fence(Ordering::Acquire);
    }

    #[inline(never)]
    fn read_unaligned(&self, offset: u64, out: &mut [u8]) {
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
        for (dst, word) in body.chunks_exact_mut(8).zip(&self.words()[first..first + whole]) {
            dst.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        if !tail.is_empty() {
            self.read_part(at + whole as u64 * 8, tail);
        }
        fence(Ordering::Acquire);
    }

    /// Copies `src` into memory at `offset`. The range must be inside.
    #[inline(never)]
    pub fn write(&self, offset: u64, src: &[u8]) {
        fence(Ordering::Release);
        let (words, rest) = src.as_chunks::<8>();
        if offset.is_multiple_of(8) && rest.is_empty() {
            let first = (offset / 8) as usize;
            let to = &self.words()[first..first + words.len()];
            if !(store::<ENTRY_WORDS>(words, to) || store::<TABLE_WORDS>(words, to)) {
                for (word, src) in to.iter().zip(words) {
                    word.store(u64::from_le_bytes(*src), Ordering::Relaxed);
                }
            }
        } else {
            self.write_unaligned(offset, src);
        }
        // A completed WRITE precedes every later verb of any client, a READ of its own issuer
        // included.
        fence(Ordering::SeqCst);
    }

    #[inline(never)]
    fn write_unaligned(&self, offset: u64, src: &[u8]) {
        assert!(self.contains(offset, src.len() as u64), "the transport checks bounds");
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
        for (src, word) in body.chunks_exact(8).zip(&self.words()[first..first + whole]) {
            word.store(u64::from_le_bytes(src.try_into().expect("8 bytes")), Ordering::Relaxed);
        }
        if !tail.is_empty() {
            self.write_part(at + whole as u64 * 8, tail);
        }
    }

    /// Bytes inside one word.
    fn read_part(&self, at: u64, out: &mut [u8]) {
        let word = self.words()[(at / 8) as usize].load(Ordering::Relaxed).to_le_bytes();
        let skip = (at % 8) as usize;
        out.copy_from_slice(&word[skip..skip + out.len()]);
    }

    /// Bytes inside one word, merged so that the others keep what concurrent writers store.
    fn write_part(&self, at: u64, src: &[u8]) {
        let skip = (at % 8) as usize;
        let cell = &self.words()[(at / 8) as usize];
        let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            let mut word = old.to_le_bytes();
            word[skip..skip + src.len()].copy_from_slice(src);
            Some(u64::from_le_bytes(word))
        });
    }

    /// The aligned word at `offset`.
    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "the transport checks alignment");
        &self.words()[(offset / 8) as usize]
    }

    /// Reads one aligned word.
    pub fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    /// The word at `offset`, if it is aligned and inside.
    pub fn peek(&self, offset: u64) -> Option<u64> {
        (offset.is_multiple_of(8) && self.contains(offset, 8)).then(|| self.load(offset))
    }

    /// Stores one aligned word.
    #[inline]
    pub fn store(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::SeqCst);
    }

    /// Compare-and-swap; returns the previous word.
    #[inline]
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

/// Loads words, as many as there are in both. In line it would be several times as long as what is
/// around it.
#[inline(never)]
fn copy(from: &[AtomicU64], to: &mut [[u8; 8]]) {
    if load::<ENTRY_WORDS>(from, to) || load::<TABLE_WORDS>(from, to) {
        return;
    }
    let ((eights, from), (to_eights, to)) = (from.as_chunks::<8>(), to.as_chunks_mut::<8>());
    for (to, eight) in to_eights.iter_mut().zip(eights) {
        for (to, word) in to.iter_mut().zip(eight) {
            *to = word.load(Ordering::Relaxed).to_le_bytes();
        }
    }
    for (to, word) in to.iter_mut().zip(from) {
        *to = word.load(Ordering::Relaxed).to_le_bytes();
    }
}

/// Words of an entry of a published index, and of the table of one of its leaves: a loop for them
/// costs more than they do.
const ENTRY_WORDS: usize = 5;
const TABLE_WORDS: usize = 7;

/// Loads so many words; false, and none is loaded, for another number.
#[inline(always)]
fn load<const N: usize>(from: &[AtomicU64], to: &mut [[u8; 8]]) -> bool {
    let (from, to) = (<&[AtomicU64; N]>::try_from(from), <&mut [[u8; 8]; N]>::try_from(to));
    let (Ok(from), Ok(to)) = (from, to) else { return false };
    for (to, word) in to.iter_mut().zip(from) {
        *to = word.load(Ordering::Relaxed).to_le_bytes();
    }
    true
}

/// Stores so many words; false, and none is stored, for another number.
#[inline(always)]
fn store<const N: usize>(from: &[[u8; 8]], to: &[AtomicU64]) -> bool {
    let (from, to) = (<&[[u8; 8]; N]>::try_from(from), <&[AtomicU64; N]>::try_from(to));
    let (Ok(from), Ok(to)) = (from, to) else { return false };
    for (word, src) in to.iter().zip(from) {
        word.store(u64::from_le_bytes(*src), Ordering::Relaxed);
    }
    true
}

#[cfg(not(miri))]
fn allocate(len: usize, want: Pages) -> std::io::Result<(Memory, Pages)> {
    use memmap2::{Advice, MmapOptions, MmapRaw};
    const HUGE_BITS: u8 = 21;
    // Nothing cannot be mapped.
    let len = len.max(8);
    if want == Pages::Huge {
        let whole = len.next_multiple_of(1 << HUGE_BITS);
        if let Ok(map) = MmapOptions::new().len(whole).huge(Some(HUGE_BITS)).map_anon() {
            return Ok((MmapRaw::from(map), Pages::Huge));
        }
    }
    let map = MmapOptions::new().len(len).map_anon()?;
    let large = want != Pages::Ordinary && len >> HUGE_BITS > 0;
    let asked = large && map.advise(Advice::HugePage).is_ok();
    let pages = if asked { Pages::Transparent } else { Pages::Ordinary };
    Ok((MmapRaw::from(map), pages))
}

#[cfg(not(miri))]
fn base(memory: &Memory) -> NonNull<AtomicU64> {
    NonNull::new(memory.as_mut_ptr().cast()).unwrap_or(NonNull::dangling())
}

#[cfg(miri)]
fn allocate(len: usize, _want: Pages) -> std::io::Result<(Memory, Pages)> {
    Ok(((0..len / 8).map(|_| AtomicU64::new(0)).collect(), Pages::Ordinary))
}

#[cfg(miri)]
fn base(memory: &Memory) -> NonNull<AtomicU64> {
    NonNull::from(memory.as_slice()).cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
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
    #[cfg_attr(miri, ignore = "Miri has no such limit")]
    fn a_region_that_cannot_be_had_is_an_error() {
        for bytes in [1 << 62, u64::MAX] {
            let e = Region::map(bytes, Pages::Ordinary).expect_err("too large");
            assert_eq!(e.kind(), ErrorKind::Full);
            assert!(e.to_string().contains("smaller"), "{e}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no pages")]
    fn regions_begin_on_pages_and_are_zeroed() {
        use Pages::{Huge, Ordinary, Transparent};
        for (bytes, want) in [
            (0, Ordinary),
            (64, Huge),
            (5 << 20, Ordinary),
            (5 << 20, Transparent),
            (5 << 20, Huge),
        ] {
            let r = Region::map(bytes, want).expect("small");
            assert_eq!((r.len(), r.base() % 4096), (bytes, 0));
            assert!(bytes == 0 || r.load(bytes - 8) == 0);
            assert!(want != Ordinary || r.pages() == Ordinary);
            assert!(want == Huge || r.pages() != Huge);
        }
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

    #[test]
    fn words_are_copied_whatever_their_number() {
        let r = Region::new(512);
        for len in (0..=256).step_by(8) {
            let wanted: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
            r.write(0, &[0; 512]);
            r.write(64, &wanted);
            let mut all = [1; 512];
            r.read(0, &mut all);
            assert_eq!((&all[64..64 + len], all[64 + len]), (&wanted[..], 0));
            let mut part = vec![1; len];
            r.read(64, &mut part);
            assert_eq!(part, wanted);
        }
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
