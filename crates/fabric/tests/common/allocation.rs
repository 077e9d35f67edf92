//! A counting allocator, and the number of allocations of verbs in steady state.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::verb::{cas, read, write};
use dmtree_fabric::{Fabric, GlobalAddr, NodeId, OpKind, OpOutcome};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

pub struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait demands of the caller.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    // SAFETY: as the trait demands of the caller.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Allocations in `measured` rounds of five verbs, after rounds that fill the caches. The fabric
/// has no nodes yet, and [`Counting`] is the allocator of the program.
pub fn of_rounds(f: &impl Fabric, add_node: impl Fn(NodeId, u64), measured: u64) -> u64 {
    let (mn, cn) = (NodeId::memory(0), NodeId::compute(0));
    add_node(mn, 1 << 16);
    add_node(cn, 1 << 12);
    let ep = &super::endpoint(f, cn);
    let at = GlobalAddr::new(mn, 64);
    let rounds = |n: u64| {
        super::on(ep, async {
            for i in 0..n {
                let scope = ep.begin(OpKind::Update);
                let (_, image) = ep.chain((cas(at, 0, i), read(at.plus(64), 1360))).await?;
                drop(image);
                let mut buf = ep.buf(40).await?;
                buf.fill(i as u8);
                ep.write(at.plus(64), buf).await?;
                let mut body = ep.buf(56).await?;
                body.fill(1);
                ep.detach((write(at.plus(8), body), cas(at, i, 0)), None);
                scope.end(OpOutcome::Hit);
            }
            Ok(())
        })
        .expect("verbs work");
    };
    rounds(100);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    rounds(measured);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}
