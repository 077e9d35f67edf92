//! What an owner keeps of a shard on memory nodes: the log, the manifest, and which writes of other
//! nodes took effect.
//!
//! One lock guards all of it, so that the state that begins a segment of the manifest is that of
//! one instant. It is taken inside the lock of the shard, and holds none but that of the view.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::BatchWrite;
use dmtree_pool::BlockPtr;

use crate::frame::Series;
use crate::key::Seq;
use crate::log::{Group, Log, Origin, record_bytes};
use crate::manifest::{Edit, Kept, Manifest, Roll, Step};
use crate::mutants::{Mutant, Mutants};
use crate::owner::Claim;
use crate::shard::Shard;
use crate::table::Meta;

/// The last write of a client of another node.
#[derive(Clone, Copy, Debug)]
struct Session {
    number: u64,
    seq: Seq,
}

/// A block that goes back when an edit is on the memory node.
struct Freeing {
    edit: u64,
    place: BlockPtr,
}

struct State {
    log: Log,
    manifest: Manifest,
    flushed: Seq,
    sessions: BTreeMap<u64, Session>,
    freeing: Vec<Freeing>,
}

/// What is kept of a shard.
pub(crate) struct Recorder {
    /// The words of the range: its owner, and its manifest.
    pub(crate) head: GlobalAddr,
    /// The first of them.
    pub(crate) claim: Arc<Claim>,
    logs: bool,
    mutants: Mutants,
    state: Mutex<State>,
}

dmtree_fabric::debug_line!(Recorder, it => "Recorder({})", it.head);

/// How a write was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// With this number.
    As(Seq),
    /// The active MemTable takes no more numbers.
    NoNumber,
    /// No block of the log has room.
    NoBlock,
    /// One has, once this edit is in the manifest.
    Unnamed(u64),
}

/// What a take-over has found.
pub(crate) struct Found {
    pub(crate) head: GlobalAddr,
    pub(crate) claim: Arc<Claim>,
    /// The segment of the manifest: what counts it, the word that names it, and its number.
    pub(crate) series: Series,
    pub(crate) word: u64,
    pub(crate) life: u64,
    pub(crate) flushed: Seq,
    pub(crate) log: Log,
    /// Clients with their last write and its number.
    pub(crate) sessions: Vec<(Origin, Seq)>,
}

impl Recorder {
    pub(crate) fn new(found: Found, logs: bool, of_node: &Mutants) -> Self {
        let manifest = Manifest::behind(found.series, found.word, found.life);
        let session = |((client, number), seq)| (client, Session { number, seq });
        let mutants = Mutants::default();
        let on: Vec<_> = Mutant::ALL.iter().copied().filter(|m| of_node.has(*m)).collect();
        mutants.set(&on);
        let sessions = match mutants.has(Mutant::SessionsForgotten) {
            true => BTreeMap::new(),
            false => found.sessions.into_iter().map(session).collect(),
        };
        let (log, flushed, freeing) = (found.log, found.flushed, Vec::new());
        let state = Mutex::new(State { log, manifest, flushed, sessions, freeing });
        Self { head: found.head, claim: found.claim, logs, mutants, state }
    }

