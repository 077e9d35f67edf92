//! The simulated network itself: connections, the paths that their bytes take, and what is to happen when.
//!
//! Bytes of a direction arrive in order, each after a delay drawn from the seed. A path that is cut holds what is on it until it is
//! mended, as a sender that repeats does. A process that ends is told of by its machine to all that it was connected with; a machine
//! that loses power tells nobody, and until it is up again answers nothing.

mod faults;
mod streams;
mod travel;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::task::Waker;

use crate::rng::Rng;
use crate::transport::Nanos;

/// A process, in one of its lives.
pub(super) type Pid = u32;
/// A machine.
pub(super) type Machine = u16;

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;
/// Bytes that are on their way, or not read, in a direction at most.
const WINDOW: usize = 128 << 10;
/// Connections that wait to be accepted at most: what comes beyond them is repeated.
const BACKLOG: usize = 128;
/// Between two repetitions.
const AGAIN_NS: Nanos = 200 * MS;
/// Between two looks of a process at the clock.
const TICK_NS: Nanos = 25 * MS;

/// What travels.
#[derive(Clone, Debug)]
enum Segment {
    Syn(String),
    Bytes(Vec<u8>),
    /// No more bytes.
    End,
    Reset,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Connecting,
    Open,
    Failed(ErrorKind),
    /// The process has let go of it.
    Closed,
}

/// One end of a connection.
struct End {
    pid: Pid,
    machine: Machine,
    peer: Option<u64>,
    peer_machine: Machine,
    condition: Condition,
    inbox: VecDeque<u8>,
    /// The peer sends no more.
    is_ended: bool,
    /// On its way from here, and when each may arrive.
    out: VecDeque<(Nanos, Segment)>,
    /// Bytes of it.
    on_the_way: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first segment of an end's may arrive.
    Arrive(u64),
    /// A process looks at the clock.
    Tick(Pid),
}

/// What happens on a simulated network besides the ordinary: a checker asks whether its runs came by all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// A connection was reset at both ends.
    Reset,
    /// One end went, and the other one found out when it sent.
    HalfOpen,
    /// A segment waited on a path that let nothing through.
    BlackHole,
    /// Nothing listened where a connection was asked for.
    Refused,
    /// A process connected while its host still had an end of a connection that it had lost.
    Doubled,
    /// A connection was made whose asker had given it up.
    AbandonedLock,
    /// A segment took longer than usual.
    Late,
    /// A part of what was written was taken.
    Partial,
    /// A process stood still.
    Paused,
}

struct Process {
    machine: Machine,
    paused_until: Nanos,
    /// How long it has stood still, or will have.
    stood_still: Nanos,
    /// Things that have asked to be polled when something comes.
    wakers: Vec<Waker>,
}

/// What listens somewhere.
struct Listening {
    id: u64,
    pid: Pid,
    backlog: VecDeque<u64>,
}

