//! The local lock table as published: read delegation, write combining, and lock hand-over.
//!
//! Each entry has a FIFO of readers and a FIFO of writers of one key on this compute node.
//! Operations that queue while another one works can share its result ([`Entered::Follower`]), or
//! get its remote lock handed over. The module uses no verbs; its state is local, and a crash of
//! the compute node loses it together with the clients.
//!
//! Order of an operation: [`LocalTable::enter`] takes a ticket, or returns [`Entered::Alone`] if
//! the entry has another key or too many readers. When its turn comes, the operation is the winner,
//! which executes the verbs for all, or a follower. [`Turn::release`] publishes a result and passes
//! the turn on; [`Turn::pass`] passes the turn on with or without the lock. A dropped [`Turn`]
//! passes the turn on without a result.
//!
//! A *window* is the set of operations that may share: those in the queue when the first turn is
//! released. This is the published rule, and it is too late, because the remote verb was executed
//! before. A reader then gets a value that was overwritten before the reader came, and a writer is
//! acknowledged although its value is never written (DESIGN.md, section 7). `dmtree_parts::combine`
//! has the correct rule: it closes the batch before the verb is posted.

use std::sync::Mutex;
use std::sync::{Arc, MutexGuard};

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{Endpoint, Result, Stage, WaitReason};
use dmtree_parts::hash::KeyHash;

/// Readers that wait for one key, as published. A reader that finds more acts alone.
const MOST_READERS: u32 = 8;
/// Writers that may hold a lock one after the other by hand-over, as published.
const LONGEST_CHAIN: u32 = 8;

/// The queue of readers or the queue of writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
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
struct Entry {
    queues: [Queue; 2],
    open: bool,
    found: bool,
    result: Vec<u8>,
    /// The value of the writer that came last.
    buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct Slot {
    state: Mutex<Entry>,
    turns: [FifoMutex; 2],
}

/// The table of one compute node.
#[derive(Debug)]
pub(crate) struct LocalTable {
    slots: Box<[Slot]>,
}

/// What an operation has to do when its turn comes.
#[derive(Debug)]
pub(crate) enum Entered {
    /// Act alone: the entry has another key, or is full.
    Alone,
    /// Act for all, then [`Turn::release`].
    Winner(Turn),
    /// Another operation has already acted for this one.
    Follower(Turn),
}

/// A place in the table. If it is dropped, the next operation inherits nothing.
#[derive(Debug)]
pub(crate) struct Turn {
    table: Arc<LocalTable>,
    slot: usize,
    side: Side,
    released: bool,
}

/// A queued operation, until its turn comes. Dropping it leaves the queue.
struct Waiting<'t> {
    slot: &'t Slot,
    side: Side,
    gone: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.gone {
            let mut state = self.slot.lock();
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

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Entry> {
        self.state.lock().expect("no panic under this lock")
    }
}

impl LocalTable {
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self { slots: (0..slots).map(|_| Slot::default()).collect() })
    }

    /// Queues an operation; `value` is a writer's. Returns when its turn has come.
    pub async fn enter(
        self: &Arc<Self>,
        ep: &Endpoint,
        (key, hash): (&[u8], KeyHash),
        side: Side,
        value: Option<&[u8]>,
    ) -> Result<Entered> {
        ep.stage_cost(Stage::LocalQueue, 1);
        let number = (hash.0 % self.slots.len() as u64) as usize;
        let slot = &self.slots[number];
        if !slot.join(key, side, value) {
            return Ok(Entered::Alone);
        }
        let mut waiting = Waiting { slot, side, gone: true };
        ep.point().await;
        let why = WaitReason { what: "turn at a key", at: hash.0 };
        let fifo_mutex = &slot.turns[side as usize];
        let at_once = fifo_mutex.try_acquire();
        if !at_once {
            fifo_mutex.acquire_polled(ep, why).await?;
        }
        waiting.gone = false;
        let turn = Turn { table: self.clone(), slot: number, side, released: false };
        if !at_once {
            // As published every thread polls the ticket that its clients wait for, and a served
            // client continues when its thread comes to it. The queue stalls meanwhile.
            ep.stage_cost(Stage::LocalQueue, 1);
            ep.stage_cost(Stage::PolledLine, fifo_mutex.threads_waiting() as u32);
            ep.sleep(0).await;
        }
        let mut state = slot.lock();
        let q = &mut state.queues[side as usize];
        if q.window == 0 {
            q.handed = false;
        }
        Ok(if q.handed { Entered::Follower(turn) } else { Entered::Winner(turn) })
    }

    #[cfg(test)]
    fn turn(self: &Arc<Self>, side: Side) -> (Turn, bool) {
        let slot = &self.slots[0];
        assert!(slot.turns[side as usize].try_acquire(), "its turn");
        let mut state = slot.lock();
        let q = &mut state.queues[side as usize];
        if q.window == 0 {
            q.handed = false;
        }
        (Turn { table: self.clone(), slot: 0, side, released: false }, q.handed)
    }
}

