//! The cluster of a soak: two memory nodes, and drivers in slots, each with one incarnation after
//! the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::etcd::Etcd;
use super::events::Events;
use super::model::Model;
use super::process::{Line, Process};
use super::sample::{Series, Uses};

/// Drivers; the first one is killed only together with all others.
pub const SLOTS: usize = 4;
/// The lease of a compute node.
pub const LEASE: Duration = Duration::from_millis(500);
const THREADS: u32 = 2;
const KEYS: u32 = 60;
/// The numbers of the memory nodes among the sources of lines: behind the drivers.
const MEMORY: usize = SLOTS;
/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// After the last event, every driver works again within this time: an operation that waits for a
/// lost lock ends after ten seconds.
const RECOVERY_BOUND: Duration = Duration::from_secs(25);
/// Time for which it has to work.
const CHECKED_FOR: Duration = Duration::from_secs(3);
/// Longest time for leaving.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);

/// A process that events hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessId {
    Driver(usize),
    Memory(usize),
    Etcd,
}

#[derive(Default)]
struct DriverSlot {
    process: Option<Process>,
    incarnation: u32,
    /// The start of the next incarnation.
    starts: Option<Instant>,
    /// The time at which it was told to leave, and the time until its next start.
    leaving: Option<(Instant, Duration)>,
    /// It was killed: its end is no violation.
    killed: bool,
    /// Streams that have not ended.
    streams: u32,
    /// Acknowledgements and errors since the last check.
    acknowledged: u64,
    errors: u64,
    /// Errors among them that do not name the second memory node.
    others: u64,
    /// Its last lines about errors.
    words: VecDeque<String>,
}

/// The cluster.
pub struct Cluster {
    binary: String,
    at: String,
    etcd: Option<Etcd>,
    memory: Vec<Process>,
    slots: Vec<DriverSlot>,
    to: Sender<Line>,
    lines: Receiver<Line>,
    /// Paused processes, and the ends of their pauses.
    stopped: Vec<(Instant, ProcessId)>,
    model: Model,
    violations: Vec<String>,
    lost: bool,
    sampled: Instant,
    uses: Vec<(ProcessId, Uses)>,
    used: Series,
    words: VecDeque<String>,
    starts: u32,
}

