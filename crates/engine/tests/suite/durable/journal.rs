//! A journal in virtual time that loses what the device does not have, and fails.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use dmtree_check::rng::Rng;
use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_journal::{Cut, IndexNumber, Journal, KnownIndex, Level, Pairs, Record, Ticket};

/// The index of the runs.
pub const INDEX: IndexNumber = IndexNumber(1);

/// What a journal does wrong, as a writer would that keeps its rules wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Records count as accepted when they are appended: a write does not wait.
    AcceptedEarly,
    /// Records are appended later: after the effect is visible.
    AppendedLate,
    /// A record comes before the one that was appended before it: the lock was given back first.
    OutOfOrder,
    /// A failed append goes on.
    FailureIgnored,
    /// Of a round only the last record is there.
    RoundCut,
    /// The journal node accepts appends of a node that is fenced.
    FencedAccepted,
    /// Appends go on after the end of the lease.
    LeaseIgnored,
}

/// A key and its value, or none.
pub type Effect = (Vec<u8>, Option<Vec<u8>>);

#[derive(Debug)]
struct State {
    /// Appends, in order; the records of one are together.
    appends: Vec<Vec<Effect>>,
    /// So many are on the device.
    synced: usize,
    /// Appended with [`Wrong::AppendedLate`].
    late: Vec<Vec<Effect>>,
    failure: Option<Error>,
    rng: Rng,
    /// An append fails so often; 0: never.
    fail_one_in: u64,
}

/// The journal of a run.
#[derive(Debug)]
pub struct SimJournal {
    level: Level,
    wrong: Option<Wrong>,
    state: Mutex<State>,
    news: WaitQueue,
}

impl SimJournal {
    /// With these records on the device.
    pub fn new(
        level: Level,
        wrong: Option<Wrong>,
        seed: u64,
        fail_one_in: u64,
        present: Vec<Effect>,
    ) -> Self {
        let rng = Rng::new(seed ^ 0x6a6f_7572_6e61_6c21);
        let (late, failure) = Default::default();
        let state = State { appends: vec![present], synced: 1, late, failure, rng, fail_one_in };
        Self { level, wrong, state: Mutex::new(state), news: WaitQueue::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// The device has everything.
    pub fn sync(&self) {
        let mut state = self.state();
        if state.failure.is_none() {
            let late = std::mem::take(&mut state.late);
            state.appends.extend(late);
            state.synced = state.appends.len();
        }
        drop(state);
        self.news.wake_all();
    }

    /// The power is gone: the journal that is found has what the device had, and some of the
    /// appends behind it. `process`: the process alone is gone, and the system has all appends.
    pub fn dies(&self, process: bool) {
        let mut state = self.state();
        if !process {
            let more = (state.appends.len() - state.synced) as u64;
            let kept = state.synced + state.rng.below(more + 1) as usize;
            state.appends.truncate(kept);
            state.synced = kept;
        }
        (state.late, state.failure) = Default::default();
    }

    /// The device does not fail any more.
    pub fn is_repaired(&self) {
        self.state().fail_one_in = 0;
    }

    /// Whether it has failed.
    pub fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// All appends, in order.
    pub fn appends(&self) -> Vec<Vec<Effect>> {
        self.state().appends.clone()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.state().appends.len()
    }

    /// The pairs.
    pub fn contents(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut pairs = BTreeMap::new();
        for (key, value) in self.state().appends.iter().flatten() {
            match value {
                Some(value) => _ = pairs.insert(key.clone(), value.clone()),
                None => _ = pairs.remove(key),
            }
        }
        pairs
    }
}

impl State {
    /// An append fails now and then, with its records in the journal or not; all later ones fail.
    fn fails(&mut self, effects: &[Effect]) -> bool {
        if self.failure.is_some() {
            return true;
        }
        if self.fail_one_in == 0 || self.rng.below(self.fail_one_in) > 0 {
            return false;
        }
        if self.rng.below(2) == 0 {
            self.appends.push(effects.to_vec());
        }
        let e = Error::new(ErrorKind::Closed, "the device has failed");
        self.failure = Some(e.effect_unknown());
        true
    }
}

impl Journal for SimJournal {
    fn append(&self, index: IndexNumber, records: &[Record<'_>]) -> Result<Ticket> {
        assert_eq!(index, INDEX);
        let effect = |record: &Record<'_>| match *record {
            Record::Put { key, value } => (key.to_vec(), Some(value.to_vec())),
            Record::Delete { key } => (key.to_vec(), None),
        };
        let mut effects: Vec<Effect> = records.iter().map(effect).collect();
        let mut state = self.state();
        if state.fails(&effects) {
            if self.wrong == Some(Wrong::FailureIgnored) {
                return Ok(Ticket(0));
            }
            let failure = state.failure.clone().expect("it has failed");
            drop(state);
            self.news.wake_all();
            return Err(failure);
        }
        match self.wrong {
            Some(Wrong::AppendedLate) => state.late.push(effects),
            Some(Wrong::OutOfOrder) if !state.appends.is_empty() => {
                let at = state.appends.len() - 1;
                state.appends.insert(at, effects);
            }
            Some(Wrong::RoundCut) => {
                effects.drain(..effects.len() - 1);
                state.appends.push(effects);
            }
            _ => state.appends.push(effects),
        }
        Ok(Ticket((state.appends.len() + state.late.len()) as u64))
    }

    fn is_accepted(&self, ticket: Ticket) -> Result<bool> {
        let state = self.state();
        let early = matches!(self.wrong, Some(Wrong::AcceptedEarly | Wrong::AppendedLate));
        if self.level != Level::Sync || early || state.synced as u64 >= ticket.0 {
            return Ok(true);
        }
        state.failure.clone().map_or(Ok(false), Err)
    }

    fn news(&self) -> &WaitQueue {
        &self.news
    }

    fn create(&self) -> Result<IndexNumber> {
        Ok(INDEX)
    }

    fn create_numbered(&self, _: IndexNumber) -> Result<()> {
        Ok(())
    }

    fn name(&self, _: &[KnownIndex]) -> Result<()> {
        Ok(())
    }

    fn remove(&self, _: IndexNumber) -> Result<()> {
        Ok(())
    }

    fn clear(&self, _: IndexNumber) -> Result<()> {
        self.state().appends.clear();
        Ok(())
    }

    fn cut(&self) -> Result<Box<dyn Cut>> {
        let number = self.state().appends.len() as u64;
        Ok(Box::new(SimCut { number, pairs: self.contents() }))
    }
}

/// The pairs at some time.
#[derive(Debug)]
struct SimCut {
    number: u64,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Cut for SimCut {
    fn number(&self) -> u64 {
        self.number
    }

    fn indexes(&self) -> &[KnownIndex] {
        &[]
    }

    fn pairs(&self, _: IndexNumber) -> Result<Pairs> {
        Ok(Box::new(self.pairs.clone().into_iter().map(Ok)))
    }
}
