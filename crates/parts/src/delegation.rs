//! The local lock table of SMART (OSDI'23, section 4.3) as published, which CHIME and ROLEX share:
//! read delegation, write combining, and lock hand-over.
//!
//! Each entry has a FIFO of readers and a FIFO of writers of one key on this compute node.
//! Operations that queue while another one executes can share its result ([`Entered::Follower`]),
//! or get its remote lock handed over. The module uses no verbs; its state is local, and a crash of
//! the compute node loses it together with the clients.
//!
//! Order of an operation: [`LocalTable::enter`] takes a ticket, or returns [`Entered::Alone`] if
//! the entry has another key or too many readers. When the ticket is served, the operation is the
//! winner, which executes the verbs for all, or a follower. [`QueueGuard::publish`] publishes a
//! result and serves the next ticket; [`QueueGuard::hand_over`] serves the next ticket with or
//! without the lock. A dropped [`QueueGuard`] serves the next ticket without a result.
//!
//! A *window* is the set of operations that may share: those in the queue when the first guard is
//! released. This is the published rule, and it is too late, because the remote verb was executed
//! before. A reader then gets a value that was overwritten before the reader came, and a writer is
//! acknowledged although its value is never written (DESIGN.md of SMART, section 7).
//! [`crate::combine`] has the correct rule: it closes the batch before the verb is posted.

use std::sync::{Arc, Mutex, MutexGuard};

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{Endpoint, Result, Stage, WaitReason};

use crate::hash::KeyHash;

/// Most readers in the queue of one key, as published. A reader that finds more acts alone.
const MAX_READERS: u32 = 8;
/// Most consecutive hand-overs of a lock, as published.
const MAX_HANDOVERS: u32 = 8;

/// The queue of readers or the queue of writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Readers.
    Read,
    /// Writers.
    Write,
}

#[derive(Debug, Default)]
struct Queue {
    /// The key of its members; empty without members.
    key: Vec<u8>,
    queued: u32,
    /// The result or the lock of the predecessor goes to the next member.
    handed: bool,
    /// Members that may share in the present window.
    window: u32,
    /// Number of consecutive hand-overs.
    chain: u32,
}

#[derive(Debug, Default)]
struct EntryState {
    queues: [Queue; 2],
    open: bool,
    found: bool,
    result: Vec<u8>,
    /// The value of the writer that came last.
    buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct TableEntry {
    state: Mutex<EntryState>,
    mutexes: [FifoMutex; 2],
}

/// The table of one compute node.
#[derive(Debug)]
pub struct LocalTable {
    entries: Box<[TableEntry]>,
}

/// The role of an operation when its ticket is served.
#[derive(Debug)]
pub enum Entered {
    /// Act alone: the entry has another key, or is full.
    Alone,
    /// Act for all, then [`QueueGuard::publish`].
    Winner(QueueGuard),
    /// Another operation has already acted for this one.
    Follower(QueueGuard),
}

/// The head of a queue. If it is dropped, the next operation inherits nothing.
#[derive(Debug)]
pub struct QueueGuard {
    table: Arc<LocalTable>,
    entry: usize,
    side: Side,
    released: bool,
}

/// A queued operation, until its ticket is served. Dropping it leaves the queue.
struct Queued<'t> {
    entry: &'t TableEntry,
    side: Side,
    leaves: bool,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.leaves {
            let mut state = self.entry.lock();
            state.queues[self.side as usize].leave();
        }
    }
}

impl Queue {
    fn leave(&mut self) {
        self.queued -= 1;
        if self.queued == 0 {
            self.key.clear();
            self.handed = false;
        }
    }
}

impl TableEntry {
    fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Takes a ticket; false when the operation has to act alone.
    fn join(&self, key: &[u8], side: Side, value: Option<&[u8]>) -> bool {
        let mut state = self.lock();
        let q = &mut state.queues[side as usize];
        let same_key = q.queued == 0 || q.key == key;
        if !same_key || (side == Side::Read && q.queued > MAX_READERS) {
            return false;
        }
        if q.queued == 0 {
            q.key.clear();
            q.key.extend_from_slice(key);
        }
        q.queued += 1;
        if let Some(value) = value {
            state.buffer.clear();
            state.buffer.extend_from_slice(value);
        }
        true
    }

