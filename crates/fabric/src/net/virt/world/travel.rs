//! Transmission of segments, their effects on arrival, and the faults that they meet.

use std::io::ErrorKind;

use super::*;

impl World {
    pub(super) fn delay(&mut self) -> Nanos {
        let late = self.late_one_in > 0 && self.random.below(self.late_one_in) == 0;
        if late {
            self.saw(Sight::Late);
        }
        match late {
            true => MS + self.random.below(300 * MS),
            false => 20 * US + self.random.below(180 * US),
        }
    }

    pub(super) fn send(&mut self, from: u64, segment: Segment) {
        let delay = self.delay();
        let Some(e) = self.ends.get_mut(&from) else { return };
        let at = e.out.back().map_or(0, |(at, _)| *at).max(self.now + delay);
        let is_first = e.out.is_empty();
        e.out.push_back((at, segment));
        if is_first {
            self.plan(at, Event::Arrive(from));
        }
    }

    pub(super) fn arrive(&mut self, from: u64) {
        let Some(e) = self.ends.get(&from) else { return };
        let blocked = self.blocked_until(e.machine, e.peer_machine);
        if blocked > self.now {
            let jitter = self.random.below(AGAIN_NS);
            self.saw(Sight::BlackHole);
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

    /// Returns whether the next segment may arrive, too.
    pub(super) fn deliver(&mut self, from: u64, peer: Option<u64>, segment: Segment) -> bool {
        if let Segment::Syn(at) = segment {
            return self.connect(from, at);
        }
        let known = peer.filter(|p| self.ends.contains_key(p));
        let Some(peer) = known else {
            // The connection is unknown there.
            self.saw(Sight::HalfOpen);
            self.fail(from, ErrorKind::ConnectionReset);
            return false;
        };
        let Some(e) = self.ends.get_mut(&peer) else { return false };
        let (pid, condition) = (e.pid, e.condition);
        match segment {
            Segment::Bytes(_) | Segment::End if condition != Condition::Open => {
                self.saw(Sight::HalfOpen);
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

    pub(super) fn connect(&mut self, from: u64, at: String) -> bool {
        let Some(e) = self.ends.get(&from) else { return false };
        let (from_machine, pid) = (e.machine, e.pid);
        let is_given_up = e.condition == Condition::Closed;
        let host = self.listening.get(&at).map(|l| l.pid);
        let has_lost = |e: &End| {
            let its = e.peer.and_then(|p| self.ends.get(&p));
            Some(e.pid) == host
                && e.peer_machine == from_machine
                && e.condition == Condition::Open
                && its.is_none_or(|its| its.pid == pid && its.condition != Condition::Open)
        };
        if self.ends.values().any(has_lost) {
            self.saw(Sight::Doubled);
        }
        let Some(l) = self.listening.get_mut(&at) else {
            self.saw(Sight::Refused);
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
        l.backlog.push_back(self.next_id);
        let host = l.pid;
        let peer = (!is_given_up).then_some(from);
        let id = self.add_end((host, machine_of(&at)), peer, from_machine, Condition::Open);
        if is_given_up {
            // The sender notices when it sends again.
            self.saw(Sight::AbandonedLock);
        } else if let Some(e) = self.ends.get_mut(&from) {
            // The notice itself takes no time; later segments do.
            (e.peer, e.condition) = (Some(id), Condition::Open);
        }
        self.touch(host);
        self.touch_if_alive(pid);
        true
    }

    pub(super) fn fail(&mut self, id: u64, kind: ErrorKind) {
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

    /// No end is notified.
    pub(super) fn forget(&mut self, id: u64) {
        self.ends.remove(&id);
    }

    pub(super) fn drop_if_done(&mut self, id: u64) {
        let is_done = |e: &End| e.condition == Condition::Closed && e.out.is_empty();
        if self.ends.get(&id).is_some_and(is_done) {
            self.ends.remove(&id);
        }
    }

    /// Cuts the path between two machines for so long.
    pub(in crate::net::virt) fn cut(&mut self, a: Machine, b: Machine, ns: Nanos) {
        let until = self.now + ns;
        let end = self.cuts.entry((a.min(b), a.max(b))).or_default();
        *end = (*end).max(until);
    }

    pub(super) fn blocked_until(&self, a: Machine, b: Machine) -> Nanos {
        let cut = self.cuts.get(&(a.min(b), a.max(b))).copied().unwrap_or(0);
        let dark = |m| self.dark.get(&m).copied().unwrap_or(0);
        cut.max(dark(a)).max(dark(b))
    }

    /// Ends all faults: every path is restored, every machine has power, no process stands still.
    pub(in crate::net::virt) fn heal(&mut self) {
        self.cuts.clear();
        self.dark.clear();
        self.late_one_in = 0;
        let now = self.now;
        self.processes.values_mut().for_each(|p| p.paused_until = p.paused_until.min(now));
        self.dirty.extend(self.processes.keys());
    }

    /// Breaks one connection: at both ends, or at one without notice to the other.
    pub(in crate::net::virt) fn break_one(&mut self, is_half: bool) {
        let open: Vec<u64> = {
            let is_open = |e: &End| e.condition == Condition::Open && e.peer.is_some();
            self.ends.iter().filter(|(_, e)| is_open(e)).map(|(i, _)| *i).collect()
        };
        if open.is_empty() {
            return;
        }
        let id = open[self.random.below(open.len() as u64) as usize];
        let peer = self.ends.get(&id).and_then(|e| e.peer);
        if self.random.below(2) == 0 {
            return self.sever(id, is_half);
        }
        self.fail(id, ErrorKind::ConnectionReset);
        if !is_half {
            self.saw(Sight::Reset);
        }
        match (is_half, peer) {
            (false, Some(peer)) => self.fail(peer, ErrorKind::ConnectionReset),
            // The other end notices when it sends.
            (true, Some(peer)) => {
                if let Some(e) = self.ends.get_mut(&peer) {
                    e.peer = None;
                }
            }
            _ => {}
        }
    }

    /// Breaks the connections from one machine to another at the connecting ends; bytes in flight
    /// still arrive.
    pub(in crate::net::virt) fn break_between(
        &mut self,
        from: Machine,
        to: Machine,
        is_half: bool,
    ) {
        let its = |e: &End| (e.machine, e.peer_machine, e.condition) == (from, to, Condition::Open);
        let all: Vec<u64> = self.ends.iter().filter(|(_, e)| its(e)).map(|(i, _)| *i).collect();
        all.into_iter().for_each(|id| self.sever(id, is_half));
    }

    /// Resets one end of a connection; the bytes that it has sent stay in flight.
    pub(super) fn sever(&mut self, id: u64, is_half: bool) {
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
    pub(in crate::net::virt) fn ends(&self) -> usize {
        self.ends.len()
    }
}
