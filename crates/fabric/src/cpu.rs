//! Kernels with instructions of the processor where it has them, and portable code elsewhere. Both
//! give the same answers.
//!
//! The checksum of an entry and the search of a cached node run for every operation. The search
//! needs what every processor of its kind has, and is inlined. An instruction set that is chosen at
//! run time cannot be inlined into code without it, so such a kernel does a whole job in one call.

/// Longer inputs go to the library, which computes several parts at once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT_BYTES: usize = 512;

/// CRC-32C over two words, little endian, followed by bytes.
#[inline]
pub fn crc32c(head: [u64; 2], bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() <= SHORT_BYTES && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { x86::crc32c(head, bytes) };
    }
    portable_crc32c(head, bytes)
}

fn portable_crc32c(head: [u64; 2], bytes: &[u8]) -> u32 {
    let head = head.map(u64::to_le_bytes);
    crc32c::crc32c_append(crc32c::crc32c(head.as_flattened()), bytes)
}

/// The checksum as [`crc32c()`], if the bytes begin with these ones: both in one pass.
#[inline]
pub fn crc32c_behind(head: [u64; 2], bytes: &[u8], prefix: &[u8]) -> Option<u32> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { x86::crc32c_behind(head, bytes, prefix) };
    }
    portable_crc32c_behind(head, bytes, prefix)
}

fn portable_crc32c_behind(head: [u64; 2], bytes: &[u8], prefix: &[u8]) -> Option<u32> {
    bytes.starts_with(prefix).then(|| portable_crc32c(head, bytes))
}

/// Records of `len` bytes, one behind the other, from number `from` on.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    /// The records: at most 32.
    pub bytes: &'a [u8],
    /// Bytes of a record.
    pub len: usize,
    /// Bytes behind a record's first word that its checksum covers.
    pub covered: usize,
    /// Number of the first record.
    pub from: usize,
}

/// Which records have this low half in their first word, but for the bits of `ignored`, and their
/// checksum in the high half: bit `i` is that of the record at place `i`. The CRC-32C of number `n`
/// covers the word `first`, a word with `n + 1` and the low half, and the covered bytes.
#[inline]
pub fn crc32c_matches(first: u64, (low, ignored): (u32, u32), records: Records<'_>) -> u32 {
    let Records { bytes, len, covered, .. } = records;
    assert!(8 + covered <= len && bytes.len() <= 32 * len, "records that cover their bytes");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { x86::crc32c_matches(first, (low, ignored), records) };
    }
    let sum = |second, covered: &[u8]| portable_crc32c([first, second], covered);
    matches((low, ignored, records.from), covered, bytes.chunks_exact(len), sum)
}

/// `sum`: the checksum of the second word and the covered bytes.
#[inline(always)]
fn matches<'a>(
    (low, ignored, from): (u32, u32, usize),
    covered: usize,
    records: impl Iterator<Item = &'a [u8]>,
    sum: impl Fn(u64, &[u8]) -> u32,
) -> u32 {
    let (mut found, mut second) = (0, from as u64 | u64::from(low) << 32);
    for (i, record) in records.enumerate() {
        second += 1;
        let sum = sum(second, &record[8..8 + covered]);
        let word = u64::from_le_bytes(*record.first_chunk().expect("a record has a first word"));
        let word = word & !u64::from(ignored);
        found |= u32::from(word == u64::from(sum) << 32 | u64::from(low)) << i;
    }
    found
}

/// What the checksum of a record covers in front of the record: `first`, and `second` with the low
/// half of the record's first word as its high half. From one record to the next `second` grows by
/// `step`.
#[derive(Clone, Copy, Debug)]
pub struct Numbering {
    /// The first word.
    pub first: u64,
    /// The low half of the second word, of the first record.
    pub second: u32,
    /// What tells one record from the next.
    pub step: u32,
    /// The bits of the low half that tell the state. A record without any of them is free: its
    /// checksum covers none of its bytes.
    pub state: u32,
}

/// Which of at most 32 records have their checksum in the high half of their first word: bit `i` is
/// that of the record at place `i`.
#[inline]
pub fn crc32c_whole(numbering: Numbering, records: Records<'_>) -> u32 {
    let Records { bytes, len, covered, .. } = records;
    assert!(8 + covered <= len && bytes.len() <= 32 * len, "records that cover their bytes");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { x86::crc32c_whole(numbering, records) };
    }
    let first = numbering.first;
    let sum = |second, covered: &[u8]| portable_crc32c([first, second], covered);
    whole(numbering, covered, bytes.chunks_exact(len), sum)
}

