//! A profile turned into the integers that events are computed with: picoseconds and picoseconds
//! per byte.

use super::Picos;
use super::profile::Profile;
use crate::addr::{NodeId, Role};
use crate::scope::Stage;
use crate::transport::{Opcode, WorkRequest};

/// Picoseconds of nanoseconds.
pub(super) fn picos(ns: f64) -> Picos {
    (ns * 1000.0).round() as Picos
}

/// Bytes of one verb on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireBytes {
    pub request: u64,
    pub response: u64,
    /// Payload that crosses PCIe at the target.
    pub payload: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ByVerb {
    pub read: Picos,
    pub write: Picos,
    pub atomic: Picos,
}

impl ByVerb {
    pub(super) fn of(&self, op: Opcode) -> Picos {
        match op {
            Opcode::Read => self.read,
            Opcode::Write | Opcode::WriteWord => self.write,
            Opcode::Cas | Opcode::Faa => self.atomic,
        }
    }
}

/// See [`super::FIELDS`] for the meaning of each.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    /// Picoseconds per byte, with 20 fractional bits; 0: infinitely fast.
    wire: u64,
    pcie: u64,
    mtu: u64,
    /// Bytes of a group's acknowledgement, on average.
    pub ack: u64,
    header: [u64; 8],
    pub propagation: Picos,
    pub loopback: Picos,
    pub completion: Picos,
    pub jitter_sigma: f64,
    pub responder: ByVerb,
    pub write_cold: Picos,
    pub initiator: ByVerb,
    pub same_word: [Picos; 2],
    pub max_rd_atomic: u32,
    pub qp_knee: u32,
    pub qp_miss: Picos,
    pub outstanding_knee: u32,
    read_floor: f64,
    write_floor: f64,
    pub doorbell_slots: u32,
    hold: Picos,
    hold_per_sharer: Picos,
    pub post: Picos,
    pub round: Picos,
    /// CPU time of each step of an operation, on a compute node.
    stages: [Picos; Stage::ALL.len()],
    /// How much faster a memory node merges.
    merge_ratio: f64,
    cores: f64,
    pair_ratio: f64,
    contention: f64,
    pub handler: Picos,
    pub rpc_cores: usize,
    pub atomics_by_call: bool,
    /// A data call beside its handler.
    pub call: Picos,
    pub send: Picos,
    pub data_cores: u32,
    pub line: Picos,
    in_flight: u64,
}

const FRACTION: u32 = 20;

/// A factor of time, in units of 2^-20.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slowdown(pub(super) u64);

impl Slowdown {
    pub(super) const NONE: Self = Self(1 << FRACTION);

    pub(super) fn of(self, time: Picos) -> Picos {
        ((u128::from(time) * u128::from(self.0)) >> FRACTION) as Picos
    }
}

fn per_byte(gbps: f64, share: f64) -> u64 {
    if gbps == 0.0 {
        return 0;
    }
    // 8 bits at `gbps` bits per nanosecond.
    (8000.0 / (gbps * share) * f64::from(1u32 << FRACTION)).round() as u64
}

