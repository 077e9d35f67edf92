//! Local locks in front of remote ones: of the clients of one compute node one at a time has a
//! remote lock or tries for it; the others queue here, first come, first served. The remote lock is
//! handed over among them a bounded number of times instead of being released and taken again
//! ("Sherman", SIGMOD'22, section 4.3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{Endpoint, Result, WaitReason};

/// The compute node has the remote lock, independent of the mutex.
const HANDED: u32 = 1 << 31;

#[derive(Debug, Default)]
struct Local {
    mutex: FifoMutex,
    /// How often the lock was handed over since it was taken; and [`HANDED`]. Only the holder of
    /// the mutex writes it.
    state: AtomicU32,
    /// The contents of the remote lock while it is handed over.
    tag: AtomicU64,
}

/// Called with a remote lock (its number and contents) that was handed over to a client that gave
/// up: no client has it.
type Stranded = Box<dyn Fn(usize, u64) + Send + Sync>;

/// The local lock of every remote one.
pub struct LocalLocks {
    locks: Box<[Local]>,
    /// Clients that may have the lock one after the other before other nodes get a chance.
    longest: u32,
    stranded: Option<Stranded>,
}

dmtree_fabric::debug_line!(LocalLocks, it => "{} local locks", it.locks.len());

/// A client that queues.
struct Waiting<'l> {
    of: &'l LocalLocks,
    lock: usize,
    gives_up: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.gives_up {
            self.of.look_for_stranded(self.lock);
        }
    }
}

/// A client's hold of a local lock. Dropped, it is released without the remote lock, which stays as
/// it is.
#[derive(Debug)]
pub struct LocalGuard {
    of: Arc<LocalLocks>,
    lock: usize,
    left: bool,
    /// The remote lock came along: it must not be taken again.
    pub is_handed: bool,
}

impl LocalLocks {
    /// Local locks for `locks` remote ones; chains of at most `longest` clients.
    pub fn new(locks: usize, longest: u32) -> Arc<Self> {
        Self::telling(locks, longest, None)
    }

    /// The same; `stranded` is called with locks that no client has any more.
    pub fn telling(locks: usize, longest: u32, stranded: Option<Stranded>) -> Arc<Self> {
        let locks = (0..locks.max(1)).map(|_| Local::default()).collect();
        Arc::new(Self { locks, longest, stranded })
    }

    /// Acquires the local lock number `lock`.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub async fn lock(self: &Arc<Self>, ep: &Endpoint, lock: usize) -> Result<LocalGuard> {
        let lock = lock % self.locks.len();
        let why = WaitReason { what: "FIFO mutex of a remote lock", at: lock as u64 };
        // A client that gives up may have been given the remote lock already.
        let mut waiting = Waiting { of: self, lock, gives_up: true };
        self.locks[lock].mutex.acquire_polled(ep, why).await?;
        waiting.gives_up = false;
        Ok(self.taken(lock))
    }

    /// Acquires the local lock when it is free.
    pub fn try_lock(self: &Arc<Self>, lock: usize) -> Option<LocalGuard> {
        let lock = lock % self.locks.len();
        self.locks[lock].mutex.try_acquire().then(|| self.taken(lock))
    }

    /// A remote lock that was handed over to a client that gave up, with no client behind it.
    fn look_for_stranded(&self, lock: usize) {
        let local = &self.locks[lock];
        let (Some(stranded), true) = (&self.stranded, local.mutex.try_acquire()) else { return };
        if local.state.load(Ordering::Relaxed) & HANDED != 0 {
            local.state.store(0, Ordering::Relaxed);
            stranded(lock, local.tag.load(Ordering::Relaxed));
        }
        local.mutex.release();
    }

    /// The local lock is acquired: whether the remote lock came along.
    fn taken(self: &Arc<Self>, lock: usize) -> LocalGuard {
        let state = self.locks[lock].state.load(Ordering::Relaxed);
        let is_handed = state & HANDED != 0;
        let chain = if is_handed { (state & !HANDED) + 1 } else { 1 };
        self.locks[lock].state.store(chain, Ordering::Relaxed);
        LocalGuard { of: self.clone(), lock, left: false, is_handed }
    }
}

