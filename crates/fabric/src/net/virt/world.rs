//! The simulated network itself: connections, the paths that their bytes take, and what is to happen when.
//!
//! Bytes of a direction arrive in order, each after a delay drawn from the seed. A path that is cut holds what is on it until it is
//! mended, as a sender that repeats does. A process that ends is told of by its machine to all that it was connected with; a machine
//! that loses power tells nobody, and until it is up again answers nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::task::Waker;

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
    random: u64,
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
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: 1,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
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
        }
    }

    /// A draw (xorshift64*).
    pub(super) fn draw(&mut self) -> u64 {
        let mut x = self.random;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.random = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
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
        if let Some(p) = self.processes.get_mut(&pid) {
            p.stood_still += until.saturating_sub(p.paused_until.max(self.now));
            p.paused_until = p.paused_until.max(until);
        }
        self.plan(until, Event::Tick(pid));
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

    // ---- paths ----------------------------------------------------------------------------------------------------

    /// Nothing passes between two machines for so long.
    pub(super) fn cut(&mut self, a: Machine, b: Machine, ns: Nanos) {
        let until = self.now + ns;
        let end = self.cuts.entry((a.min(b), a.max(b))).or_default();
        *end = (*end).max(until);
    }

    fn blocked_until(&self, a: Machine, b: Machine) -> Nanos {
        let cut = self.cuts.get(&(a.min(b), a.max(b))).copied().unwrap_or(0);
        let dark = |m| self.dark.get(&m).copied().unwrap_or(0);
        cut.max(dark(a)).max(dark(b))
    }

    /// Faults end: every path is mended, every machine has power, no process stands still.
    pub(super) fn heal(&mut self) {
        self.cuts.clear();
        self.dark.clear();
        self.late_one_in = 0;
        let now = self.now;
        self.processes.values_mut().for_each(|p| p.paused_until = p.paused_until.min(now));
        self.dirty.extend(self.processes.keys());
    }

    /// One connection breaks: at both ends, or at one that the other does not hear of.
    pub(super) fn break_one(&mut self, is_half: bool) {
        let open: Vec<u64> = {
            let is_open = |e: &End| e.condition == Condition::Open && e.peer.is_some();
            self.ends.iter().filter(|(_, e)| is_open(e)).map(|(i, _)| *i).collect()
        };
        if open.is_empty() {
            return;
        }
        let id = open[self.below(open.len() as u64) as usize];
        let peer = self.ends.get(&id).and_then(|e| e.peer);
        if self.below(2) == 0 {
            return self.sever(id, is_half);
        }
        self.fail(id, ErrorKind::ConnectionReset);
        match (is_half, peer) {
            (false, Some(peer)) => self.fail(peer, ErrorKind::ConnectionReset),
            // It finds out when it sends.
            (true, Some(peer)) => {
                if let Some(e) = self.ends.get_mut(&peer) {
                    e.peer = None;
                }
            }
            _ => {}
        }
    }

    /// The connections from one machine to another break at their beginnings, and what was sent is on its way still.
    pub(super) fn break_between(&mut self, from: Machine, to: Machine, is_half: bool) {
        let its = |e: &End| (e.machine, e.peer_machine, e.condition) == (from, to, Condition::Open);
        let all: Vec<u64> = self.ends.iter().filter(|(_, e)| its(e)).map(|(i, _)| *i).collect();
        all.into_iter().for_each(|id| self.sever(id, is_half));
    }

    /// An end is told that its connection is gone, and what it has sent is on its way still.
    fn sever(&mut self, id: u64, is_half: bool) {
        if !is_half {
            self.send(id, Segment::Reset);
        }
        if let Some(e) = self.ends.get_mut(&id) {
            e.condition = Condition::Failed(ErrorKind::ConnectionReset);
            let pid = e.pid;
            self.touch_if_alive(pid);
        }
    }

    /// How many ends of connections there are.
    pub(super) fn ends(&self) -> usize {
        self.ends.len()
    }

    fn delay(&mut self) -> Nanos {
        let late = self.late_one_in > 0 && self.below(self.late_one_in) == 0;
        match late {
            true => MS + self.below(300 * MS),
            false => 20 * US + self.below(180 * US),
        }
    }

    fn send(&mut self, from: u64, segment: Segment) {
        let delay = self.delay();
        let Some(e) = self.ends.get_mut(&from) else { return };
        let at = e.out.back().map_or(0, |(at, _)| *at).max(self.now + delay);
        let is_first = e.out.is_empty();
        e.out.push_back((at, segment));
        if is_first {
            self.plan(at, Event::Arrive(from));
        }
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

    fn arrive(&mut self, from: u64) {
        let Some(e) = self.ends.get(&from) else { return };
        let blocked = self.blocked_until(e.machine, e.peer_machine);
        if blocked > self.now {
            let jitter = self.below(AGAIN_NS);
            return self.plan(blocked + jitter, Event::Arrive(from));
        }
        loop {
            let Some(e) = self.ends.get_mut(&from) else { return };
            let Some((at, _)) = e.out.front() else { break };
            if *at > self.now {
                let at = *at;
                return self.plan(at, Event::Arrive(from));
            }
            let Some((_, segment)) = e.out.pop_front() else { break };
            if let Segment::Bytes(bytes) = &segment {
                e.on_the_way -= bytes.len();
            }
            let (pid, peer) = (e.pid, e.peer);
            self.touch_if_alive(pid);
            if !self.deliver(from, peer, segment) {
                return;
            }
        }
        self.drop_if_done(from);
    }

    fn touch_if_alive(&mut self, pid: Pid) {
        if self.is_alive(pid) {
            self.touch(pid);
        }
    }

    /// Whether what follows may arrive, too.
    fn deliver(&mut self, from: u64, peer: Option<u64>, segment: Segment) -> bool {
        if let Segment::Syn(at) = segment {
            return self.connect(from, at);
        }
        let known = peer.filter(|p| self.ends.contains_key(p));
        let Some(peer) = known else {
            // Nobody there knows of the connection.
            self.fail(from, ErrorKind::ConnectionReset);
            return false;
        };
        let Some(e) = self.ends.get_mut(&peer) else { return false };
        let (pid, condition) = (e.pid, e.condition);
        match segment {
            Segment::Bytes(_) | Segment::End if condition != Condition::Open => {
                self.fail(from, ErrorKind::ConnectionReset);
                return false;
            }
            Segment::Bytes(bytes) => e.inbox.extend(bytes),
            Segment::End => e.is_ended = true,
            Segment::Reset => self.fail(peer, ErrorKind::ConnectionReset),
            Segment::Syn(_) => {}
        }
        self.touch_if_alive(pid);
        true
    }

    fn connect(&mut self, from: u64, at: String) -> bool {
        let Some(e) = self.ends.get(&from) else { return false };
        let (from_machine, pid) = (e.machine, e.pid);
        let Some(l) = self.listening.get_mut(&at) else {
            self.fail(from, ErrorKind::ConnectionRefused);
            return false;
        };
        if l.backlog.len() >= BACKLOG {
            if let Some(e) = self.ends.get_mut(&from) {
                e.out.push_front((self.now + AGAIN_NS, Segment::Syn(at)));
            }
            self.plan(self.now + AGAIN_NS, Event::Arrive(from));
            return false;
        }
        let id = self.next_id;
        self.next_id += 1;
        l.backlog.push_back(id);
        let host = l.pid;
        let end = End {
            pid: host,
            machine: machine_of(&at),
            peer: Some(from),
            peer_machine: from_machine,
            condition: Condition::Open,
            inbox: VecDeque::new(),
            is_ended: false,
            out: VecDeque::new(),
            on_the_way: 0,
        };
        self.ends.insert(id, end);
        if let Some(e) = self.ends.get_mut(&from) {
            // (The way back takes no time: what follows on it does.)
            (e.peer, e.condition) = (Some(id), Condition::Open);
        }
        self.touch(host);
        self.touch_if_alive(pid);
        true
    }

    fn fail(&mut self, id: u64, kind: ErrorKind) {
        let Some(e) = self.ends.get_mut(&id) else { return };
        if e.condition == Condition::Closed {
            self.ends.remove(&id);
            return;
        }
        e.condition = Condition::Failed(kind);
        e.out.clear();
        e.on_the_way = 0;
        let pid = e.pid;
        self.touch_if_alive(pid);
    }

    /// Nobody is told.
    fn forget(&mut self, id: u64) {
        self.ends.remove(&id);
    }

    fn drop_if_done(&mut self, id: u64) {
        let is_done = |e: &End| e.condition == Condition::Closed && e.out.is_empty();
        if self.ends.get(&id).is_some_and(is_done) {
            self.ends.remove(&id);
        }
    }

    // ---- what processes do ----------------------------------------------------------------------------------------

    pub(super) fn listen(&mut self, pid: Pid, wanted: &str) -> Option<(u64, String)> {
        let (machine, port) = (self.processes.get(&pid)?.machine, wanted.rsplit(':').next()?);
        let port: u16 = port.parse().ok()?;
        let port = match port {
            0 => {
                self.next_port = self.next_port.wrapping_add(1).max(20_000);
                self.next_port
            }
            port => port,
        };
        let at = address(machine, port);
        if self.listening.contains_key(&at) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.listening.insert(at.clone(), Listening { id, pid, backlog: VecDeque::new() });
        Some((id, at))
    }

    pub(super) fn unlisten(&mut self, id: u64) {
        let waiting: Vec<u64> = {
            let of = |l: &&Listening| l.id == id;
            self.listening.values().filter(of).flat_map(|l| l.backlog.iter().copied()).collect()
        };
        self.listening.retain(|_, l| l.id != id);
        waiting.into_iter().for_each(|end| self.reset(end));
    }

    pub(super) fn is_listening(&self, id: u64) -> bool {
        self.listening.values().any(|l| l.id == id)
    }

    pub(super) fn has_waiting(&self, id: u64) -> bool {
        self.listening.values().any(|l| l.id == id && !l.backlog.is_empty())
    }

    pub(super) fn accept(&mut self, id: u64) -> Option<(u64, Machine)> {
        loop {
            let l = self.listening.values_mut().find(|l| l.id == id)?;
            let end = l.backlog.pop_front()?;
            if let Some(e) = self.ends.get(&end) {
                return Some((end, e.peer_machine));
            }
        }
    }

    pub(super) fn dial(&mut self, pid: Pid, at: &str) -> Option<u64> {
        let machine = self.processes.get(&pid)?.machine;
        let id = self.next_id;
        self.next_id += 1;
        let end = End {
            pid,
            machine,
            peer: None,
            peer_machine: machine_of(at),
            condition: Condition::Connecting,
            inbox: VecDeque::new(),
            is_ended: false,
            out: VecDeque::new(),
            on_the_way: 0,
        };
        self.ends.insert(id, end);
        self.send(id, Segment::Syn(at.to_string()));
        Some(id)
    }

    pub(super) fn is_connected(&self, id: u64) -> Result<bool, ErrorKind> {
        match self.ends.get(&id).map(|e| e.condition) {
            Some(Condition::Connecting) => Ok(false),
            Some(Condition::Open) => Ok(true),
            Some(Condition::Failed(kind)) => Err(kind),
            Some(Condition::Closed) | None => Err(ErrorKind::ConnectionReset),
        }
    }

    /// Whether a read would not have to wait, whether a write would not, whether it has failed.
    pub(super) fn readiness(&self, id: u64) -> (bool, bool, bool) {
        let Some(e) = self.ends.get(&id) else { return (true, true, true) };
        let failed = matches!(e.condition, Condition::Failed(_) | Condition::Closed);
        let open = e.condition == Condition::Open;
        let read = failed || (open && (!e.inbox.is_empty() || e.is_ended));
        (read, failed || (open && self.window(e) > 0), failed)
    }

    fn window(&self, e: &End) -> usize {
        let unread = e.peer.and_then(|p| self.ends.get(&p)).map_or(0, |p| p.inbox.len());
        WINDOW.saturating_sub(e.on_the_way + unread)
    }

    pub(super) fn read(&mut self, id: u64, into: &mut [u8]) -> Result<usize, ErrorKind> {
        self.is_connected(id)?;
        let Some(e) = self.ends.get_mut(&id) else { return Err(ErrorKind::ConnectionReset) };
        if e.inbox.is_empty() {
            return if e.is_ended { Ok(0) } else { Err(ErrorKind::WouldBlock) };
        }
        let n = into.len().min(e.inbox.len());
        for (to, byte) in into.iter_mut().zip(e.inbox.drain(..n)) {
            *to = byte;
        }
        // Its peer may have waited for room.
        let peer = e.peer.and_then(|p| self.ends.get(&p)).map(|p| p.pid);
        if let Some(pid) = peer {
            self.touch_if_alive(pid);
        }
        Ok(n)
    }

    pub(super) fn write(&mut self, id: u64, bytes: &[u8]) -> Result<usize, ErrorKind> {
        if !self.is_connected(id)? {
            return Err(ErrorKind::WouldBlock);
        }
        let Some(e) = self.ends.get(&id) else { return Err(ErrorKind::ConnectionReset) };
        let most = bytes.len().min(self.window(e));
        if most == 0 {
            return Err(ErrorKind::WouldBlock);
        }
        // Sometimes a part is taken.
        let n = if self.below(16) == 0 { 1 + self.below(most as u64) as usize } else { most };
        if let Some(e) = self.ends.get_mut(&id) {
            e.on_the_way += n;
        }
        self.send(id, Segment::Bytes(bytes[..n].to_vec()));
        Ok(n)
    }

    /// The process lets go of an end: what it has sent arrives, unless bytes have come that it has not read.
    pub(super) fn close(&mut self, id: u64) {
        let Some(e) = self.ends.get_mut(&id) else { return };
        let (condition, unread) = (e.condition, !e.inbox.is_empty());
        e.condition = Condition::Closed;
        e.inbox.clear();
        match condition {
            Condition::Open if unread => self.reset(id),
            Condition::Open => self.send(id, Segment::End),
            // What was sent before it failed may arrive.
            Condition::Failed(_) if !self.ends.get(&id).is_none_or(|e| e.out.is_empty()) => {}
            Condition::Connecting | Condition::Failed(_) | Condition::Closed => self.forget(id),
        }
    }

    fn reset(&mut self, id: u64) {
        let Some(e) = self.ends.get_mut(&id) else { return };
        e.out.clear();
        e.on_the_way = 0;
        e.condition = Condition::Closed;
        self.send(id, Segment::Reset);
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
