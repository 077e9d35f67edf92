//! Local locks in front of remote ones: of the clients of one compute node one at a time has a remote lock or tries for it, the others
//! queue here, first come, first served; and the lock is handed over among them a bounded number of times instead of being released
//! and taken again ("Sherman", SIGMOD'22, section 4.3).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{Endpoint, Result, WaitReason};

/// The compute node has the remote lock, whoever has the turn.
const HANDED: u32 = 1 << 31;

#[derive(Debug, Default)]
struct Local {
    turn: FifoMutex,
    /// How often the lock was handed over since it was taken; and [`HANDED`]. Written by whoever has the turn.
    state: AtomicU32,
    /// What the remote lock holds while it is handed over.
    tag: AtomicU64,
}

/// Told of a remote lock (its number, and what it holds) that was handed over to a client who gave up: nobody has it.
type Stranded = Box<dyn Fn(usize, u64) + Send + Sync>;

/// The local lock of every remote one.
pub struct LocalLocks {
    locks: Box<[Local]>,
    /// Clients that may have the lock one after the other before others get a chance.
    longest: u32,
    stranded: Option<Stranded>,
}

impl std::fmt::Debug for LocalLocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} local locks", self.locks.len())
    }
}

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

/// A client's turn at a lock. Dropped, it is passed on without the remote lock, which stays as it is.
#[derive(Debug)]
pub struct LocalTurn {
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

    /// The same; `stranded` is told of locks that nobody has any more.
    pub fn telling(locks: usize, longest: u32, stranded: Option<Stranded>) -> Arc<Self> {
        let locks = (0..locks.max(1)).map(|_| Local::default()).collect();
        Arc::new(Self { locks, longest, stranded })
    }

    /// Waits for the turn at lock number `lock`.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub async fn turn(self: &Arc<Self>, ep: &Endpoint, lock: usize) -> Result<LocalTurn> {
        let lock = lock % self.locks.len();
        let why = WaitReason { what: "turn at a remote lock", at: lock as u64 };
        // Whoever gives up may have been given the remote lock already.
        let mut waiting = Waiting { of: self, lock, gives_up: true };
        self.locks[lock].turn.acquire_polled(ep, why).await?;
        waiting.gives_up = false;
        Ok(self.taken(lock))
    }

    /// Takes the turn when nobody has it.
    pub fn try_turn(self: &Arc<Self>, lock: usize) -> Option<LocalTurn> {
        let lock = lock % self.locks.len();
        self.locks[lock].turn.try_acquire().then(|| self.taken(lock))
    }

    /// A lock that was handed over to somebody who does not want it any more, and for whom nobody waits.
    fn look_for_stranded(&self, lock: usize) {
        let local = &self.locks[lock];
        let (Some(stranded), true) = (&self.stranded, local.turn.try_acquire()) else { return };
        if local.state.load(Ordering::Relaxed) & HANDED != 0 {
            local.state.store(0, Ordering::Relaxed);
            stranded(lock, local.tag.load(Ordering::Relaxed));
        }
        local.turn.release();
    }

    /// The turn has come: whether the remote lock came along.
    fn taken(self: &Arc<Self>, lock: usize) -> LocalTurn {
        let state = self.locks[lock].state.load(Ordering::Relaxed);
        let is_handed = state & HANDED != 0;
        let chain = if is_handed { (state & !HANDED) + 1 } else { 1 };
        self.locks[lock].state.store(chain, Ordering::Relaxed);
        LocalTurn { of: self.clone(), lock, left: false, is_handed }
    }
}

impl LocalTurn {
    fn local(&self) -> &Local {
        &self.of.locks[self.lock]
    }

    /// Whether the remote lock may be handed over: somebody waits, and the chain is not too long.
    pub fn may_hand_over(&self) -> bool {
        let chain = self.local().state.load(Ordering::Relaxed);
        chain < self.of.longest && self.local().turn.is_awaited()
    }

    /// How many threads have clients that queue behind.
    pub fn threads_waiting(&self) -> usize {
        self.local().turn.threads_waiting()
    }

    /// What the remote lock holds, for whoever it is handed over to.
    pub fn set_tag(&self, tag: u64) {
        self.local().tag.store(tag, Ordering::Relaxed);
    }

    /// What the remote lock holds, when it was handed over.
    pub fn tag(&self) -> u64 {
        self.local().tag.load(Ordering::Relaxed)
    }

    /// Passes the turn on together with the remote lock. When nobody waits any more, the caller gets the turn back and has to release
    /// the remote lock.
    #[must_use = "a remote lock that nobody took over is still held"]
    pub fn hand_over(mut self) -> Option<Self> {
        self.left = true;
        self.local().state.fetch_or(HANDED, Ordering::Relaxed);
        if self.local().turn.release() || !self.local().turn.try_acquire() {
            return None;
        }
        let again = self.of.taken(self.lock);
        if again.is_handed { Some(again) } else { None }
    }

    /// Passes the turn on; the remote lock has been released, or is about to be.
    pub fn leave(self) {}
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        if !self.left {
            self.local().turn.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_turn(locks: &Arc<LocalLocks>) -> Option<LocalTurn> {
        locks.locks[0].turn.try_acquire().then(|| locks.taken(0))
    }

    #[test]
    fn a_lock_that_nobody_takes_over_comes_back() {
        let locks = LocalLocks::new(1, 8);
        let turn = try_turn(&locks).expect("free");
        assert!(!turn.is_handed && !turn.may_hand_over(), "nobody waits");
        let back = turn.hand_over().expect("nobody took it");
        assert!(back.is_handed);
        back.leave();
        assert!(!try_turn(&locks).expect("free").is_handed, "it was released");
    }

    /// The client to whom a lock was handed over had given up: the lock stayed held, and nobody knew.
    #[test]
    fn a_lock_handed_over_to_nobody_is_told_of() {
        let told = Arc::new(AtomicU64::new(0));
        let sees = told.clone();
        let stranded: Stranded = Box::new(move |lock, tag| {
            assert_eq!(lock, 0);
            sees.store(tag, Ordering::Relaxed);
        });
        let locks = LocalLocks::telling(1, 8, Some(stranded));
        let first = try_turn(&locks).expect("free");
        first.set_tag(7);
        let waiting = Waiting { of: &locks, lock: 0, gives_up: true };
        let place = locks.locks[0].turn.enter().expect("held");
        assert!(first.hand_over().is_none(), "granted");
        drop(place);
        drop(waiting);
        assert_eq!(told.load(Ordering::Relaxed), 7);
        assert!(!try_turn(&locks).expect("free").is_handed);
    }

    #[test]
    fn whoever_waits_gets_turn_and_lock_and_chains_end() {
        let locks = LocalLocks::new(1, 2);
        let first = try_turn(&locks).expect("free");
        let place = locks.locks[0].turn.enter().expect("held");
        assert!(first.may_hand_over());
        assert!(first.hand_over().is_none(), "taken over");
        let second = locks.taken(0);
        assert!(second.is_handed && !second.may_hand_over());
        drop(place);
    }
}