/// All of it.
pub(super) struct World {
    pub(super) now: Nanos,
    pub(super) random: Rng,
    events: BTreeSet<(Nanos, u64, Event)>,
    sequence: u64,
    ends: BTreeMap<u64, End>,
    next_id: u64,
    listening: BTreeMap<String, Listening>,
    processes: BTreeMap<Pid, Process>,
    next_pid: Pid,
    next_port: u16,
    /// Processes for which something may have changed.
    dirty: BTreeSet<Pid>,
    /// Pairs of machines, and until when nothing passes between them.
    cuts: BTreeMap<(Machine, Machine), Nanos>,
    /// Machines without power, and until when.
    dark: BTreeMap<Machine, Nanos>,
    /// One segment in this many is late; 0: none.
    pub(super) late_one_in: u64,
    /// A defect on purpose.
    pub(super) mutant: Option<super::Mutant>,
    /// How often each of these happened.
    pub(super) seen: BTreeMap<Sight, u64>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: 1,
            random: Rng::new(seed),
            events: BTreeSet::new(),
            sequence: 0,
            ends: BTreeMap::new(),
            next_id: 1,
            listening: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_pid: 1,
            next_port: 20_000,
            dirty: BTreeSet::new(),
            cuts: BTreeMap::new(),
            dark: BTreeMap::new(),
            late_one_in: 0,
            mutant: None,
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: Sight) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.insert((at.max(self.now), self.sequence, event));
    }

    // ---- processes ------------------------------------------------------------------------------------------------

    pub(super) fn start(&mut self, machine: Machine) -> Pid {
        let pid = self.next_pid;
        self.next_pid += 1;
        self.processes
            .insert(pid, Process { machine, paused_until: 0, stood_still: 0, wakers: Vec::new() });
        self.plan(self.now + TICK_NS, Event::Tick(pid));
        pid
    }

    pub(super) fn is_alive(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    pub(super) fn is_paused(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|p| p.paused_until > self.now)
    }

    /// It is polled again when something comes for its process.
    pub(super) fn wake_soon(&mut self, pid: Pid, waker: Waker) {
        if let Some(p) = self.processes.get_mut(&pid)
            && !p.wakers.iter().any(|w| w.will_wake(&waker))
        {
            p.wakers.push(waker);
        }
    }

    /// It stands still for so long.
    pub(super) fn pause(&mut self, pid: Pid, ns: Nanos) {
        let until = self.now + ns;
        self.saw(Sight::Paused);
        if let Some(p) = self.processes.get_mut(&pid) {
            p.stood_still += until.saturating_sub(p.paused_until.max(self.now));
            p.paused_until = p.paused_until.max(until);
        }
        self.plan(until, Event::Tick(pid));
    }

    /// With the mutant whose clients wait inside of dialling: whether one of the process does.
    pub(super) fn is_dialling(&self, pid: Pid) -> bool {
        self.mutant == Some(super::Mutant::DialWaits)
            && self.ends.values().any(|e| e.pid == pid && e.condition == Condition::Connecting)
    }

    pub(super) fn stood_still(&self, pid: Pid) -> Nanos {
        self.processes.get(&pid).map_or(0, |p| p.stood_still)
    }

    /// It ends. Its machine tells all that it was connected with, unless it loses power, for so long.
    pub(super) fn kill(&mut self, pid: Pid, power_off: Option<Nanos>) {
        let Some(p) = self.processes.remove(&pid) else { return };
        p.wakers.into_iter().for_each(Waker::wake);
        if let Some(ns) = power_off {
            self.dark.insert(p.machine, self.now + ns);
        }
        self.listening.retain(|_, l| l.pid != pid);
        let own: Vec<u64> =
            self.ends.iter().filter(|(_, e)| e.pid == pid).map(|(i, _)| *i).collect();
        for id in own {
            match power_off {
                None => self.close(id),
                Some(_) => self.forget(id),
            }
        }
        self.dirty.remove(&pid);
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    /// When the next thing happens.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        self.events.first().map(|(at, ..)| *at)
    }

    /// What happens next, happens.
    pub(super) fn step(&mut self) {
        let Some((at, _, event)) = self.events.pop_first() else { return };
        self.now = self.now.max(at);
        match event {
            Event::Arrive(from) => self.arrive(from),
            Event::Tick(pid) => {
                if self.is_alive(pid) {
                    self.touch(pid);
                    self.plan(self.now + TICK_NS, Event::Tick(pid));
                }
            }
        }
    }

    fn touch(&mut self, pid: Pid) {
        self.dirty.insert(pid);
    }

    /// Processes to be looked at: those that do not stand still.
    pub(super) fn take_dirty(&mut self) -> Vec<Pid> {
        let now = self.now;
        let runs = |pid: &Pid| self.processes.get(pid).is_some_and(|p| p.paused_until <= now);
        let out: Vec<Pid> = self.dirty.iter().copied().filter(runs).collect();
        for pid in &out {
            self.dirty.remove(pid);
            let wakers = self.processes.get_mut(pid).map(|p| std::mem::take(&mut p.wakers));
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
        out
    }

    pub(super) fn mark(&mut self, pid: Pid) {
        if self.is_alive(pid) {
            self.touch(pid);
        }
    }
}

fn address(machine: Machine, port: u16) -> String {
    let [high, low] = machine.to_be_bytes();
    format!("10.0.{high}.{low}:{port}")
}

/// The machine of an address.
fn machine_of(at: &str) -> Machine {
    let ip = at.parse::<std::net::SocketAddrV4>().map_or([0; 4], |at| at.ip().octets());
    Machine::from_be_bytes([ip[2], ip[3]])
}

/// The address of a machine.
pub(super) fn ip_of(machine: Machine) -> std::net::IpAddr {
    let [high, low] = machine.to_be_bytes();
    std::net::Ipv4Addr::new(10, 0, high, low).into()
}