impl Slot {
    /// Takes a ticket; false when the operation has to act alone.
    fn join(&self, key: &[u8], side: Side, value: Option<&[u8]>) -> bool {
        let mut state = self.lock();
        let q = &mut state.queues[side as usize];
        let is_mine = q.queued == 0 || q.key == key;
        if !is_mine || (side == Side::Read && q.queued > MOST_READERS) {
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
}

impl Turn {
    fn slot(&self) -> &Slot {
        &self.table.slots[self.slot]
    }

    /// The result of the reader that this operation follows.
    pub fn result(&self, out: &mut Vec<u8>) -> bool {
        let state = self.slot().lock();
        out.clear();
        out.extend_from_slice(&state.result);
        state.found
    }

    /// The value of the writer that came last.
    pub fn latest(&self, value: &mut Vec<u8>) {
        let state = self.slot().lock();
        value.clear();
        value.extend_from_slice(&state.buffer);
    }

    /// Whether the lock may be handed over to the next writer of the key.
    pub fn may_hand_over(&self) -> bool {
        let state = self.slot().lock();
        let q = &state.queues[self.side as usize];
        q.queued > 1 && q.chain < LONGEST_CHAIN
    }

    /// Passes the turn on. Operations of the window share what was done; `read` is the result of a
    /// reader.
    pub fn release(mut self, read: Option<(bool, &[u8])>) {
        let slot = &self.table.slots[self.slot];
        let mut state = slot.lock();
        if let Some((found, value)) = read {
            state.found = found;
            state.result.clear();
            state.result.extend_from_slice(value);
        }
        let queued = [state.queues[0].queued, state.queues[1].queued];
        if !state.open {
            state.open = true;
            (state.queues[0].window, state.queues[1].window) = (queued[0], queued[1]);
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
        slot.turns[self.side as usize].release();
    }

    /// Passes the turn on, with the lock or without it.
    pub fn pass(mut self, with_lock: bool) {
        let slot = &self.table.slots[self.slot];
        let mut state = slot.lock();
        let q = &mut state.queues[self.side as usize];
        let next = with_lock && q.queued > 1;
        q.chain = if next { q.chain + 1 } else { 0 };
        // Every member of the queue may inherit the lock, so the window is the next member.
        q.window = u32::from(next);
        q.leave();
        q.handed = next;
        drop(state);
        self.released = true;
        slot.turns[self.side as usize].release();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.released {
            let slot = &self.table.slots[self.slot];
            let mut state = slot.lock();
            let q = &mut state.queues[self.side as usize];
            q.window = 0;
            q.handed = false;
            q.leave();
            drop(state);
            slot.turns[self.side as usize].release();
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
        assert!(t.slots[0].join(b"k", side, value));
    }

    /// As published: a reader that came after the READ of the reader that it follows.
    #[test]
    fn a_late_reader_follows() {
        let t = table();
        join(&t, Side::Read, None);
        let (first, handed) = t.turn(Side::Read);
        assert!(!handed);
        // At this point the first reader has READ, and another client overwrites the value. Then
        // the second reader comes.
        join(&t, Side::Read, None);
        first.release(Some((true, b"old")));
        let (second, handed) = t.turn(Side::Read);
        let mut out = Vec::new();
        assert!(handed && second.result(&mut out) && out == b"old");
        second.release(None);
        join(&t, Side::Read, None);
        assert!(!t.turn(Side::Read).1, "the window is closed");
    }

    /// As published: a writer comes after the WRITE, and is told that its value was written.
    #[test]
    fn a_late_writer_follows() {
        let t = table();
        join(&t, Side::Write, Some(b"1"));
        let (first, _) = t.turn(Side::Write);
        let mut value = Vec::new();
        first.latest(&mut value);
        assert_eq!(value, b"1");
        join(&t, Side::Write, Some(b"2"));
        first.release(None);
        assert!(t.turn(Side::Write).1);
    }

    /// Repaired without an additional verb: one lock protects keys, values and tickets.
    #[test]
    fn another_key_goes_alone() {
        let t = table();
        join(&t, Side::Write, Some(b"1"));
        assert!(!t.slots[0].join(b"other", Side::Write, Some(b"2")));
        let (turn, _) = t.turn(Side::Write);
        let mut value = Vec::new();
        turn.latest(&mut value);
        assert_eq!(value, b"1");
    }

    #[test]
    fn who_gives_up_hands_nothing_over() {
        let t = table();
        join(&t, Side::Write, Some(b"1"));
        let (turn, _) = t.turn(Side::Write);
        join(&t, Side::Write, Some(b"2"));
        drop(turn);
        let (turn, handed) = t.turn(Side::Write);
        assert!(!handed);
        turn.pass(true);
        assert!(t.slots[0].lock().queues[1].key.is_empty(), "nobody queues");
    }

    #[test]
    fn locks_are_handed_over_a_bounded_number_of_times() {
        let t = table();
        join(&t, Side::Write, None);
        let (mut turn, _) = t.turn(Side::Write);
        for n in 0..20 {
            join(&t, Side::Write, None);
            let may = turn.may_hand_over();
            turn.pass(may);
            let (next, handed) = t.turn(Side::Write);
            assert_eq!(handed, n % 9 != 8, "{n}");
            turn = next;
        }
    }
}
