//! The cluster of a soak: two memory nodes, and drivers in slots, each of which has one life after the other.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::events::Events;
use super::model::Model;
use super::process::{Process, Said};
use super::sample::{Series, Uses};

/// Drivers; the first of them is killed with all others only.
pub const SLOTS: usize = 4;
/// Of a compute node.
pub const LEASE: Duration = Duration::from_millis(500);
const THREADS: u32 = 2;
const KEYS: u32 = 60;
/// Where the memory nodes are among those who say something: behind the drivers.
const MEMORY: usize = SLOTS;
/// Between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// After the last event, everything works again within this time: what waits for a lost lock ends after ten seconds.
const CALM_WITHIN: Duration = Duration::from_secs(25);
/// How long it has to work.
const CALM_FOR: Duration = Duration::from_secs(3);
/// Longest time for leaving.
const LEAVES_WITHIN: Duration = Duration::from_secs(20);

/// A process that something happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Driver(usize),
    Memory(usize),
}

/// A slot of drivers.
#[derive(Default)]
struct Slot {
    process: Option<Process>,
    incarnation: u32,
    /// When the next life begins.
    starts: Option<Instant>,
    /// It was told to leave at this time, and comes back so long after it has.
    leaving: Option<(Instant, Duration)>,
    /// It was killed: that it ends is no news.
    killed: bool,
    /// Streams that have not ended.
    streams: u32,
    /// Acknowledgements and errors since they were last looked at.
    acknowledged: u64,
    errors: u64,
    /// Errors among them that do not name the second memory node.
    others: u64,
    /// The last that it said about errors.
    words: VecDeque<String>,
}

/// All of it.
pub struct Cluster {
    binary: String,
    at: String,
    memory: Vec<Process>,
    slots: Vec<Slot>,
    to: Sender<Said>,
    said: Receiver<Said>,
    /// Who goes on when.
    stopped: Vec<(Instant, Who)>,
    model: Model,
    violations: Vec<String>,
    lost: bool,
    sampled: Instant,
    uses: Vec<(Who, Uses)>,
    used: Series,
    words: VecDeque<String>,
    lives: u32,
}

