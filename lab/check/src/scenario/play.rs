//! One run of a script: the index as the script prepares it, the record of all operations, and the
//! judgement in the end.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;

use dmtree_fabric::sim::{CrashPoint, How};
use dmtree_fabric::{Endpoint, Error, ErrorKind, NodeId};
use dmtree_parts::{AnyIndex, Found};

use super::delay::was_accepted;
use super::{Op, PAUSE_NS, Scenario, Script, attempt, effect, get, scan};
use crate::harness::judge;
use crate::history::ValueId;
use crate::log::{Answer, Call, Log, event};
use crate::test_cluster::Client;

/// No lease ends while a play is judged, ns: no agent runs then.
const JUDGED_WITHIN_NS: u64 = 1_000_000_000;
/// Memory that no node can reach is free after this time, ns; a delayed client keeps all that it
/// may have seen.
const RECLAIM_NS: u64 = 1_000_000;

/// Refuses an operation that took too long.
pub(super) fn within(took_ns: u64, bound_ns: u64) -> Result<(), Error> {
    if took_ns <= bound_ns {
        return Ok(());
    }
    Err(Error::new(ErrorKind::TimedOut, format!("took {took_ns} ns; {bound_ns} are enough")))
}

pub(super) struct Play {
    pub scenario: Scenario,
    /// The identity of every value.
    values: RefCell<BTreeMap<Vec<u8>, ValueId>>,
    /// The keys that are present at first, or that an operation names.
    pub keys: Vec<u64>,
    /// Readers are to end.
    pub stop: Cell<bool>,
    readers: Cell<u32>,
}

