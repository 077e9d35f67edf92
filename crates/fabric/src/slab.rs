//! Registered local buffers: where READs land and WRITEs come from.
//!
//! Ownership: a [`Buf`] belongs to its holder until it is given to a verb; from the post to the
//! completion it belongs to the posting (and so to the NIC), even when the future is dropped
//! meanwhile; then the awaiting code gets it back. In steady state a buffer comes from a free list
//! and no memory is allocated.

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

/// Smallest buffer, bytes; classes double from here.
const MIN_BYTES: u32 = 64;
/// Largest buffer, bytes: a value of 1 MiB with its key and header.
pub const MAX_BUF_BYTES: u32 = 2 << 20;
const CLASSES: usize = (MAX_BUF_BYTES / MIN_BYTES).ilog2() as usize + 1;
/// Small classes are carved out of chunks of this many bytes; the first chunks of a slab are
/// smaller, since the slab of a service lives for one call.
const CARVE_BYTES: usize = 64 << 10;

#[inline]
fn class_of(len: u32) -> usize {
    let bits = u32::BITS - (len.max(MIN_BYTES) - 1).leading_zeros();
    (bits - MIN_BYTES.ilog2()) as usize
}

#[inline]
fn class_bytes(class: usize) -> u32 {
    MIN_BYTES << class
}

/// Memory for one buffer, and the number of its chunk.
type Piece = (NonNull<u64>, u32);

/// Chunks begin on pages: a NIC registers whole ones.
const PAGE_BYTES: usize = 4096;

/// The buffers of one executor.
#[derive(Clone)]
pub struct Slab(Rc<Inner>);

struct Inner {
    free: RefCell<Vec<Vec<Piece>>>,
    /// Every piece of memory ever carved, by number, freed when the slab goes.
    chunks: RefCell<Vec<(NonNull<u64>, Layout)>>,
    live_bytes: Cell<u64>,
    limit_bytes: u64,
    carved: Cell<u64>,
}

impl Slab {
    /// A slab that hands out at most `limit_bytes` at a time.
    pub fn new(limit_bytes: u64) -> Self {
        Self(Rc::new(Inner {
            free: RefCell::new((0..CLASSES).map(|_| Vec::new()).collect()),
            chunks: RefCell::new(Vec::new()),
            live_bytes: Cell::new(0),
            limit_bytes: limit_bytes.max(u64::from(MAX_BUF_BYTES) * 2),
            carved: Cell::new(0),
        }))
    }

    /// Bytes that a buffer of `len` takes.
    #[inline]
    pub fn cost(len: u32) -> u64 {
        u64::from(class_bytes(class_of(len)))
    }

    /// Whether buffers that cost `bytes` in all can be had now. A request larger than the limit is
    /// let through when nothing else is out, so that it waits but never for ever.
    #[inline]
    pub fn has_room(&self, bytes: u64) -> bool {
        let live = self.0.live_bytes.get();
        live + bytes <= self.0.limit_bytes || live == 0
    }

    /// How many times memory was taken from the system; constant in steady state.
    pub fn carved(&self) -> u64 {
        self.0.carved.get()
    }

    /// Bytes handed out now.
    pub fn live_bytes(&self) -> u64 {
        self.0.live_bytes.get()
    }

    /// A buffer of `len` bytes with undefined (but initialised) contents.
    ///
    /// # Panics
    /// When `len` exceeds [`MAX_BUF_BYTES`]; lengths are bounded by the formats before.
    pub fn alloc(&self, len: u32) -> Buf {
        assert!(
            len <= MAX_BUF_BYTES,
            "a buffer has at most {MAX_BUF_BYTES} bytes, asked for {len}"
        );
        let class = class_of(len);
        let popped = self.0.free.borrow_mut()[class].pop();
        let (ptr, chunk) = popped.unwrap_or_else(|| self.carve(class));
        self.0.live_bytes.set(self.0.live_bytes.get() + u64::from(class_bytes(class)));
        Buf { ptr, len, chunk, class: class as u8, slab: self.clone() }
    }

    /// Where chunk number `i` lies, and how many bytes it has. Numbers count from 0, a chunk is
    /// never freed before the slab, and a transport registers it when it sees its number for the
    /// first time.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only a NIC asks"))]
    pub(crate) fn chunk(&self, i: u32) -> Option<(usize, usize)> {
        let chunks = self.0.chunks.borrow();
        chunks.get(i as usize).map(|(at, layout)| (at.as_ptr().expose_provenance(), layout.size()))
    }