impl LocalGuard {
    fn local(&self) -> &Local {
        &self.of.locks[self.lock]
    }

    /// Whether the remote lock may be handed over: a client waits, and the chain is not too long.
    pub fn may_hand_over(&self) -> bool {
        let chain = self.local().state.load(Ordering::Relaxed);
        chain < self.of.longest && self.local().mutex.is_awaited()
    }

    /// How many threads have clients that queue behind.
    pub fn threads_waiting(&self) -> usize {
        self.local().mutex.threads_waiting()
    }

    /// The contents of the remote lock, for the next holder.
    pub fn set_tag(&self, tag: u64) {
        self.local().tag.store(tag, Ordering::Relaxed);
    }

    /// The contents of the remote lock, when it was handed over.
    pub fn tag(&self) -> u64 {
        self.local().tag.load(Ordering::Relaxed)
    }

    /// Releases the local lock together with the remote lock. When no client waits any more, the
    /// caller gets the local lock back and has to release the remote lock.
    #[must_use = "a remote lock that no client took over is still held"]
    pub fn hand_over(mut self) -> Option<Self> {
        self.left = true;
        self.local().state.fetch_or(HANDED, Ordering::Relaxed);
        if self.local().mutex.release() || !self.local().mutex.try_acquire() {
            return None;
        }
        let again = self.of.taken(self.lock);
        if again.is_handed { Some(again) } else { None }
    }

    /// Hands the remote lock over if it may be; `None` when the next client has it.
    #[must_use = "a remote lock that no client took over is still held"]
    pub fn hand_over_if_awaited(self) -> Option<Self> {
        if self.may_hand_over() { self.hand_over() } else { Some(self) }
    }

    /// Releases the local lock; the remote lock has been released, or is about to be.
    pub fn leave(self) {}
}

impl Drop for LocalGuard {
    fn drop(&mut self) {
        if !self.left {
            self.local().mutex.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_lock(locks: &Arc<LocalLocks>) -> Option<LocalGuard> {
        locks.locks[0].mutex.try_acquire().then(|| locks.taken(0))
    }

    #[test]
    fn a_lock_without_a_waiter_comes_back() {
        let locks = LocalLocks::new(1, 8);
        let guard = try_lock(&locks).expect("free");
        assert!(!guard.is_handed && !guard.may_hand_over(), "no waiter");
        let back = guard.hand_over().expect("no waiter");
        assert!(back.is_handed);
        back.leave();
        assert!(!try_lock(&locks).expect("free").is_handed, "it was released");
    }

    /// The client to which a lock was handed over had given up: the lock stayed held, unknown to
    /// all.
    #[test]
    fn a_lock_handed_over_to_no_client_is_reported() {
        let reported = Arc::new(AtomicU64::new(0));
        let sees = reported.clone();
        let stranded: Stranded = Box::new(move |lock, tag| {
            assert_eq!(lock, 0);
            sees.store(tag, Ordering::Relaxed);
        });
        let locks = LocalLocks::telling(1, 8, Some(stranded));
        let first = try_lock(&locks).expect("free");
        first.set_tag(7);
        let waiting = Waiting { of: &locks, lock: 0, gives_up: true };
        let place = locks.locks[0].mutex.enter(0).expect("held");
        assert!(first.hand_over().is_none(), "granted");
        drop(place);
        drop(waiting);
        assert_eq!(reported.load(Ordering::Relaxed), 7);
        assert!(!try_lock(&locks).expect("free").is_handed);
    }

    #[test]
    fn a_waiter_gets_mutex_and_lock_and_chains_end() {
        let locks = LocalLocks::new(1, 2);
        let first = try_lock(&locks).expect("free");
        let place = locks.locks[0].mutex.enter(0).expect("held");
        assert!(first.may_hand_over());
        assert!(first.hand_over().is_none(), "taken over");
        let second = locks.taken(0);
        assert!(second.is_handed && !second.may_hand_over());
        drop(place);
    }
}