impl Play {
    /// Prepares the index of a script by a client of node `first` before time begins; `later` are
    /// the operations of the run.
    pub fn begin<'o>(
        (script, first): (&Script, u16),
        later: impl Iterator<Item = &'o Op>,
        (whole_write, seed): (bool, u64),
    ) -> Result<Rc<Self>, String> {
        let scenario = Scenario::new(script, whole_write, seed);
        let values = scenario.prepare(script, first).map_err(|e| format!("before: {e}"))?;
        scenario.membership_agents();
        scenario.log.replace(Log::new(0, u64::MAX));
        let named = later.flat_map(|op| effect(op).into_iter().map(|(k, _)| k));
        let keys: BTreeSet<u64> = values.keys().copied().chain(named).collect();
        let (ids, stop, readers) = Default::default();
        let keys = keys.into_iter().collect();
        let new = Self { scenario, values: ids, keys, stop, readers };
        for (k, v) in &values {
            let record = new.scenario.call(0, Call::Put(*k, new.id(v)));
            new.scenario.ret(record, Answer::Done);
        }
        Ok(Rc::new(new))
    }

    fn id(&self, value: &[u8]) -> ValueId {
        let mut values = self.values.borrow_mut();
        let next = values.len() as ValueId;
        *values.entry(value.to_vec()).or_insert(next)
    }

    /// An operation, for each of its keys.
    fn calls(&self, op: &Op) -> Vec<Call> {
        match op {
            Op::Insert(k, v) => vec![Call::Insert(*k, self.id(v))],
            Op::Update(k, v) => vec![Call::Update(*k, self.id(v))],
            Op::Batch { low, high, step, value } => {
                vec![Call::Batch(*low, *high, *step, self.id(value))]
            }
            Op::Set(k, old, Some(new)) => {
                vec![Call::CompareAndSet(*k, self.id(old), self.id(new))]
            }
            op => {
                let call = |(k, v): (u64, Option<Vec<u8>>)| match v {
                    Some(v) => Call::Put(k, self.id(&v)),
                    None => Call::Delete(k),
                };
                effect(op).into_iter().map(call).collect()
            }
        }
    }

    /// Does an operation. The history judges its outcome.
    pub async fn perform(&self, c: &mut AnyIndex, op: &Op) -> Result<(), Error> {
        if let Op::Get(k) = op {
            return self.read(c, *k).await.map(drop);
        }
        let mut begun = Vec::new();
        for call in self.calls(op) {
            begun.push((self.scenario.call(0, call), call));
        }
        let outcome = attempt(c, op).await.map_err(|e| e.context(format!("{op:?}")))?;
        for (record, call) in begun {
            let answer = Answer::from(outcome);
            if !matches!(call, Call::Batch(..)) {
                event(call, Some(&answer)).map_err(Error::corrupt)?;
            }
            self.scenario.ret(record, answer);
        }
        Ok(())
    }

    /// Reads a key.
    pub async fn read(&self, c: &mut AnyIndex, k: u64) -> Result<Option<Vec<u8>>, Error> {
        let record = self.scenario.call(0, Call::Get(k));
        let found = get(c, k).await.map_err(|e| e.context(format!("get of {k}")))?;
        self.saw(record, found.as_deref());
        Ok(found)
    }

    fn saw(&self, record: usize, found: Option<&[u8]>) {
        self.scenario.ret(record, Answer::Found(found.map(|v| self.id(v))));
    }

    /// Reads every `nth` key by itself, then all by a scan, each within a bound.
    pub async fn read_all(&self, c: &mut AnyIndex, nth: usize, bound_ns: u64) -> Result<(), Error> {
        let ep = c.endpoint().clone();
        for k in self.keys.iter().skip(ep.now() as usize % nth).step_by(nth) {
            let began = ep.now();
            self.read(c, *k).await?;
            within(ep.now() - began, bound_ns)?;
        }
        let (began, call) = (ep.now(), |k| self.scenario.call(0, Call::Get(k)));
        let begun: Vec<_> = self.keys.iter().map(|k| (*k, call(*k))).collect();
        let mut found = scan(c).await.map_err(|e| e.context("scan"))?;
        within(ep.now() - began, bound_ns)?;
        begun.into_iter().for_each(|(k, record)| self.saw(record, found.remove(&k).as_deref()));
        // The last inserts, and keys that no operation has written.
        found.into_iter().for_each(|(k, v)| self.saw(call(k), Some(&v)));
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.scenario.log.borrow().check().map_err(|wrong| {
            let values = self.values.borrow();
            let named: Vec<_> = values
                .iter()
                .map(|(v, id)| format!("{id}: {}({})", v[..v.len().min(8)].escape_ascii(), v.len()))
                .collect();
            format!("{wrong} (values {})", named.join(", "))
        })
    }

    /// A client; its error is a failure of the run.
    pub fn client<F: Future<Output = Result<(), Error>> + 'static>(
        self: &Rc<Self>,
        (cn, name): (u16, &'static str),
        work: impl FnOnce(Rc<Self>, AnyIndex) -> F,
    ) {
        let (play, complain) = (self.clone(), self.scenario.complain());
        self.scenario.worker(cn, |c| {
            let work = work(play, c);
            async move { work.await.unwrap_or_else(|e| complain(format!("{name}: {e}"))) }
        });
    }

    /// A client on a node that crashes at a verb of its operations. The flag says that it has ended
    /// them before.
    pub fn victim(
        self: &Rc<Self>,
        (cn, ops): (u16, Vec<Op>),
        point: CrashPoint,
        how: How,
    ) -> Rc<Cell<bool>> {
        let ended = Rc::new(Cell::new(false));
        let survived = ended.clone();
        self.client((cn, "the victim"), move |play, mut c| async move {
            c.endpoint().sleep(1_500_000).await;
            let (fabric, me) = (&play.scenario.fabric, NodeId::compute(cn));
            fabric.crash_at(me, point, how)?;
            play.work(&mut c, cn, &ops).await?;
            fabric.spare(me);
            survived.set(true);
            Ok(())
        });
        ended
    }

    pub fn is_down(&self, cn: u16) -> bool {
        self.scenario.fabric.is_down(NodeId::compute(cn))
    }

    /// Whether a victim crashes before it has ended its operations.
    pub async fn crashes(&self, ep: &Endpoint, cn: u16, ended: &Cell<bool>) -> Result<bool, Error> {
        while !ended.get() && !self.is_down(cn) && self.scenario.trouble().is_none() {
            ep.sleep(20_000).await;
            within(ep.now(), 5_000_000_000).map_err(|e| e.context("the victim"))?;
        }
        // (Operations that end with a detached unlock may end before the node crashes.)
        Ok(!ended.get() || self.is_down(cn))
    }

    /// Runs these operations on a node.
    pub async fn work(&self, c: &mut AnyIndex, cn: u16, ops: &[Op]) -> Result<(), Error> {
        let (ep, pool) = (c.endpoint().clone(), self.scenario.pool(cn));
        for op in ops {
            let began = ep.now();
            while matches!(op, Op::Reclaim)
                && pool.reclaimer().reclaim(&ep).await.map_err(|e| e.context("a reclaim"))?.waiting
                    > 0
                && ep.now() < began + RECLAIM_NS
            {
                ep.sleep(PAUSE_NS / 8).await;
            }
            while matches!(op, Op::HandOver)
                && !was_accepted(pool.partitions().hand_over(&ep).await)
                    .map_err(|e| e.context("a move"))?
            {
                ep.sleep(PAUSE_NS).await;
                ep.renew_deadline();
            }
            self.perform(c, op).await?;
        }
        Ok(())
    }

    /// A client that reads all the time, from when `begins` holds.
    pub fn reader(self: &Rc<Self>, cn: u16, bound_ns: u64, begins: impl Fn() -> bool + 'static) {
        self.readers.set(self.readers.get() + 1);
        self.client((cn, "the reader"), |play, mut c| async move {
            let ep = c.endpoint().clone();
            while !begins() {
                ep.sleep(5_000).await;
            }
            while !play.stop.get() {
                play.read_all(&mut c, 5, bound_ns).await?;
                ep.sleep(50_000).await;
            }
            play.readers.set(play.readers.get() - 1);
            Ok(())
        });
    }

    /// Lets the readers end: none is stopped in the middle of a recovery.
    pub async fn stop_readers(&self, c: &AnyIndex) {
        self.stop.set(true);
        while self.readers.get() > 0 && self.scenario.trouble().is_none() {
            c.endpoint().sleep(10_000).await;
        }
    }

    /// Runs all clients until `main` has ended.
    pub fn run(
        &self,
        seed: u64,
        main: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), String> {
        let mut policy = dmtree_fabric::SeededRandom::new(seed);
        self.scenario.run(&mut policy, async {
            if let Err(e) = main.await {
                self.scenario.complain()(e.to_string());
            }
        });
        self.scenario.trouble().map_or(Ok(()), Err)
    }

    /// Checks the history, the structure, and the holders of memory, after maintenance on these
    /// nodes. Returns what memory was lost.
    pub fn judge(&self, script: &Script, nodes: &[u16], crashed: bool) -> Result<Found, String> {
        self.check()?;
        self.judge_structure(script, nodes, crashed).map_err(|e| e.to_string())
    }

    fn judge_structure(
        &self,
        script: &Script,
        nodes: &[u16],
        crashed: bool,
    ) -> Result<Found, Error> {
        let living = nodes.iter().map(|cn| usize::from(*cn));
        // With a mutant an operation may wait for ever: the end of its lease ends it.
        if script.enable.is_none() {
            self.scenario.test_cluster.prolong(living, JUDGED_WITHIN_NS)?;
        }
        let client = |cn: u16| Client::from(self.scenario.client(cn));
        for cn in nodes.iter().filter(|_| script.swept) {
            client(*cn).maintain().map_err(|e| e.context("maintenance"))?;
        }
        let excused = |e: &Error| script.unmet.is_some_and(|what| e.to_string().contains(what));
        if !script.swept && client(nodes[0]).walk().is_err_and(|e| excused(&e)) {
            return Ok(Found::default());
        }
        let scanned = self.scenario.now(scan(&mut self.scenario.client(nodes[0])));
        let keys = scanned.map_err(|e| e.context("a last scan"))?.len() as u64;
        judge(&mut client(nodes[0]), keys, crashed).map(|(_, found)| found)
    }
}