    /// Whether the operation that is served now inherits the result or the lock.
    fn is_handed(&self, side: Side) -> bool {
        let mut state = self.lock();
        let q = &mut state.queues[side as usize];
        if q.window == 0 {
            q.handed = false;
        }
        q.handed
    }
}

impl LocalTable {
    /// A table with so many entries.
    pub fn new(entries: usize) -> Arc<Self> {
        Arc::new(Self { entries: (0..entries).map(|_| TableEntry::default()).collect() })
    }

    /// Queues an operation; `value` is a writer's. Returns when its ticket is served.
    ///
    /// # Errors
    /// The deadline of the operation.
    pub async fn enter(
        self: &Arc<Self>,
        ep: &Endpoint,
        (key, hash): (&[u8], KeyHash),
        side: Side,
        value: Option<&[u8]>,
    ) -> Result<Entered> {
        ep.stage_cost(Stage::LocalQueue, 1);
        let number = (hash.0 % self.entries.len() as u64) as usize;
        let entry = &self.entries[number];
        if !entry.join(key, side, value) {
            return Ok(Entered::Alone);
        }
        let mut queued = Queued { entry, side, leaves: true };
        ep.point().await;
        let why = WaitReason { what: "local queue of a key", at: hash.0 };
        let mutex = &entry.mutexes[side as usize];
        let at_once = mutex.try_acquire();
        if !at_once {
            mutex.acquire_polled(ep, why).await?;
        }
        queued.leaves = false;
        let guard = QueueGuard { table: self.clone(), entry: number, side, released: false };
        if !at_once {
            // As published every thread polls the ticket that its clients wait for, and a served
            // client continues when its thread comes to it. The queue stalls meanwhile.
            ep.stage_cost(Stage::LocalQueue, 1);
            ep.stage_cost(Stage::PolledLine, mutex.threads_waiting() as u32);
            ep.sleep(0).await;
        }
        let handed = entry.is_handed(side);
        Ok(if handed { Entered::Follower(guard) } else { Entered::Winner(guard) })
    }

    #[cfg(test)]
    fn acquire(self: &Arc<Self>, side: Side) -> (QueueGuard, bool) {
        let entry = &self.entries[0];
        assert!(entry.mutexes[side as usize].try_acquire(), "the mutex is free");
        let handed = entry.is_handed(side);
        (QueueGuard { table: self.clone(), entry: 0, side, released: false }, handed)
    }
}

impl QueueGuard {
    fn entry(&self) -> &TableEntry {
        &self.table.entries[self.entry]
    }

    /// The result of the reader that this operation follows.
    pub fn result(&self, out: &mut Vec<u8>) -> bool {
        let state = self.entry().lock();
        out.clear();
        out.extend_from_slice(&state.result);
        state.found
    }

    /// The value of the writer that came last.
    pub fn latest(&self, value: &mut Vec<u8>) {
        let state = self.entry().lock();
        value.clear();
        value.extend_from_slice(&state.buffer);
    }

    /// Whether the lock may be handed over to the next writer of the key.
    pub fn may_hand_over(&self) -> bool {
        let state = self.entry().lock();
        let q = &state.queues[self.side as usize];
        q.queued > 1 && q.chain < MAX_HANDOVERS
    }

    /// Serves the next ticket. Operations of the window share the result; `read` is the result of a
    /// reader.
    pub fn publish(mut self, read: Option<(bool, &[u8])>) {
        let entry = &self.table.entries[self.entry];
        let mut state = entry.lock();
        if let Some((found, value)) = read {
            state.found = found;
            state.result.clear();
            state.result.extend_from_slice(value);
        }
        if !state.open {
            state.open = true;
            for q in &mut state.queues {
                q.window = q.queued;
            }
        }
        let q = &mut state.queues[self.side as usize];
        q.handed = q.queued > 1;
        q.window = q.window.saturating_sub(1);
        let handed = q.handed;
        q.leave();
        q.handed &= handed;
        if state.queues.iter().all(|q| q.window == 0) {
            state.open = false;
        }
        drop(state);
        self.released = true;
        entry.mutexes[self.side as usize].release();
    }

