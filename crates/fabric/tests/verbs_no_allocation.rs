//! In steady state a verb allocates nothing on a real RDMA device either.
#![cfg(feature = "verbs")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::verb::{cas, read, write};
use dmtree_fabric::verbs::{Config, VerbsFabric};
use dmtree_fabric::{Core, Endpoint, Fabric, GlobalAddr, NodeId, OpKind, OpOutcome};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

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

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
#[expect(clippy::disallowed_macros, reason = "a skip is loud")]
fn verbs_allocate_nothing_in_steady_state() {
    let f = match VerbsFabric::new(&Config::default()) {
        Ok(f) => f,
        Err(e) if std::env::var_os("DMTREE_NEED_RDMA").is_none() => {
            return println!("SKIPPED: {e}");
        }
        Err(e) => panic!("{e}"),
    };
    let (mn, cn) = (NodeId::memory(0), NodeId::compute(0));
    f.add_node(mn, 1 << 16).expect("new");
    f.add_node(cn, 1 << 12).expect("new");
    let transport = f.attach(cn).expect("a member");
    let core = Core::new(transport.clone(), 0);
    let slot = core.add_slot();
    let ep = &Endpoint::new(core.clone(), transport, slot);
    let at = GlobalAddr::new(mn, 64);
    let rounds = |n: u64| {
        core.block_on(slot, async {
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
    rounds(1_000);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    // A block_on makes nothing per verb; leave room for allocations of the test harness.
    assert!(after - before < 10, "{} allocations in 5000 verbs", after - before);
}
