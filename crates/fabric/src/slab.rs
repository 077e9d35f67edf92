//! Registered local buffers: where READs land and WRITEs come from.
//!
//! Ownership: a [`Buf`] belongs to its holder until it is given to a verb; from the post to the completion it belongs to the
//! posting (and so to the NIC), whoever drops the future meanwhile; then the awaiting code gets it back. In steady state a
//! buffer comes from a free list and no memory is allocated.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

/// Smallest buffer, bytes; classes double from here.
const MIN_BYTES: u32 = 64;
/// Largest buffer, bytes: a value of 1 MiB with its key and header.
pub const MAX_BUF_BYTES: u32 = 2 << 20;
const CLASSES: usize = (MAX_BUF_BYTES / MIN_BYTES).ilog2() as usize + 1;
/// Small classes are carved out of chunks of this many bytes.
const CARVE_BYTES: usize = 64 << 10;

fn class_of(len: u32) -> usize {
    (len.max(MIN_BYTES).next_power_of_two() / MIN_BYTES).ilog2() as usize
}

fn class_bytes(class: usize) -> u32 {
    MIN_BYTES << class
}

/// The buffers of one executor.
#[derive(Clone)]
pub struct Slab(Rc<Inner>);

struct Inner {
    free: RefCell<Vec<Vec<NonNull<u64>>>>,
    /// Every piece of memory ever carved, freed when the slab goes. Raw, because a box would claim to be the only way to it.
    chunks: RefCell<Vec<*mut [u64]>>,
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
    pub fn cost(len: u32) -> u64 {
        u64::from(class_bytes(class_of(len)))
    }

    /// Whether buffers that cost `bytes` in all can be had now. A request larger than the limit is let through when nothing
    /// else is out, so that it waits but never for ever.
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
        let ptr = popped.unwrap_or_else(|| self.carve(class));
        self.0.live_bytes.set(self.0.live_bytes.get() + u64::from(class_bytes(class)));
        Buf { ptr, len, class: class as u8, slab: self.clone() }
    }

    #[cold]
    fn carve(&self, class: usize) -> NonNull<u64> {
        let bytes = class_bytes(class) as usize;
        let count = (CARVE_BYTES / bytes).max(1);
        let chunk = Box::into_raw(vec![0u64; bytes / 8 * count].into_boxed_slice());
        let base = chunk.cast::<u64>();
        let mut free = self.0.free.borrow_mut();
        // SAFETY: every offset stays inside the chunk just allocated, which lives as long as the slab.
        let piece = |i: usize| unsafe { NonNull::new_unchecked(base.add(i * (bytes / 8))) };
        free[class].extend((1..count).rev().map(piece));
        self.0.chunks.borrow_mut().push(chunk);
        self.0.carved.set(self.0.carved.get() + 1);
        piece(0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for chunk in self.chunks.borrow_mut().drain(..) {
            // SAFETY: it came from a box, is freed once, and every `Buf` holds the slab, so that none is left.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({} of {} bytes live)", self.0.live_bytes.get(), self.0.limit_bytes)
    }
}

/// A registered buffer, dereferencing to its bytes.
pub struct Buf {
    ptr: NonNull<u64>,
    len: u32,
    class: u8,
    slab: Slab,
}

impl Buf {
    /// Its address for a transport. Valid while the buffer lives.
    pub(crate) fn raw(&self) -> *mut u8 {
        self.ptr.as_ptr().cast()
    }

    /// Shortens what the buffer shows (and a WRITE sends) to `len` bytes.
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
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory was carved with at least `len` initialised bytes, and no other `Buf` has it; while a verb is in
        // flight the posting owns the `Buf`, so no reference to these bytes exists then.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast(), self.len as usize) }
    }
}

impl DerefMut for Buf {
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
        inner.free.borrow_mut()[class].push(self.ptr);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

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
    fn room_has_a_limit_but_never_starves() {
        let slab = Slab::new(0);
        let big = slab.alloc(MAX_BUF_BYTES);
        let more = slab.alloc(MAX_BUF_BYTES);
        assert!(!slab.has_room(64));
        drop((big, more));
        assert!(slab.has_room(1 << 40), "alone, even a huge request goes through");
    }
}