/// `sum`: the checksum of the second word and the covered bytes.
#[inline(always)]
fn whole<'a>(
    numbering: Numbering,
    covered: usize,
    records: impl Iterator<Item = &'a [u8]>,
    sum: impl Fn(u64, &[u8]) -> u32,
) -> u32 {
    let (mut found, mut second) = (0, numbering.second);
    for (i, record) in records.enumerate() {
        let word = u64::from_le_bytes(*record.first_chunk().expect("a record has a first word"));
        let low = word as u32;
        let is_free = low & numbering.state == 0;
        let covered = if is_free { &[][..] } else { &record[8..8 + covered] };
        let sum = sum(u64::from(second) | u64::from(low) << 32, covered);
        found |= u32::from(sum == (word >> 32) as u32) << i;
        second = second.wrapping_add(numbering.step);
    }
    found
}

/// How records are sealed anew.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    /// What their checksums cover in front.
    pub numbering: Numbering,
    /// Bytes of a record.
    pub len: usize,
    /// Bytes behind a record's first word that its checksum covers.
    pub covered: usize,
    /// The low half of the first word of a free record.
    pub low: u32,
    /// The bits of its own that the low half of a live record has beside these.
    pub kept: u32,
    /// The state of a record that goes on.
    pub live: u32,
    /// The state of a record that stays as it is.
    pub fixed: u32,
}

/// Seals records one behind the other anew: live ones go on, fixed ones stay as they are, and the
/// others are free.
#[inline]
pub fn crc32c_seal(seal: Seal, records: &mut [u8]) {
    assert!(8 + seal.covered <= seal.len, "records that cover their bytes");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { x86::crc32c_seal(seal, records) };
    }
    let first = seal.numbering.first;
    let sum = |second, covered: &[u8]| portable_crc32c([first, second], covered);
    seal_each(seal, seal.covered, records.chunks_exact_mut(seal.len), sum);
}

/// `sum`: the checksum of the second word and the covered bytes.
#[inline(always)]
fn seal_each<'a>(
    seal: Seal,
    covered: usize,
    records: impl Iterator<Item = &'a mut [u8]>,
    sum: impl Fn(u64, &[u8]) -> u32,
) {
    let mut second = seal.numbering.second;
    for record in records {
        let (word, rest) = record.split_first_chunk_mut::<8>().expect("a first word");
        let was = u64::from_le_bytes(*word) as u32;
        let sealed = match was & seal.numbering.state {
            state if state == seal.live => Some((was & seal.kept | seal.low, &rest[..covered])),
            state if state == seal.fixed => None,
            _ => Some((seal.low, &[][..])),
        };
        if let Some((low, covered)) = sealed {
            let sum = sum(u64::from(second) | u64::from(low) << 32, covered);
            *word = (u64::from(sum) << 32 | u64::from(low)).to_le_bytes();
        }
        second = second.wrapping_add(seal.numbering.step);
    }
}

/// The lines of so many words are looked at one after the other: no load waits for one before it.
/// Each step of a binary search waits for its word.
const FEW_LINES: usize = 8;

/// How many of some ascending words are below a bound. They are in lines of 16: the last words tell
/// the line, and then all of it is compared at once.
#[inline]
pub fn lower_bound(lines: &[[i32; 16]], bound: i32) -> usize {
    let (mut from, mut rest) = (0, lines);
    while rest.len() > FEW_LINES {
        let (lower, upper) = rest.split_at(rest.len() / 2);
        let is_above = lower.last().is_some_and(|line| line[15] < bound);
        from += if is_above { lower.len() } else { 0 };
        rest = if is_above { upper } else { lower };
    }
    match rest.iter().position(|line| line[15] >= bound) {
        Some(i) => (from + i) * 16 + below(&rest[i], bound),
        None => (from + rest.len()) * 16,
    }
}

/// How many of 16 ascending words are below a bound.
#[inline]
fn below(line: &[i32; 16], bound: i32) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::*;
        // SAFETY: every processor of this kind has SSE2. Four words lie at each place that is
        // loaded; the load needs no alignment.
        unsafe {
            let bounds = _mm_set1_epi32(bound);
            // A lane is -1 where the word is below.
            let [a, b, c, d] = [0, 4, 8, 12].map(|i| {
                let four = _mm_loadu_si128(line.as_ptr().add(i).cast());
                _mm_cmplt_epi32(four, bounds)
            });
            let bytes = _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
            _mm_movemask_epi8(bytes).trailing_ones() as usize
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    count_each_below(line, bound)
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(miri)))))]
fn count_each_below(words: &[i32], bound: i32) -> usize {
    words.iter().map(|word| usize::from(*word < bound)).sum()
}

