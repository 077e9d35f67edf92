//! Socket operations of processes.

use std::collections::VecDeque;
use std::io::ErrorKind;

use super::*;

impl World {
    pub(in crate::net::virt) fn listen(&mut self, pid: Pid, wanted: &str) -> Option<(u64, String)> {
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

    fn unlisten(&mut self, id: u64) {
        let waiting: Vec<u64> = {
            let of = |l: &&Listening| l.id == id;
            self.listening.values().filter(of).flat_map(|l| l.backlog.iter().copied()).collect()
        };
        self.listening.retain(|_, l| l.id != id);
        waiting.into_iter().for_each(|end| self.reset(end));
    }

    pub(in crate::net::virt) fn is_listening(&self, id: u64) -> bool {
        self.listening.values().any(|l| l.id == id)
    }

    pub(in crate::net::virt) fn has_waiting(&self, id: u64) -> bool {
        self.listening.values().any(|l| l.id == id && !l.backlog.is_empty())
    }

    pub(in crate::net::virt) fn accept(&mut self, id: u64) -> Option<(u64, Machine)> {
        loop {
            let l = self.listening.values_mut().find(|l| l.id == id)?;
            let end = l.backlog.pop_front()?;
            if let Some(e) = self.ends.get(&end) {
                return Some((end, e.peer_machine));
            }
        }
    }

    pub(in crate::net::virt) fn dial(&mut self, pid: Pid, at: &str) -> Option<u64> {
        let machine = self.processes.get(&pid)?.machine;
        let id = self.add_end((pid, machine), None, machine_of(at), Condition::Connecting);
        self.send(id, Segment::Syn(at.to_string()));
        Some(id)
    }

    pub(in crate::net::virt) fn is_connected(&self, id: u64) -> Result<bool, ErrorKind> {
        match self.ends.get(&id).map(|e| e.condition) {
            Some(Condition::Connecting) => Ok(false),
            Some(Condition::Open) => Ok(true),
            Some(Condition::Failed(kind)) => Err(kind),
            Some(Condition::Closed) | None => Err(ErrorKind::ConnectionReset),
        }
    }

    /// Whether a read would not have to wait, whether a write would not, whether it has failed.
    pub(in crate::net::virt) fn readiness(&self, id: u64) -> (bool, bool, bool) {
        let Some(e) = self.ends.get(&id) else { return (true, true, true) };
        let failed = matches!(e.condition, Condition::Failed(_) | Condition::Closed);
        let open = e.condition == Condition::Open;
        let read = failed || (open && (!e.inbox.is_empty() || e.is_ended));
        (read, failed || (open && self.window(e) > 0), failed)
    }

    pub(super) fn window(&self, e: &End) -> usize {
        let unread = e.peer.and_then(|p| self.ends.get(&p)).map_or(0, |p| p.inbox.len());
        WINDOW.saturating_sub(e.on_the_way + unread)
    }

    pub(in crate::net::virt) fn read(
        &mut self,
        id: u64,
        into: &mut [u8],
    ) -> Result<usize, ErrorKind> {
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

    pub(in crate::net::virt) fn write(
        &mut self,
        id: u64,
        bytes: &[u8],
    ) -> Result<usize, ErrorKind> {
        if !self.is_connected(id)? {
            return Err(ErrorKind::WouldBlock);
        }
        let Some(e) = self.ends.get(&id) else { return Err(ErrorKind::ConnectionReset) };
        let most = bytes.len().min(self.window(e));
        if most == 0 {
            return Err(ErrorKind::WouldBlock);
        }
        // Sometimes a write is accepted in part.
        let n = if self.random.below(16) == 0 {
            1 + self.random.below(most as u64) as usize
        } else {
            most
        };
        if n < bytes.len() {
            self.saw(Sight::Partial);
        }
        if let Some(e) = self.ends.get_mut(&id) {
            e.on_the_way += n;
        }
        self.send(id, Segment::Bytes(bytes[..n].to_vec()));
        Ok(n)
    }

    /// A process closes an end: the bytes that it has sent arrive, unless it leaves received bytes
    /// unread. A listening socket ends with the connections that were not accepted.
    pub(in crate::net::virt) fn close(&mut self, id: u64) {
        let Some(e) = self.ends.get_mut(&id) else { return self.unlisten(id) };
        let (condition, unread) = (e.condition, !e.inbox.is_empty());
        e.condition = Condition::Closed;
        e.inbox.clear();
        match condition {
            Condition::Open if unread => self.reset(id),
            Condition::Open => self.send(id, Segment::End),
            // Bytes that were sent before the failure may arrive.
            Condition::Failed(_) if !self.ends.get(&id).is_none_or(|e| e.out.is_empty()) => {}
            // The connection request may arrive after its process has given it up.
            Condition::Connecting if self.random.below(2) == 0 => {}
            Condition::Connecting | Condition::Failed(_) | Condition::Closed => self.forget(id),
        }
    }

    pub(super) fn reset(&mut self, id: u64) {
        let Some(e) = self.ends.get_mut(&id) else { return };
        e.out.clear();
        e.on_the_way = 0;
        e.condition = Condition::Closed;
        self.send(id, Segment::Reset);
    }
}
