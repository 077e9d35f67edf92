//! The sanitizer: reports verbs that touch memory which they must not touch, and local buffers that
//! are in flight twice.
//!
//! Allocators report every change of a range
//! ([`Fabric::allocation_event`](crate::Fabric::allocation_event)). The sanitizer reports verbs
//! outside a region or at a wrong alignment, READs that begin in memory that was allocated with
//! undefined contents and never written, any verb to freed memory, WRITEs to freed memory of a
//! type-stable arena (READs and atomics there are legal: caches may be old), and a list with
//! buffers that overlap those of another one in flight. The last cannot be written in index code: a
//! [`Buf`](crate::Buf) belongs to the posting until the completion. So it is a check of the
//! executor. READs of nodes that have crashed are not reported, because their results reach no
//! client. Nor are unvalidated ones ([`read_unvalidated`](crate::verb::read_unvalidated)), which
//! may find any contents.

use std::collections::BTreeMap;

use crate::addr::{GlobalAddr, NodeId};
use crate::transport::{Opcode, ShadowState, WorkRequest};

/// Most reports that are kept.
const MOST: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sanitizer {
    /// Ranges with a known shadow state, by their start: end and state. Disjoint.
    ranges: BTreeMap<(NodeId, u64), (u64, ShadowState)>,
    /// Local buffers in flight, by their start: end and list.
    lent: BTreeMap<usize, (usize, u32)>,
    pub reports: Vec<String>,
}

impl Sanitizer {
    fn report(&mut self, finding: String) {
        if self.reports.len() < MOST {
            self.reports.push(finding);
        }
    }

    /// Sets the shadow state of a range.
    pub(super) fn set_state(&mut self, at: GlobalAddr, bytes: u64, now: ShadowState) {
        let (node, from, to) = (at.node(), at.offset(), at.offset() + bytes);
        self.cut(node, from);
        self.cut(node, to);
        let inside: Vec<_> = self.ranges.range((node, from)..(node, to)).map(|(k, _)| *k).collect();
        inside.iter().for_each(|k| _ = self.ranges.remove(k));
        if now != ShadowState::Plain && bytes > 0 {
            self.ranges.insert((node, from), (to, now));
        }
    }

    /// Splits the range that crosses this address.
    fn cut(&mut self, node: NodeId, at: u64) {
        let Some((&(n, from), &(to, state))) = self.ranges.range(..(node, at)).next_back() else {
            return;
        };
        if n == node && to > at {
            self.ranges.insert((node, from), (at, state));
            self.ranges.insert((node, at), (to, state));
        }
    }

    /// The shadow states in a range.
    fn under(&self, wr: &WorkRequest) -> impl Iterator<Item = ShadowState> {
        let (node, from) = (wr.at.node(), wr.at.offset());
        let to = from + u64::from(wr.len);
        let before = self.ranges.range(..(node, from)).next_back();
        let before = before.filter(|((n, _), (end, _))| *n == node && *end > from);
        let inside = self.ranges.range((node, from)..(node, to.max(from)));
        before.into_iter().chain(inside).map(|(_, (_, state))| *state)
    }

    fn state_at(&self, at: GlobalAddr) -> ShadowState {
        let before = self.ranges.range(..=(at.node(), at.offset())).next_back();
        let here = before.filter(|((n, _), (end, _))| *n == at.node() && *end > at.offset());
        here.map_or(ShadowState::Plain, |(_, (_, state))| *state)
    }

    /// A verb begins to execute; `heard` is false when its issuer has crashed.
    pub(super) fn look(&mut self, by: NodeId, wr: &WorkRequest, heard: bool) {
        if wr.at.is_on_chip() || wr.unvalidated {
            return;
        }
        // Only the first word counts: a READ of a block has the length of its size class, and the
        // bytes behind the contents may be undefined.
        let read = wr.op == Opcode::Read && heard;
        let unwritten = read && self.state_at(wr.at) == ShadowState::Undefined;
        let others = || {
            self.under(wr).find_map(|g| match (g, wr.op) {
                (ShadowState::Freed, Opcode::Read) if !heard => None,
                (ShadowState::Freed, _) => Some("is freed"),
                (ShadowState::FreedTyped, Opcode::Write | Opcode::WriteWord) => Some("is freed"),
                _ => None,
            })
        };
        let wrong = if unwritten { Some("was never written") } else { others() };
        if let Some(why) = wrong {
            self.report(format!("{by}: {:?} of {} bytes at {}, which {why}", wr.op, wr.len, wr.at));
        }
        self.wrote(wr);
    }