/// Which of 32 bytes, in little endian words, have a value: bit `i` says it of byte `i`.
#[inline]
pub fn equal_bytes(words: [u64; 4], byte: u8) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::*;
        // SAFETY: every processor of this kind has SSE2.
        let of = |low: u64, high: u64| unsafe {
            let both = _mm_set_epi64x(high.cast_signed(), low.cast_signed());
            let wanted = _mm_set1_epi8(byte.cast_signed());
            _mm_movemask_epi8(_mm_cmpeq_epi8(both, wanted)).cast_unsigned()
        };
        of(words[0], words[1]) | of(words[2], words[3]) << 16
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    portable_equal_bytes(words, byte)
}

#[cfg(any(test, not(all(target_arch = "x86_64", not(miri)))))]
fn portable_equal_bytes(words: [u64; 4], byte: u8) -> u32 {
    let bytes = words.into_iter().flat_map(u64::to_le_bytes);
    bytes.enumerate().fold(0, |bits, (i, b)| bits | u32::from(b == byte) << i)
}

/// Prefetches memory that will be used soon. Any address will do: a hint has no other effect.
#[inline]
pub(crate) fn prefetch_at(at: usize, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..(at % 64 + bytes).div_ceil(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = std::ptr::without_provenance((at & !63).wrapping_add(line * 64));
        // SAFETY: the instruction never faults and changes nothing but the cache.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (at, bytes);
}

/// Prefetches a value that will be used soon.
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast::<u8>().addr(), size_of_val(value));
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::*;

    #[inline]
    fn word(bytes: &[u8; 8]) -> u64 {
        u64::from_le_bytes(*bytes)
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn crc32c(head: [u64; 2], bytes: &[u8]) -> u32 {
        let begun = _mm_crc32_u64(u64::from(u32::MAX), head[0]);
        // The areas of an entry, and what a table and a header of a published index have.
        match bytes.len() {
            32 => usual::<4>(begun, head[1], bytes),
            48 => usual::<6>(begun, head[1], bytes),
            56 => usual::<7>(begun, head[1], bytes),
            _ => behind(begun, head[1], bytes),
        }
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn crc32c_behind(head: [u64; 2], bytes: &[u8], prefix: &[u8]) -> Option<u32> {
        let ((wanted, odd), (words, tail)) = (prefix.as_chunks::<8>(), bytes.as_chunks::<8>());
        // A key and a value of the usual size: no loops for them.
        if let ([a, b, c], [x, y, z, last], [], []) = (wanted, words, odd, tail) {
            if (a, b, c) != (x, y, z) {
                return None;
            }
            let mut sum = _mm_crc32_u64(u64::from(u32::MAX), head[0]);
            for word in [head[1], word(a), word(b), word(c), word(last)] {
                sum = _mm_crc32_u64(sum, word);
            }
            return Some(!(sum as u32));
        }
        let Some((begin, rest)) = words.split_at_checked(wanted.len()).filter(|_| odd.is_empty())
        else {
            return bytes.starts_with(prefix).then(|| super::portable_crc32c(head, bytes));
        };
        let sum = _mm_crc32_u64(u64::from(u32::MAX), head[0]);
        let mut sum = _mm_crc32_u64(sum, head[1]);
        for (word, wanted) in begin.iter().zip(wanted) {
            if word != wanted {
                return None;
            }
            sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
        }
        if let ([word], []) = (rest, tail) {
            return Some(!(_mm_crc32_u64(sum, u64::from_le_bytes(*word)) as u32));
        }
        for word in rest {
            sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
        }
        let mut sum = sum as u32;
        for byte in tail {
            sum = _mm_crc32_u8(sum, *byte);
        }
        Some(!sum)
    }

    // The records of a published index, an entry and a record of an inner node: with their lengths
    // known, nothing of them is checked twice, and no loop goes over their words.

    #[target_feature(enable = "sse4.2")]
    pub(super) fn crc32c_matches(
        first: u64,
        (low, ignored): (u32, u32),
        records: super::Records<'_>,
    ) -> u32 {
        let begun = _mm_crc32_u64(u64::from(u32::MAX), first);
        let super::Records { bytes, len, covered, from } = records;
        if (len, covered) == (40, 32) {
            let entries = bytes.as_chunks::<40>().0.iter().map(<[u8; 40]>::as_slice);
            let sum = |second, covered: &[u8]| usual::<4>(begun, second, covered);
            return super::matches((low, ignored, from), 32, entries, sum);
        }
        let sum = |second, covered: &[u8]| behind(begun, second, covered);
        super::matches((low, ignored, from), covered, bytes.chunks_exact(len), sum)
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn crc32c_whole(numbering: super::Numbering, records: super::Records<'_>) -> u32 {
        let begun = _mm_crc32_u64(u64::from(u32::MAX), numbering.first);
        let super::Records { bytes, len, covered, .. } = records;
        if (len, covered) == (48, 40) {
            let records = bytes.as_chunks::<48>().0.iter().map(<[u8; 48]>::as_slice);
            let sum = |second, covered: &[u8]| usual::<5>(begun, second, covered);
            return super::whole(numbering, 40, records, sum);
        }
        let sum = |second, covered: &[u8]| behind(begun, second, covered);
        super::whole(numbering, covered, bytes.chunks_exact(len), sum)
    }

    #[target_feature(enable = "sse4.2")]
    pub(super) fn crc32c_seal(seal: super::Seal, records: &mut [u8]) {
        let begun = _mm_crc32_u64(u64::from(u32::MAX), seal.numbering.first);
        if (seal.len, seal.covered) == (40, 32) {
            let entries = records.as_chunks_mut::<40>().0;
            let entries = entries.iter_mut().map(<[u8; 40]>::as_mut_slice);
            let sum = |second, covered: &[u8]| usual::<4>(begun, second, covered);
            return super::seal_each(seal, 32, entries, sum);
        }
        let sum = |second, covered: &[u8]| behind(begun, second, covered);
        super::seal_each(seal, seal.covered, records.chunks_exact_mut(seal.len), sum);
    }

    /// [`behind`] of so many words, or of none: a loop for them costs more than they do.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn usual<const WORDS: usize>(begun: u64, second: u64, covered: &[u8]) -> u32 {
        let mut sum = _mm_crc32_u64(begun, second);
        if let Some(words) = covered.as_chunks::<8>().0.first_chunk::<WORDS>() {
            for word in words {
                sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
            }
        }
        !(sum as u32)
    }

    /// The checksum of a word and bytes behind what has this sum so far.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    fn behind(sum: u64, word: u64, bytes: &[u8]) -> u32 {
        let mut sum = _mm_crc32_u64(sum, word);
        let (words, tail) = bytes.as_chunks::<8>();
        let (fours, last) = words.as_chunks::<4>();
        for four in fours {
            for word in four {
                sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
            }
        }
        for word in last {
            sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
        }
        if tail.is_empty() {
            return !(sum as u32);
        }
        let mut sum = sum as u32;
        for byte in tail {
            sum = _mm_crc32_u8(sum, *byte);
        }
        !sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_checksum_is_crc_32c() {
        // "123456789" is the check value of the polynomial's specification; the head comes first.
        let all = b"0123456701234567123456789";
        let word = u64::from_le_bytes(*b"01234567");
        assert_eq!(crc32c([word, word], &all[16..]), ::crc32c::crc32c(all));
        assert_eq!(::crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn both_searches_for_a_byte_agree(words: [u64; 4], at in 0usize..32) {
            let byte = (words[at / 8] >> (at % 8 * 8)) as u8;
            prop_assert!(equal_bytes(words, byte) >> at & 1 == 1);
            prop_assert_eq!(equal_bytes(words, byte), portable_equal_bytes(words, byte));
        }

        #[test]
        fn both_checksums_agree(head: [u64; 2], bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(crc32c(head, &bytes), portable_crc32c(head, &bytes));
        }

        #[test]
        fn both_checksums_behind_a_prefix_agree(head: [u64; 2], bytes in proptest::collection::vec(0u8..2, 0..60), len in 0usize..60, at in 0usize..60) {
            let mut prefix = bytes[..len.min(bytes.len())].to_vec();
            let wanted = portable_crc32c(head, &bytes);
            prop_assert_eq!(crc32c_behind(head, &bytes, &prefix), Some(wanted));
            prop_assert_eq!(portable_crc32c_behind(head, &bytes, &prefix), Some(wanted));
            if let Some(byte) = prefix.get_mut(at) {
                *byte ^= 0x80;
                prop_assert_eq!(crc32c_behind(head, &bytes, &prefix), None);
                prop_assert_eq!(portable_crc32c_behind(head, &bytes, &prefix), None);
            }
            prefix = bytes.clone();
            prefix.push(0);
            prop_assert_eq!(crc32c_behind(head, &bytes, &prefix), None);
        }

        /// Every record but number `torn` has its checksum. Ignored bits may be set.
        #[test]
        fn a_record_matches_with_its_checksum(first: u64, low: u32, ignored: u32, from in 0usize..9, covered in 0usize..50, torn in 0usize..12, bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let (len, mut bytes) = (covered + 8 + covered % 3, bytes);
            let (low, ignored) = (low & !ignored | 2, ignored & !2);
            bytes.truncate(32 * len);
            let mut wanted = 0;
            for (i, record) in bytes.chunks_exact_mut(len).enumerate() {
                let second = (from + i + 1) as u64 | u64::from(low) << 32;
                let sum = portable_crc32c([first, second], &record[8..8 + covered]);
                let sum = sum ^ u32::from(i == torn);
                let extra = if i % 2 == 0 { ignored } else { 0 };
                record[..8].copy_from_slice(&(u64::from(sum) << 32 | u64::from(low | extra)).to_le_bytes());
                wanted |= u32::from(i != torn) << i;
            }
            let records = Records { bytes: &bytes, len, covered, from };
            prop_assert_eq!(crc32c_matches(first, (low, ignored), records), wanted);
            prop_assert_eq!(
                matches((low, ignored, from), covered, bytes.chunks_exact(len), |second, bytes| portable_crc32c([first, second], bytes)),
                wanted
            );
            prop_assert_eq!(crc32c_matches(first, (low ^ 2, ignored), records), 0);
        }

        /// Records of all states: sealed, each is whole, until one bit of it changes that counts.
        #[test]
        fn sealed_records_are_whole(first: u64, second: u32, step: u32, low: u32, covered in 0usize..50, torn in 0usize..12, bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let (len, low) = (covered + 8 + covered % 3, low & !0x3f);
            let (state, is_live) = (3, 1);
            let numbering = Numbering { first, second, step, state };
            let seal = Seal { numbering, len, covered, low, kept: 0x3d, live: is_live, fixed: 3 };
            let mut sealed = bytes;
            sealed.truncate(sealed.len() / len % 33 * len);
            let mut portable = sealed.clone();
            let state = |record: &[u8]| u32::from(record[0]) & state;
            let staged: u32 = sealed.chunks_exact(len).enumerate().map(|(i, r)| u32::from(state(r) == 3) << i).sum();
            crc32c_seal(seal, &mut sealed);
            seal_each(seal, covered, portable.chunks_exact_mut(len), |second, covered| portable_crc32c([first, second], covered));
            prop_assert_eq!(&sealed, &portable);
            let count = sealed.len() / len;
            let wanted = (((1u64 << count) - 1) as u32) & !staged;
            let live: Vec<_> = sealed.chunks_exact(len).map(|r| state(r) == is_live).collect();
            if let Some(torn) = (torn < count).then_some(torn * len) {
                sealed[torn + len - 1 - (len - 8 - covered)] ^= u8::from(covered > 0);
            }
            let records = Records { bytes: &sealed, len, covered, from: 0 };
            let is_torn = live.get(torn).is_some_and(|live| *live && covered > 0);
            let wanted = wanted & !(u32::from(is_torn) << (torn % 32));
            let found = crc32c_whole(numbering, records);
            prop_assert_eq!(found & !staged, wanted);
            let portable = whole(numbering, covered, sealed.chunks_exact(len), |second, covered| portable_crc32c([first, second], covered));
            prop_assert_eq!(found, portable);
        }

        #[test]
        fn both_bounds_agree(mut words in proptest::collection::vec(prop_oneof![0i32..9, any::<i32>()], 0..500), bound in prop_oneof![0i32..9, any::<i32>()]) {
            words.sort_unstable();
            let lines = words.as_chunks().0;
            let wanted = lines.as_flattened().partition_point(|word| *word < bound);
            prop_assert_eq!(lower_bound(lines, bound), wanted);
            prop_assert_eq!(count_each_below(lines.as_flattened(), bound), wanted);
        }
    }
}