impl Cluster {
    pub fn start(binary: String, with_etcd: bool) -> Result<Self> {
        let (to, lines) = channel();
        let lease = LEASE.as_millis().to_string();
        let first = ["--memory-nodes", "2", "--lease-ms", &lease];
        let size = ["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "256MiB"];
        let etcd = with_etcd.then(|| Etcd::start(&to)).transpose()?;
        let kept = etcd.as_ref().map(|etcd| format!("etcd://{}/soak", etcd.at));
        let kept_in = kept.as_deref().map_or(Vec::new(), |kept| vec!["--membership", kept]);
        let found = [&size[..], &first, &kept_in].concat();
        let mn0 = Process::start((&binary, &found), (MEMORY, 0), &to)?;
        let serving = serves(&lines)?;
        let at = kept.unwrap_or(serving);
        let join = ["--join", &at];
        let mn1 = Process::start((&binary, &[&size[..], &join].concat()), (MEMORY + 1, 0), &to)?;
        serves(&lines)?;
        let names = [ProcessId::Memory(0), ProcessId::Memory(1), ProcessId::Driver(0)];
        let uses = names.map(|id| (id, Uses::new(&id.name()))).into();
        let mut cluster = Self {
            binary,
            at,
            etcd,
            memory: vec![mn0, mn1],
            slots: (0..SLOTS).map(|_| DriverSlot::default()).collect(),
            to,
            lines,
            stopped: Vec::new(),
            model: Model::default(),
            violations: Vec::new(),
            lost: false,
            sampled: Instant::now(),
            uses,
            used: Series::new("chunks in use", "MiB", (15, 12)),
            words: VecDeque::new(),
            starts: 0,
        };
        (0..SLOTS).try_for_each(|slot| cluster.begin(slot))?;
        Ok(cluster)
    }

    /// Starts the next incarnation of a slot.
    fn begin(&mut self, slot: usize) -> Result<()> {
        let after = (self.model.highest(keys(slot)) + 1_000).to_string();
        let [index, threads, each] = [slot as u32, THREADS, KEYS].map(|n| n.to_string());
        let s = &mut self.slots[slot];
        s.incarnation += 1;
        let seed = (slot as u64 * 1_000_000 + u64::from(s.incarnation)).to_string();
        let work =
            ["drive", "work", "--connect", &self.at, "--slot", &index, "--threads", &threads];
        let more = ["--keys", &each, "--after", &after, "--seed", &seed];
        let source = (slot, s.incarnation);
        s.process =
            Some(Process::start((&self.binary, &[&work[..], &more].concat()), source, &self.to)?);
        (s.starts, s.leaving, s.killed, s.streams) = (None, None, false, 2);
        self.starts += 1;
        Ok(())
    }

    // ---- events ----

    /// Kills a driver that comes back so long after; false when there is none.
    pub fn kill(&mut self, slot: usize, away: Duration) -> bool {
        self.resume(ProcessId::Driver(slot));
        let s = &mut self.slots[slot];
        let Some(process) = s.process.as_mut().filter(|_| !s.killed) else { return false };
        process.signal("-KILL");
        s.killed = true;
        s.leaving = Some((Instant::now(), away));
        if slot == 0 {
            self.uses
                .iter_mut()
                .filter(|(w, _)| *w == ProcessId::Driver(0))
                .for_each(|(_, u)| u.restart());
        }
        true
    }

    /// Tells a driver to leave; false when none can.
    pub fn ask_to_leave(&mut self, slot: usize, away: Duration) -> bool {
        if self.stopped.iter().any(|(_, id)| *id == ProcessId::Driver(slot)) {
            return false;
        }
        let s = &mut self.slots[slot];
        let Some(process) = s.process.as_mut().filter(|_| s.leaving.is_none()) else {
            return false;
        };
        process.say("leave");
        s.leaving = Some((Instant::now(), away));
        true
    }

    /// Pauses processes; false when one of them is paused already.
    pub fn pause(&mut self, all: &[ProcessId], time: Duration) -> bool {
        let until = Instant::now() + time;
        if self.stopped.iter().any(|(_, id)| all.contains(id)) {
            return false;
        }
        for id in all {
            if let Some(process) = self.process(*id) {
                process.signal("-STOP");
                self.stopped.push((until, *id));
            }
        }
        true
    }

    fn process(&self, id: ProcessId) -> Option<&Process> {
        match id {
            ProcessId::Driver(slot) => self.slots[slot].process.as_ref(),
            ProcessId::Memory(mn) => self.memory.get(mn),
            ProcessId::Etcd => self.etcd.as_ref().map(|etcd| &etcd.process),
        }
    }

    fn resume(&mut self, id: ProcessId) {
        if self.stopped.iter().any(|(_, i)| *i == id) {
            self.stopped.retain(|(_, i)| *i != id);
            self.process(id).into_iter().for_each(|p| p.signal("-CONT"));
        }
    }

    /// Whether etcd keeps the membership.
    pub fn has_etcd(&self) -> bool {
        self.etcd.is_some()
    }

    /// Kills etcd, and starts it again.
    pub fn restart_etcd(&mut self) -> Result<()> {
        self.resume(ProcessId::Etcd);
        match &mut self.etcd {
            Some(etcd) => etcd.restart(&self.to),
            None => Ok(()),
        }
    }

    /// Kills the second memory node for good.
    pub fn lose_a_memory_node(&mut self) {
        self.lost = true;
        self.resume(ProcessId::Memory(1));
        self.memory.truncate(1);
    }

    // ---- time ----

    /// Receives lines and performs due steps until then.
    pub fn work(&mut self, until: Instant) -> Result<()> {
        loop {
            self.due()?;
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            match self.lines.recv_timeout((until - now).min(Duration::from_millis(20))) {
                Ok(line) => {
                    self.receive(line);
                    // All lines that are there: drivers print many.
                    while let Ok(line) = self.lines.try_recv() {
                        self.receive(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all streams have ended"),
            }
        }
    }

    fn due(&mut self) -> Result<()> {
        let now = Instant::now();
        let awake: Vec<ProcessId> =
            { self.stopped.iter() }.filter(|(until, _)| *until <= now).map(|(_, id)| *id).collect();
        awake.into_iter().for_each(|id| self.resume(id));
        for slot in 0..SLOTS {
            if self.slots[slot].starts.is_some_and(|at| at <= now) {
                self.begin(slot)?;
            }
            let s = &self.slots[slot];
            let late = |(since, _): (Instant, Duration)| now - since > LEAVES_WITHIN;
            if s.leaving.is_some_and(late) && !s.killed {
                self.violations.push(format!("driver {slot} has not left in {LEAVES_WITHIN:?}"));
                self.kill(slot, Duration::ZERO);
            }
        }
        for mn in 0..self.memory.len() {
            if let Some(status) = self.memory[mn].ended() {
                bail!("memory node {mn} has ended with status {status:?}: {:?}", self.words);
            }
        }
        if now - self.sampled >= SAMPLE_EVERY {
            self.sampled = now;
            self.sample();
        }
        Ok(())
    }

    fn sample(&mut self) {
        for i in 0..self.uses.len() {
            let id = self.uses[i].0;
            let Some(pid) = self.process(id).map(Process::id) else { continue };
            self.uses[i].1.measure(pid);
        }
        if let Some(process) = self.slots[0].process.as_mut() {
            process.say("stats");
        }
    }

    fn receive(&mut self, line: Line) {
        let Line { source, incarnation, line, is_note } = line;
        if source > MEMORY + 1 {
            return;
        }
        if source >= SLOTS {
            keep(&mut self.words, format!("mn{}: {}", source - SLOTS, line.unwrap_or_default()));
            return;
        }
        if self.slots[source].incarnation != incarnation {
            return;
        }
        let Some(line) = line else { return self.stream_ended(source) };
        if is_note {
            return keep(&mut self.slots[source].words, line);
        }
        let (acknowledged, errors) = (self.model.acknowledged, self.model.errors);
        if !self.model.apply(&line) {
            match line.strip_prefix("m ") {
                Some(bytes) => {
                    let used: u64 = bytes.split(' ').filter_map(|b| b.parse::<u64>().ok()).sum();
                    if !self.lost {
                        self.used.values.push(used >> 20);
                    }
                }
                None => {
                    let slot = &mut self.slots[source];
                    slot.others += u64::from(line.starts_with("e ") && !line.contains("mn1"));
                    keep(&mut slot.words, line);
                }
            }
            return;
        }
        self.slots[source].acknowledged += self.model.acknowledged - acknowledged;
        self.slots[source].errors += self.model.errors - errors;
    }

    /// A driver has ended when both of its streams have: all its lines were received.
    fn stream_ended(&mut self, slot: usize) {
        let s = &mut self.slots[slot];
        s.streams -= 1;
        if s.streams > 0 {
            return;
        }
        self.model.driver_ended(keys(slot));
        let mut process = s.process.take();
        let status = process.as_mut().and_then(|p| {
            // It has closed its streams: it ends now.
            std::thread::sleep(Duration::from_millis(20));
            p.ended().flatten()
        });
        let away = s.leaving.take().map(|(_, away)| away);
        let fine = s.killed || status == Some(0);
        s.starts = Some(Instant::now() + away.unwrap_or(Duration::from_millis(500)));
        let starting = s.words.iter().rev().take(3).cloned().collect::<Vec<_>>();
        if !fine {
            // A start during a pause fails with a line, and is tried again.
            s.errors += 1;
            keep(&mut self.words, format!("driver {slot} ended with {status:?}: {starting:?}"));
        }
        self.stopped.retain(|(_, id)| *id != ProcessId::Driver(slot));
    }

    // ---- checks ----

    /// Without events every driver works again, and no operation fails any more.
    pub fn check_recovery(&mut self) -> Result<()> {
        let until = Instant::now() + RECOVERY_BOUND;
        loop {
            let begin = |s: &mut DriverSlot| (s.acknowledged, s.errors, s.others) = (0, 0, 0);
            self.slots.iter_mut().for_each(begin);
            self.work(Instant::now() + CHECKED_FOR)?;
            // An operation that needs a lost memory node fails, and its error says so; that may hit
            // all keys of a driver.
            let fails = |s: &DriverSlot| match self.lost {
                true => s.others > 0 || s.acknowledged + s.errors == 0,
                false => s.errors > 0 || s.acknowledged == 0,
            };
            let bad: Vec<String> = { self.slots.iter().enumerate() }
                .filter(|(_, s)| fails(s))
                .map(|(slot, s)| {
                    let DriverSlot { acknowledged, errors, words, .. } = s;
                    format!("driver {slot}: {acknowledged} writes, {errors} errors, {words:?}")
                })
                .collect();
            let resumed = self.stopped.is_empty();
            if bad.is_empty() && resumed {
                return Ok(());
            }
            if Instant::now() > until {
                let what =
                    format!("does not work after {RECOVERY_BOUND:?} without events: {bad:?}");
                self.violations.push(what);
                return Ok(());
            }
        }
    }

    /// All drivers leave.
    pub fn end(&mut self) -> Result<()> {
        self.resume(ProcessId::Etcd);
        (0..self.memory.len()).for_each(|mn| self.resume(ProcessId::Memory(mn)));
        for slot in 0..SLOTS {
            self.resume(ProcessId::Driver(slot));
        }
        self.work(Instant::now() + Duration::from_secs(2))?;
        for slot in 0..SLOTS {
            self.ask_to_leave(slot, Duration::from_secs(3_600));
        }
        let until = Instant::now() + LEAVES_WITHIN;
        while self.slots.iter().any(|s| s.process.is_some()) && Instant::now() < until {
            self.work(Instant::now() + Duration::from_millis(100))?;
        }
        Ok(())
    }

    pub fn is_fine(&self) -> bool {
        self.violations.is_empty() && self.model.violations.is_empty()
    }

    pub fn violations(&self) -> Vec<String> {
        let uses = self.uses.iter().flat_map(|(_, uses)| &uses.0).chain([&self.used]);
        let growth = uses.filter_map(Series::growth);
        let all = self.model.violations.iter().chain(&self.violations).cloned();
        all.chain(growth).collect()
    }

    /// The resources that the long-lived processes use.
    pub fn uses(&self) -> String {
        let all = self.uses.iter().flat_map(|(_, uses)| &uses.0).chain([&self.used]);
        all.map(Series::line).collect::<Vec<_>>().join("; ")
    }

    pub fn summary(&self, e: &Events) -> String {
        let m = &self.model;
        let lost = m.violations.iter().filter(|v| v.starts_with("lost")).count();
        format!(
            "{} kills, {} pauses, {} leaves, {} starts, {} restarts of etcd, {} acknowledged writes, {lost} lost, {} reads, {} errors",
            e.kills, e.pauses, e.leaves, self.starts, e.restarts, m.acknowledged, m.reads, m.errors
        )
    }

    pub fn last_words(&self) -> Vec<String> {
        let of = |(slot, s): (usize, &DriverSlot)| {
            s.words.iter().map(move |w| format!("driver {slot}: {w}")).collect::<Vec<_>>()
        };
        let drivers = self.slots.iter().enumerate().flat_map(of);
        self.words.iter().cloned().chain(drivers).collect()
    }
}

impl ProcessId {
    fn name(self) -> String {
        match self {
            Self::Driver(slot) => format!("driver {slot}"),
            Self::Memory(mn) => format!("mn{mn}"),
            Self::Etcd => "etcd".to_owned(),
        }
    }
}

fn keys(slot: usize) -> Range<u32> {
    let first = slot as u32 * THREADS * KEYS;
    first..first + THREADS * KEYS
}

/// Keeps the last few.
fn keep(words: &mut VecDeque<String>, line: String) {
    words.push_back(line);
    if words.len() > 12 {
        words.pop_front();
    }
}

/// The address of a memory node that has just been started.
fn serves(lines: &Receiver<Line>) -> Result<String> {
    let until = Instant::now() + Duration::from_secs(30);
    while let Ok(line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if line.source > MEMORY + 1 {
            continue;
        }
        let line = line.line.context("a memory node has ended")?;
        if let Some(at) = line.split(" at ").nth(1).filter(|_| line.contains(" serves ")) {
            return Ok(at.split(';').next().unwrap_or(at).to_owned());
        }
    }
    bail!("a memory node does not say where it listens")
}