impl Costs {
    pub(super) fn new(p: &Profile) -> Self {
        let h = &p.header;
        let by =
            |r: f64, w: f64, a: f64| ByVerb { read: picos(r), write: picos(w), atomic: picos(a) };
        let c = &p.cpu;
        Self {
            wire: per_byte(p.link.gbps, p.link.efficiency),
            pcie: per_byte(p.pcie.gbps, 1.0),
            mtu: p.link.mtu_bytes as u64,
            ack: (h.ack * p.link.ack_factor).round() as u64,
            header: [
                h.read_request,
                h.read_response,
                h.write_first,
                h.write_next,
                h.ack,
                h.atomic_request,
                h.atomic_response,
                h.send,
            ]
            .map(|b| b as u64),
            propagation: picos(p.latency.propagation_ns),
            loopback: picos(p.latency.loopback_ns),
            completion: picos(p.latency.completion_ns),
            jitter_sigma: p.latency.jitter_sigma,
            responder: by(p.responder_ns.read, p.responder_ns.write, p.responder_ns.atomic),
            write_cold: picos(p.responder_ns.write_cold),
            initiator: by(p.initiator_ns.read, p.initiator_ns.write, p.initiator_ns.atomic),
            same_word: [picos(p.same_word_ns.dram), picos(p.same_word_ns.on_chip)],
            max_rd_atomic: p.queue_pair.max_rd_atomic as u32,
            qp_knee: p.queue_pair.knee as u32,
            qp_miss: picos(p.queue_pair.miss_ns),
            outstanding_knee: p.outstanding.knee as u32,
            read_floor: p.outstanding.read_floor,
            write_floor: p.outstanding.write_floor,
            doorbell_slots: p.doorbell.slots as u32,
            hold: picos(p.doorbell.hold_ns),
            hold_per_sharer: picos(p.doorbell.hold_per_sharer_ns),
            post: picos(c.post_ns),
            round: picos(c.round_ns),
            stages: [
                c.operation_ns,
                c.cache_lookup_ns,
                c.fingerprint_scan_ns,
                c.entry_check_ns,
                c.node_image_slot_ns,
                c.local_queue_ns,
                c.polled_line_ns,
                c.cache_fill_ns,
                c.scan_collect_pair_ns,
                p.host.node_ns,
                p.host.entry_ns,
                p.host.copy_ns,
                c.polled_line_ns,
                c.mem_table_put_ns,
                c.mem_table_probe_ns,
                c.table_probe_ns,
                c.table_entry_ns,
                c.merge_entry_ns,
                c.iter_entry_ns,
                c.log_record_ns,
            ]
            .map(picos),
            merge_ratio: p.host.merge_ratio,
            cores: c.cores,
            pair_ratio: c.pair_ratio,
            contention: c.contention,
            handler: picos(p.rpc.handler_ns),
            rpc_cores: p.rpc.cores as usize,
            call: picos(p.host.call_ns),
            send: picos(p.responder_ns.send),
            data_cores: p.host.cores as u32,
            atomics_by_call: p.rpc.atomics >= 0.5,
            line: picos(p.load_store.line_ns),
            in_flight: p.load_store.in_flight as u64,
        }
    }

    /// CPU time of each step on a node.
    pub(super) fn stages(&self, node: NodeId) -> [Picos; Stage::ALL.len()] {
        let mut stages = self.stages;
        if node.role() == Role::Memory {
            let merge = &mut stages[Stage::MergeEntry as usize];
            *merge = (*merge as f64 / self.merge_ratio).round() as Picos;
        }
        stages
    }

    /// How much longer work takes on a compute node where so many threads run than on one where a
    /// single thread does. A thread polls when it has nothing to do, so that each one takes its
    /// share of a core all the time.
    pub(super) fn slowdown(&self, threads: u32) -> Slowdown {
        let threads = f64::from(threads.max(1));
        let cores = if self.cores > 0.0 { self.cores } else { threads };
        let paired = (threads - cores).clamp(0.0, cores);
        let work = threads.min(cores) - paired + paired * self.pair_ratio;
        let contended = 1.0 + self.contention * (threads.min(cores) - 1.0);
        Slowdown((threads / work * contended * f64::from(1u32 << FRACTION)).round() as u64)
    }

    /// Time of `bytes` on the wire.
    pub(super) fn wire(&self, bytes: u64) -> Picos {
        (bytes * self.wire) >> FRACTION
    }

    /// Time of `bytes` between NIC and memory.
    pub(super) fn pcie(&self, bytes: u64) -> Picos {
        (bytes * self.pcie) >> FRACTION
    }

    pub(super) fn has_pcie(&self) -> bool {
        self.pcie != 0
    }

    fn packets(&self, payload: u64) -> u64 {
        payload.div_ceil(self.mtu).max(1)
    }

    /// Bytes that a verb puts on the wire. A WRITE's acknowledgement is counted once per group.
    pub(super) fn bytes(&self, wr: &WorkRequest) -> WireBytes {
        let [read, response, first, next, _, atomic, atomic_response, _] = self.header;
        let len = u64::from(wr.len);
        match wr.op {
            Opcode::Read => WireBytes {
                request: read,
                response: response * self.packets(len) + len,
                payload: len,
            },
            Opcode::Write | Opcode::WriteWord => WireBytes {
                request: first + next * (self.packets(len) - 1) + len,
                response: 0,
                payload: len,
            },
            Opcode::Cas | Opcode::Faa => {
                WireBytes { request: atomic, response: atomic_response, payload: 8 }
            }
        }
    }

    /// Bytes of a remote call or its reply.
    pub(super) fn message(&self, len: usize) -> u64 {
        self.header[7] * self.packets(len as u64) + len as u64
    }

    /// How long a shared doorbell is held per post.
    pub(super) fn hold(&self, sharers: u32) -> Picos {
        self.hold + self.hold_per_sharer * u64::from(sharers)
    }