impl Cluster {
    pub fn start(binary: String) -> Result<Self> {
        let (to, said) = channel();
        let lease = LEASE.as_millis().to_string();
        let first = ["--memory-nodes", "2", "--lease-ms", &lease];
        let size = ["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "256MiB"];
        let mn0 = Process::start((&binary, &[&size[..], &first].concat()), (MEMORY, 0), &to)?;
        let at = serves(&said)?;
        let join = ["--join", &at];
        let mn1 = Process::start((&binary, &[&size[..], &join].concat()), (MEMORY + 1, 0), &to)?;
        serves(&said)?;
        let names = [Who::Memory(0), Who::Memory(1), Who::Driver(0)];
        let uses = names.map(|who| (who, Uses::new(&who.name()))).into();
        let mut cluster = Self {
            binary,
            at,
            memory: vec![mn0, mn1],
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            to,
            said,
            stopped: Vec::new(),
            model: Model::default(),
            violations: Vec::new(),
            lost: false,
            sampled: Instant::now(),
            uses,
            used: Series::new("chunks in use", "MiB", (15, 12)),
            words: VecDeque::new(),
            lives: 0,
        };
        (0..SLOTS).try_for_each(|slot| cluster.begin(slot))?;
        Ok(cluster)
    }

    /// The next life of a slot.
    fn begin(&mut self, slot: usize) -> Result<()> {
        let after = (self.model.highest(keys(slot)) + 1_000).to_string();
        let [index, threads, each] = [slot as u32, THREADS, KEYS].map(|n| n.to_string());
        let s = &mut self.slots[slot];
        s.incarnation += 1;
        let seed = (slot as u64 * 1_000_000 + u64::from(s.incarnation)).to_string();
        let work =
            ["drive", "work", "--connect", &self.at, "--slot", &index, "--threads", &threads];
        let more = ["--keys", &each, "--after", &after, "--seed", &seed];
        let who = (slot, s.incarnation);
        s.process =
            Some(Process::start((&self.binary, &[&work[..], &more].concat()), who, &self.to)?);
        (s.starts, s.leaving, s.killed, s.streams) = (None, None, false, 2);
        self.lives += 1;
        Ok(())
    }

    // ---- what happens -----------------------------------------------------------------------------------------------

    /// Kills a driver that comes back so long after; false when there is none.
    pub fn kill(&mut self, slot: usize, away: Duration) -> bool {
        self.go_on(Who::Driver(slot));
        let s = &mut self.slots[slot];
        let Some(process) = s.process.as_mut().filter(|_| !s.killed) else { return false };
        process.signal("-KILL");
        s.killed = true;
        s.leaving = Some((Instant::now(), away));
        if slot == 0 {
            self.uses
                .iter_mut()
                .filter(|(w, _)| *w == Who::Driver(0))
                .for_each(|(_, u)| u.restart());
        }
        true
    }

    /// Tells a driver to leave; false when there is none that could.
    pub fn ask_to_leave(&mut self, slot: usize, away: Duration) -> bool {
        if self.stopped.iter().any(|(_, who)| *who == Who::Driver(slot)) {
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

    /// Lets processes stand still; false when one does already.
    pub fn pause(&mut self, all: &[Who], time: Duration) -> bool {
        let until = Instant::now() + time;
        if self.stopped.iter().any(|(_, who)| all.contains(who)) {
            return false;
        }
        for who in all {
            if let Some(process) = self.process(*who) {
                process.signal("-STOP");
                self.stopped.push((until, *who));
            }
        }
        true
    }

    fn process(&self, who: Who) -> Option<&Process> {
        match who {
            Who::Driver(slot) => self.slots[slot].process.as_ref(),
            Who::Memory(mn) => self.memory.get(mn),
        }
    }

    fn go_on(&mut self, who: Who) {
        if self.stopped.iter().any(|(_, w)| *w == who) {
            self.stopped.retain(|(_, w)| *w != who);
            self.process(who).into_iter().for_each(|p| p.signal("-CONT"));
        }
    }

    /// The second memory node is killed for good.
    pub fn lose_a_memory_node(&mut self) {
        self.lost = true;
        self.go_on(Who::Memory(1));
        self.memory.truncate(1);
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    /// Hears what is said, and does what falls due, until then.
    pub fn work(&mut self, until: Instant) -> Result<()> {
        loop {
            self.due()?;
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            match self.said.recv_timeout((until - now).min(Duration::from_millis(20))) {
                Ok(said) => {
                    self.hear(said);
                    // As much as is there: drivers say much.
                    while let Ok(said) = self.said.try_recv() {
                        self.hear(said);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("nothing is heard any more"),
            }
        }
    }

    fn due(&mut self) -> Result<()> {
        let now = Instant::now();
        let awake: Vec<Who> = { self.stopped.iter() }
            .filter(|(until, _)| *until <= now)
            .map(|(_, who)| *who)
            .collect();
        awake.into_iter().for_each(|who| self.go_on(who));
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
            let who = self.uses[i].0;
            let Some(id) = self.process(who).map(Process::id) else { continue };
            self.uses[i].1.look(id);
        }
        if let Some(process) = self.slots[0].process.as_mut() {
            process.say("stats");
        }
    }

    fn hear(&mut self, said: Said) {
        let Said { who, incarnation, line, is_note } = said;
        if who >= SLOTS {
            keep(&mut self.words, format!("mn{}: {}", who - SLOTS, line.unwrap_or_default()));
            return;
        }
        if self.slots[who].incarnation != incarnation {
            return;
        }
        let Some(line) = line else { return self.stream_ended(who) };
        if is_note {
            return keep(&mut self.slots[who].words, line);
        }
        let (acknowledged, errors) = (self.model.acknowledged, self.model.errors);
        if !self.model.hear(&line) {
            match line.strip_prefix("m ") {
                Some(bytes) => {
                    let used: u64 = bytes.split(' ').filter_map(|b| b.parse::<u64>().ok()).sum();
                    if !self.lost {
                        self.used.push(used >> 20);
                    }
                }
                None => {
                    let slot = &mut self.slots[who];
                    slot.others += u64::from(line.starts_with("e ") && !line.contains("mn1"));
                    keep(&mut slot.words, line);
                }
            }
            return;
        }
        self.slots[who].acknowledged += self.model.acknowledged - acknowledged;
        self.slots[who].errors += self.model.errors - errors;
    }

    /// A driver has ended when both of its streams have: all that it said was heard.
    fn stream_ended(&mut self, slot: usize) {
        let s = &mut self.slots[slot];
        s.streams -= 1;
        if s.streams > 0 {
            return;
        }
        self.model.died(keys(slot));
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
            // A start beside a pause fails with a line, and is tried again.
            s.errors += 1;
            keep(&mut self.words, format!("driver {slot} ended with {status:?}: {starting:?}"));
        }
        self.stopped.retain(|(_, who)| *who != Who::Driver(slot));
    }

    // ---- judging ----------------------------------------------------------------------------------------------------

    /// Without events every driver comes to work again, and then nothing fails.
    pub fn calm(&mut self) -> Result<()> {
        let until = Instant::now() + CALM_WITHIN;
        loop {
            let begin = |s: &mut Slot| (s.acknowledged, s.errors, s.others) = (0, 0, 0);
            self.slots.iter_mut().for_each(begin);
            self.work(Instant::now() + CALM_FOR)?;
            // What needs a lost memory node fails, and says so; that may be all of a driver's keys.
            let fails = |s: &Slot| match self.lost {
                true => s.others > 0 || s.acknowledged + s.errors == 0,
                false => s.errors > 0 || s.acknowledged == 0,
            };
            let bad: Vec<String> = { self.slots.iter().enumerate() }
                .filter(|(_, s)| fails(s))
                .map(|(slot, s)| {
                    let Slot { acknowledged, errors, words, .. } = s;
                    format!("driver {slot}: {acknowledged} writes, {errors} errors, {words:?}")
                })
                .collect();
            let calm = self.stopped.is_empty();
            if bad.is_empty() && calm {
                return Ok(());
            }
            if Instant::now() > until {
                let what = format!("does not work after {CALM_WITHIN:?} without events: {bad:?}");
                self.violations.push(what);
                return Ok(());
            }
        }
    }

    /// All drivers leave, and one more reads all that is there.
    pub fn end(&mut self) -> Result<()> {
        (0..self.memory.len()).for_each(|mn| self.go_on(Who::Memory(mn)));
        for slot in 0..SLOTS {
            self.go_on(Who::Driver(slot));
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
        let uses = self.uses.iter().flat_map(|(_, uses)| uses.all()).chain([&self.used]);
        let growth = uses.filter_map(Series::growth);
        let all = self.model.violations.iter().chain(&self.violations).cloned();
        all.chain(growth).collect()
    }

    /// What the long-lived processes use.
    pub fn uses(&self) -> String {
        let all = self.uses.iter().flat_map(|(_, uses)| uses.all()).chain([&self.used]);
        all.map(Series::line).collect::<Vec<_>>().join("; ")
    }

    pub fn summary(&self, e: &Events) -> String {
        let m = &self.model;
        let lost = m.violations.iter().filter(|v| v.starts_with("lost")).count();
        format!(
            "{} kills, {} pauses, {} leaves, {} lives, {} acknowledged writes, {lost} lost, {} reads, {} errors",
            e.kills, e.pauses, e.leaves, self.lives, m.acknowledged, m.reads, m.errors
        )
    }

    pub fn last_words(&self) -> Vec<String> {
        let of = |(slot, s): (usize, &Slot)| {
            s.words.iter().map(move |w| format!("driver {slot}: {w}")).collect::<Vec<_>>()
        };
        let drivers = self.slots.iter().enumerate().flat_map(of);
        self.words.iter().cloned().chain(drivers).collect()
    }
}

impl Who {
    fn name(self) -> String {
        match self {
            Self::Driver(slot) => format!("driver {slot}"),
            Self::Memory(mn) => format!("mn{mn}"),
        }
    }
}

/// The keys of a slot.
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

/// Where a memory node that has just been started listens.
fn serves(said: &Receiver<Said>) -> Result<String> {
    let until = Instant::now() + Duration::from_secs(30);
    while let Ok(said) = said.recv_timeout(until.saturating_duration_since(Instant::now())) {
        let line = said.line.context("a memory node has ended")?;
        if let Some(at) = line.split(" at ").nth(1).filter(|_| line.contains(" serves ")) {
            return Ok(at.split(';').next().unwrap_or(at).to_owned());
        }
    }
    bail!("a memory node does not say where it listens")
}