    /// Takes a write: draws its number, stores its versions, and logs it.
    pub(crate) fn take(
        &self,
        shard: &Shard,
        (batch, pairs): (&[BatchWrite<'_>], &[u8]),
        origin: Option<Origin>,
    ) -> Taken {
        let mut state = locked(&self.state);
        if self.logs {
            let Some(named) = state.log.room(record_bytes(pairs)) else { return Taken::NoBlock };
            if state.manifest.durable() < named && !self.mutants.has(Mutant::BlockUnnamed) {
                return Taken::Unnamed(named);
            }
        }
        let Some(number) = shard.draw() else { return Taken::NoNumber };
        batch.iter().for_each(|(user, value)| number.put(user, *value));
        let seq = number.seq();
        if let Some((client, number)) = origin {
            state.sessions.insert(client, Session { number, seq });
        }
        if self.logs {
            state.log.append(number, origin, pairs);
        }
        Taken::As(seq)
    }

    /// The number of a write that was taken before; `None` when it was not.
    pub(crate) fn taken(&self, (client, number): Origin) -> Option<Seq> {
        if self.mutants.has(Mutant::Twice) {
            return None;
        }
        let state = locked(&self.state);
        state.sessions.get(&client).filter(|last| last.number == number).map(|last| last.seq)
    }

    // ---- the log ----------------------------------------

    /// Bytes of records that are not on the memory node.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        locked(&self.state).log.buffer_bytes()
    }

    /// Begins a group.
    pub(crate) fn begin_group(&self) -> Option<Group> {
        locked(&self.state).log.begin()
    }

    pub(crate) fn end_group(&self, group: &Group, is_there: bool) {
        let mut state = locked(&self.state);
        if !is_there {
            return state.log.in_doubt(group);
        }
        let complete = state.log.written(group);
        // Completion wakes nothing, but needs no lock either.
        drop(state);
        drop(complete);
    }

    /// Names a new block of the log. Returns the edit that does.
    pub(crate) fn add_block(&self, place: BlockPtr) -> u64 {
        let mut state = locked(&self.state);
        let edit = state.manifest.last() + 1;
        let id = state.log.add(place, edit);
        state.manifest.push(Edit::Log { id, place: place.bits() })
    }

    /// Whether the log is in use, and has no block behind the one that takes records.
    pub(crate) fn wants_block(&self) -> bool {
        let state = locked(&self.state);
        state.log.is_used() && !state.log.has_spare()
    }

    /// The edit that names the block with room for a record; `None` without one.
    pub(crate) fn room(&self, bytes: usize) -> Option<u64> {
        locked(&self.state).log.room(bytes)
    }

    /// The blocks of the log, and the segment of the manifest that is named.
    pub(crate) fn blocks(&self) -> Vec<BlockPtr> {
        let state = locked(&self.state);
        let logs = state.log.named().into_iter().map(|(_, place)| place);
        let words = logs.chain([state.manifest.word()]).filter(|word| *word != 0);
        words.map(BlockPtr::from_bits).collect()
    }

    // ---- the manifest -----------------------------------

    /// The versions of the shard have changed: called under its lock, before readers see it.
    pub(crate) fn edit(&self, level: usize, (added, removed): (Vec<Meta>, Vec<u64>), flushed: Seq) {
        let mut state = locked(&self.state);
        let new = state.flushed.max(flushed);
        let old = std::mem::replace(&mut state.flushed, new);
        let is_new = |last: &Session| last.seq > old && last.seq <= new;
        let sessions = state.sessions.iter().filter(|(_, last)| is_new(last));
        let sessions = sessions.map(|(client, last)| (*client, last.number)).collect();
        let edit = Edit::Tables { level: level as u8, added, removed, flushed: new, sessions };
        state.manifest.push(edit);
        self.release(&mut state);
    }

    /// The log has no block any more: all of its records are in tables, and there are no others.
    pub(crate) fn end_log(&self) {
        let mut state = locked(&self.state);
        state.log.end();
        self.release(&mut state);
    }

    /// Blocks of the log go back once the manifest has the tables of their numbers.
    fn release(&self, state: &mut State) {
        for (id, place) in state.log.release(state.flushed) {
            let edit = state.manifest.push(Edit::LogGone { id });
            let edit = if self.mutants.has(Mutant::LogFreedEarly) { 0 } else { edit };
            state.freeing.extend(place.map(|place| Freeing { edit, place }));
        }
    }

    /// Whether all edits are on the memory node, and nothing waits to be freed.
    pub(crate) fn is_kept(&self) -> bool {
        let state = locked(&self.state);
        state.manifest.durable() == state.manifest.last() && state.freeing.is_empty()
    }

    /// The same, and all records are.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_kept() && locked(&self.state).log.is_written()
    }

    /// The number of the last edit.
    pub(crate) fn last_edit(&self) -> u64 {
        locked(&self.state).manifest.last()
    }

    pub(crate) fn durable(&self) -> u64 {
        locked(&self.state).manifest.durable()
    }

    /// Begins a step of the manifest.
    pub(crate) fn begin_step(&self) -> Result<Option<Step>> {
        locked(&self.state).manifest.begin()
    }

    pub(crate) fn step_in_doubt(&self) {
        locked(&self.state).manifest.in_doubt();
    }

    pub(crate) fn appended(&self, bytes: usize, upto: u64) {
        locked(&self.state).manifest.appended(bytes, upto);
    }

    /// A new segment with the versions of the shard; called under its lock. Sessions of clients
    /// that are gone are forgotten.
    pub(crate) fn new_segment(
        &self,
        place: BlockPtr,
        levels: Vec<Vec<Meta>>,
        is_gone: impl Fn(u64) -> bool,
    ) -> Result<Result<Roll, usize>> {
        let mut state = locked(&self.state);
        state.sessions.retain(|client, _| !is_gone(*client));
        let flushed = state.flushed;
        let in_tables = state.sessions.iter().filter(|(_, last)| last.seq <= flushed);
        let sessions = in_tables.map(|(client, last)| (*client, last.number)).collect();
        let (logs, next_log) = (state.log.named(), state.log.next_id());
        let kept = Kept { levels, flushed, logs, next_log, sessions };
        state.manifest.new_segment(place, &kept)
    }

    pub(crate) fn rolled(&self) {
        let mut state = locked(&self.state);
        let (old, edit) = (state.manifest.rolled(), state.manifest.durable());
        state.freeing.extend(old.map(|place| Freeing { edit, place }));
    }

    /// Blocks of log and manifest that go back now.
    pub(crate) fn freed(&self) -> Vec<BlockPtr> {
        let mut state = locked(&self.state);
        let durable = state.manifest.durable();
        let free = |waiting: &mut Freeing| waiting.edit <= durable;
        state.freeing.extract_if(.., free).map(|waiting| waiting.place).collect()
    }
}