    /// Serves the next ticket, with the lock or without it.
    pub fn hand_over(mut self, with_lock: bool) {
        let entry = &self.table.entries[self.entry];
        let mut state = entry.lock();
        let q = &mut state.queues[self.side as usize];
        let next = with_lock && q.queued > 1;
        q.chain = if next { q.chain + 1 } else { 0 };
        // Every member of the queue may inherit the lock, so the window is the next member.
        q.window = u32::from(next);
        q.leave();
        q.handed = next;
        drop(state);
        self.released = true;
        entry.mutexes[self.side as usize].release();
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        if !self.released {
            let entry = &self.table.entries[self.entry];
            let mut state = entry.lock();
            let q = &mut state.queues[self.side as usize];
            q.window = 0;
            q.handed = false;
            q.leave();
            drop(state);
            entry.mutexes[self.side as usize].release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Arc<LocalTable> {
        LocalTable::new(1)
    }

    fn join(t: &Arc<LocalTable>, side: Side, value: Option<&[u8]>) {
        assert!(t.entries[0].join(b"k", side, value));
    }

    /// As published: a reader that came after the READ of the reader that it follows.
    #[test]
    fn a_late_reader_follows() {
        let t = table();
        join(&t, Side::Read, None);
        let (first, handed) = t.acquire(Side::Read);
        assert!(!handed);
        // At this point the first reader has READ, and another client overwrites the value. Then
        // the second reader comes.
        join(&t, Side::Read, None);
        first.publish(Some((true, b"old")));
        let (second, handed) = t.acquire(Side::Read);
        let mut out = Vec::new();
        assert!(handed && second.result(&mut out) && out == b"old");
        second.publish(None);
        join(&t, Side::Read, None);
        assert!(!t.acquire(Side::Read).1, "the window is closed");
    }

    /// As published: a writer comes after the WRITE, and is told that its value was written.
    #[test]
    fn a_late_writer_follows() {
        let t = table();
        join(&t, Side::Write, Some(b"1"));
        let (first, _) = t.acquire(Side::Write);
        let mut value = Vec::new();
        first.latest(&mut value);
        assert_eq!(value, b"1");
        join(&t, Side::Write, Some(b"2"));
        first.publish(None);
        assert!(t.acquire(Side::Write).1);
    }

    /// Repaired without an additional verb: one lock protects keys, values and tickets.
    #[test]
    fn another_key_acts_alone() {
        let t = table();
        join(&t, Side::Write, Some(b"1"));
        assert!(!t.entries[0].join(b"other", Side::Write, Some(b"2")));
        let (guard, _) = t.acquire(Side::Write);
        let mut value = Vec::new();
        guard.latest(&mut value);
        assert_eq!(value, b"1");
    }

    #[test]
    fn a_dropped_guard_hands_nothing_over() {
        let t = table();
        join(&t, Side::Write, Some(b"1"));
        let (guard, _) = t.acquire(Side::Write);
        join(&t, Side::Write, Some(b"2"));
        drop(guard);
        let (guard, handed) = t.acquire(Side::Write);
        assert!(!handed);
        guard.hand_over(true);
        assert!(t.entries[0].lock().queues[1].key.is_empty(), "the queue is empty");
    }

    #[test]
    fn locks_are_handed_over_a_bounded_number_of_times() {
        let t = table();
        join(&t, Side::Write, None);
        let (mut guard, _) = t.acquire(Side::Write);
        for n in 0..20 {
            join(&t, Side::Write, None);
            let may = guard.may_hand_over();
            guard.hand_over(may);
            let (next, handed) = t.acquire(Side::Write);
            assert_eq!(handed, n % 9 != 8, "{n}");
            guard = next;
        }
    }
}