    /// Initiator time with so many verbs outstanding at the NIC: the rate falls linearly from the
    /// knee to its floor at 2.7 times the knee.
    pub(super) fn initiate(&self, op: Opcode, outstanding: u32) -> Picos {
        let time = self.initiator.of(op);
        let knee = self.outstanding_knee;
        if knee == 0 || outstanding <= knee {
            return time;
        }
        let floor = match op {
            Opcode::Write | Opcode::WriteWord => self.write_floor,
            _ => self.read_floor,
        };
        let over = (f64::from(outstanding - knee) / (1.7 * f64::from(knee))).min(1.0);
        (time as f64 / (1.0 - over * (1.0 - floor))) as Picos
    }

    /// Time in which a CPU loads or stores `bytes` itself.
    pub(super) fn lines(&self, bytes: u64) -> Picos {
        bytes.div_ceil(64).max(1).div_ceil(self.in_flight) * self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::GlobalAddr;

    fn verb(op: Opcode, len: u32) -> WorkRequest {
        let at = GlobalAddr::new(NodeId::memory(0), 64);
        WorkRequest::alone(op, at, len)
    }

    #[test]
    fn bytes_on_the_wire() {
        let c = Costs::new(&Profile::named("dmtree-artifact-100g").unwrap());
        let of = |op, len| {
            let b = c.bytes(&verb(op, len));
            (b.request, b.response)
        };
        assert_eq!(of(Opcode::Read, 40), (98, 126));
        assert_eq!(of(Opcode::Read, 5000), (98, 2 * 86 + 5000));
        assert_eq!(of(Opcode::Write, 40), (138, 0));
        assert_eq!(of(Opcode::Write, 5000), (98 + 82 + 5000, 0));
        assert_eq!(of(Opcode::Cas, 8), (110, 94));
        assert_eq!(c.ack, 56);
        // 12.3 bytes per nanosecond.
        assert_eq!(c.wire(123_000), 9_999_999);
    }

    #[test]
    fn a_memory_node_merges_faster() {
        let mut p = Profile::named("ideal").unwrap();
        p.set("cpu.merge_entry_ns", "1700").unwrap();
        p.set("cpu.polled_line_ns", "90").unwrap();
        let c = Costs::new(&p);
        let price = |node, stage: Stage| c.stages(node)[stage as usize];
        let (cn, mn) = (NodeId::compute(0), NodeId::memory(0));
        assert_eq!(price(cn, Stage::MergeEntry), 1_700_000);
        assert_eq!(price(mn, Stage::MergeEntry), 800_000);
        for node in [cn, mn] {
            assert_eq!(price(node, Stage::SharedLine), 90_000);
            assert_eq!(price(node, Stage::PolledLine), 90_000);
            assert_eq!(price(node, Stage::TableEntry), 0);
        }
    }

    #[test]
    fn threads_that_share_cores_are_slower() {
        let mut p = Profile::named("ideal").unwrap();
        let by = |p: &Profile, threads| Costs::new(p).slowdown(threads).of(1_000_000);
        assert_eq!((by(&p, 1), by(&p, 500)), (1_000_000, 1_000_000));
        p.set("cpu.cores", "36").unwrap();
        p.set("cpu.pair_ratio", "1.5").unwrap();
        assert_eq!((by(&p, 0), by(&p, 36)), (1_000_000, 1_000_000));
        // 24 threads alone, and 12 pairs that do the work of 18: 42 of 48.
        assert_eq!(by(&p, 48), 1_142_857);
        // 36 pairs do the work of 54; further threads get a part of that.
        assert_eq!((by(&p, 72), by(&p, 144)), (1_333_333, 2_666_666));
        p.set("cpu.contention", "0.01").unwrap();
        assert_eq!((by(&p, 1), by(&p, 11), by(&p, 72)), (1_000_000, 1_100_000, 1_800_000));
    }

    #[test]
    fn the_knee_slows_down_to_its_floor() {
        let c = Costs::new(&Profile::named("cx6-200g").unwrap());
        assert_eq!(c.initiate(Opcode::Read, 1150), 9_000);
        assert_eq!(c.initiate(Opcode::Read, 3105), 18_000);
        assert_eq!(c.initiate(Opcode::Read, 30_000), 18_000);
        let (a, b) = (c.initiate(Opcode::Write, 1500), c.initiate(Opcode::Write, 2500));
        assert!(10_800 < a && a < b && b < 15_882, "{a} {b}");
    }
}