    /// A WRITE defines its range.
    pub(super) fn wrote(&mut self, wr: &WorkRequest) {
        let writes = matches!(wr.op, Opcode::Write | Opcode::WriteWord) && !wr.at.is_on_chip();
        if writes && self.under(wr).any(|g| g == ShadowState::Undefined) {
            self.set_state(wr.at, u64::from(wr.len), ShadowState::Plain);
        }
    }

    /// Reports a verb that its target refuses.
    pub(super) fn refused(&mut self, by: NodeId, wr: &WorkRequest, why: &crate::Error) {
        self.report(format!("{by}: {:?} of {} bytes: {why}", wr.op, wr.len));
    }

    /// A list is posted: its buffers are in flight.
    pub(super) fn lend(&mut self, list: u32, requests: &[WorkRequest]) {
        for wr in requests.iter().filter(|wr| !wr.local.is_null()) {
            let from = wr.local.addr();
            let bytes = if matches!(wr.op, Opcode::Cas | Opcode::Faa) { 8 } else { wr.len };
            let to = from + bytes as usize;
            let before = self.lent.range(..to).next_back().filter(|(_, (end, _))| *end > from);
            if before.is_some() {
                self.report(format!("{:?} at {}: its buffer is in flight already", wr.op, wr.at));
            }
            self.lent.insert(from, (to, list));
        }
    }

    /// A list has completed.
    pub(super) fn give_back(&mut self, list: u32) {
        self.lent.retain(|_, (_, of)| *of != list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verb(op: Opcode, at: u64, len: u32, local: usize) -> WorkRequest {
        let at = GlobalAddr::new(NodeId::memory(0), at);
        let local = std::ptr::without_provenance_mut(local);
        WorkRequest { local, ..WorkRequest::alone(op, at, len) }
    }

    fn seen(s: &mut Sanitizer, op: Opcode, at: u64, len: u32) -> bool {
        s.reports.clear();
        s.look(NodeId::compute(0), &verb(op, at, len, 0), true);
        !s.reports.is_empty()
    }

    #[test]
    fn ranges_are_cut_where_others_begin() {
        use Opcode::{Cas, Read, Write, WriteWord};
        let mut s = Sanitizer::default();
        let at = |offset| GlobalAddr::new(NodeId::memory(0), offset);
        s.set_state(at(1024), 256, ShadowState::Undefined);
        assert!(seen(&mut s, Read, 1024, 8) && seen(&mut s, Read, 1272, 64));
        assert!(!seen(&mut s, Read, 1000, 24) && !seen(&mut s, Read, 1280, 64));
        assert!(!seen(&mut s, Write, 1088, 64) && !seen(&mut s, Read, 1088, 64));
        assert!(seen(&mut s, Read, 1080, 16) && !seen(&mut s, Read, 1144, 16));
        assert!(seen(&mut s, Read, 1152, 16));
        s.set_state(at(1024), 256, ShadowState::Freed);
        assert!(seen(&mut s, Read, 1100, 8) && seen(&mut s, WriteWord, 1272, 8));
        s.set_state(at(1024), 128, ShadowState::Plain);
        assert!(!seen(&mut s, Read, 1024, 128) && seen(&mut s, Read, 1024, 129));
        s.set_state(at(1152), 128, ShadowState::FreedTyped);
        assert!(!seen(&mut s, Read, 1152, 64) && !seen(&mut s, Cas, 1152, 8));
        assert!(seen(&mut s, Write, 1200, 8) && seen(&mut s, WriteWord, 1152, 8));
        s.reports.clear();
        s.set_state(at(1152), 128, ShadowState::Freed);
        s.look(NodeId::compute(0), &verb(Read, 1152, 8, 0), false);
        assert!(s.reports.is_empty(), "of a node that has crashed");
    }

    #[test]
    fn a_buffer_is_lent_once() {
        let mut s = Sanitizer::default();
        s.lend(1, &[verb(Opcode::Read, 64, 64, 4096), verb(Opcode::Cas, 64, 8, 4160)]);
        s.lend(2, &[verb(Opcode::Write, 64, 64, 4168), verb(Opcode::WriteWord, 64, 8, 0)]);
        assert!(s.reports.is_empty());
        s.lend(3, &[verb(Opcode::Write, 64, 16, 4152)]);
        assert_eq!(s.reports.len(), 1);
        s.reports.clear();
        [1, 2, 3].into_iter().for_each(|list| s.give_back(list));
        s.lend(4, &[verb(Opcode::Read, 64, 64, 4096)]);
        assert!(s.reports.is_empty());
    }
}