    /// Whether both are the same slab.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only a NIC asks"))]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    #[cold]
    fn carve(&self, class: usize) -> Piece {
        let bytes = class_bytes(class) as usize;
        let chunk_bytes = (PAGE_BYTES << self.0.carved.get().min(8)).min(CARVE_BYTES);
        let count = (chunk_bytes / bytes).max(1);
        let layout = Layout::from_size_align(bytes * count, PAGE_BYTES).expect("far below isize");
        // SAFETY: the layout is not of size zero.
        let chunk = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(chunk.cast::<u64>()) else {
            std::alloc::handle_alloc_error(layout)
        };
        let mut chunks = self.0.chunks.borrow_mut();
        let number = chunks.len() as u32;
        chunks.push((base, layout));
        // SAFETY: every offset stays inside the chunk just allocated, which lives as long as the
        // slab.
        let piece = |i: usize| (unsafe { base.add(i * (bytes / 8)) }, number);
        self.0.free.borrow_mut()[class].extend((1..count).rev().map(piece));
        self.0.carved.set(self.0.carved.get() + 1);
        piece(0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (chunk, layout) in self.chunks.borrow_mut().drain(..) {
            // SAFETY: it was allocated with this layout, is freed once, and every `Buf` holds the
            // slab, so that none is left.
            unsafe { std::alloc::dealloc(chunk.as_ptr().cast(), layout) };
        }
    }
}

/// A registered buffer, dereferencing to its bytes.
pub struct Buf {
    ptr: NonNull<u64>,
    len: u32,
    chunk: u32,
    class: u8,
    slab: Slab,
}

impl Buf {
    /// Its address for a transport. Valid while the buffer lives.
    pub(crate) fn raw(&self) -> *mut u8 {
        self.ptr.as_ptr().cast()
    }

    /// The number of the slab's chunk that it lies in.
    pub(crate) fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Shortens the visible part of the buffer (which a WRITE sends) to `len` bytes.
    ///
    /// # Panics
    /// When `len` exceeds the present length.
    pub fn truncate(&mut self, len: u32) {
        assert!(len <= self.len, "a buffer only shrinks");
        self.len = len;
    }
}

impl Deref for Buf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory was carved with at least `len` initialised bytes, and no other `Buf`
        // has it; while a verb is in flight the posting owns the `Buf`, so no reference to these
        // bytes exists then.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), self.len as usize) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let class = self.class as usize;
        let inner = &self.slab.0;
        inner.live_bytes.set(inner.live_bytes.get() - u64::from(class_bytes(class)));
        inner.free.borrow_mut()[class].push((self.ptr, self.chunk));
    }
}

crate::debug_line!(Buf, it => "Buf({} bytes)", it.len);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_counted() {
        let slab = Slab::new(1 << 20);
        let first = slab.alloc(40);
        assert_eq!(slab.live_bytes(), 64);
        drop(first);
        let carved = slab.carved();
        for _ in 0..1000 {
            let mut b = slab.alloc(64);
            b[63] = 1;
        }
        assert_eq!((slab.carved(), slab.live_bytes()), (carved, 0));
    }

    #[test]
    fn a_buffer_knows_its_chunk() {
        let slab = Slab::new(1 << 20);
        let bufs: Vec<Buf> = [64, 64, 100_000, 700].iter().map(|len| slab.alloc(*len)).collect();
        assert_eq!(bufs.iter().map(Buf::chunk).collect::<Vec<_>>(), [0, 0, 1, 2]);
        for buf in &bufs {
            let (at, len) = slab.chunk(buf.chunk()).expect("carved");
            let begin = buf.raw().addr();
            assert!(at % PAGE_BYTES == 0 && begin >= at && begin + buf.len() <= at + len);
        }
        assert_eq!(slab.chunk(3), None);
    }

    #[test]
    fn room_has_a_limit_but_never_starves() {
        let slab = Slab::new(0);
        let big = slab.alloc(MAX_BUF_BYTES);
        let more = slab.alloc(MAX_BUF_BYTES);
        assert!(!slab.has_room(64));
        drop((big, more));
        assert!(slab.has_room(1 << 40), "alone, even a huge request goes through");
    }
}
