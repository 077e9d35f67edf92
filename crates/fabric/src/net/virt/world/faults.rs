//! Fault injection in the simulated network.

use std::io::ErrorKind;

use super::*;

impl World {
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
