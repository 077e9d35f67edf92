//! The simulated network itself: connections, the paths that their bytes take, and the queue of
//! events.
//!
//! Bytes of a direction arrive in order, each after a delay drawn from the seed. A path that is cut
//! holds the bytes on it until it is restored, which models a sender that retransmits. When a
//! process ends, its machine resets all its connections. A machine that loses power resets none,
//! and answers nothing until it is up again.

mod streams;
mod travel;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::task::Waker;

use crate::rng::Rng;
use crate::transport::Nanos;

/// A process, in one of its incarnations.
pub(super) type Pid = u32;
/// A machine.
pub(super) type Machine = u16;

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;
/// Most bytes in flight or unread in a direction.
const WINDOW: usize = 128 << 10;
/// Most connections that wait to be accepted: further requests are retransmitted.
const BACKLOG: usize = 128;
/// Interval of retransmissions.
const AGAIN_NS: Nanos = 200 * MS;
/// Interval at which a process reads the clock.
const TICK_NS: Nanos = 25 * MS;

/// The content of a segment.
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
    /// The process has closed it.
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
    /// Segments in flight from here, and when each may arrive.
    out: VecDeque<(Nanos, Segment)>,
    /// Bytes in flight.
    on_the_way: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first segment of an end's may arrive.
    Arrive(u64),
    /// A process reads the clock.
    Tick(Pid),
}

/// Unusual events of a simulated network: a checker requires that its runs cover all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// A connection was reset at both ends.
    Reset,
    /// One end broke, and the other one noticed when it sent.
    HalfOpen,
    /// A segment waited on a path that let nothing through.
    BlackHole,
    /// Nothing listened where a connection was asked for.
    Refused,
    /// A process connected while its host still had an end of a connection that the process had
    /// lost.
    Doubled,
    /// A connection was established after the connecting side had given it up.
    AbandonedLock,
    /// A segment took longer than usual.
    Late,
    /// A write was accepted in part.
    Partial,
    /// A process stood still.
    Paused,
}

struct Process {
    machine: Machine,
    paused_until: Nanos,
    /// How long it has stood still, or will have.
    stood_still: Nanos,
    /// Wakers of waiters that want to be polled at news.
    wakers: Vec<Waker>,
}

/// A listening socket.
struct Listening {
    id: u64,
    pid: Pid,
    backlog: VecDeque<u64>,
}

/// The whole network.
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
    /// The enabled mutant.
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

    fn saw(&mut self, sight: Sight) {
        *self.seen.entry(sight).or_default() += 1;
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.insert((at.max(self.now), self.sequence, event));
    }

    // ---- processes
    // --------------------------------------------------------------------------------

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

    /// Registers a waiter that is polled when something arrives for its process.
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

    /// With the mutant that blocks clients in connection set-up: whether one of the process does.
    pub(super) fn is_dialling(&self, pid: Pid) -> bool {
        self.mutant == Some(super::Mutant::DialWaits)
            && self.ends.values().any(|e| e.pid == pid && e.condition == Condition::Connecting)
    }

    pub(super) fn stood_still(&self, pid: Pid) -> Nanos {
        self.processes.get(&pid).map_or(0, |p| p.stood_still)
    }

    /// Kills a process. Its machine resets all its connections, unless it loses power, for so long.
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

    // ---- time
    // -------------------------------------------------------------------------------------

    /// The time of the next event.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        self.events.first().map(|(at, ..)| *at)
    }

    /// Executes the next event.
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

    pub(super) fn touch_if_alive(&mut self, pid: Pid) {
        if self.is_alive(pid) {
            self.touch(pid);
        }
    }

    /// An end of a new connection, with its number.
    fn add_end(
        &mut self,
        (pid, machine): (Pid, Machine),
        peer: Option<u64>,
        peer_machine: Machine,
        condition: Condition,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let (inbox, out) = (VecDeque::new(), VecDeque::new());
        let (is_ended, on_the_way) = (false, 0);
        let end =
            End { pid, machine, peer, peer_machine, condition, inbox, is_ended, out, on_the_way };
        self.ends.insert(id, end);
        id
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
