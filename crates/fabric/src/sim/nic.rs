//! The servers of one node: each is a queue that serves first come, first served, kept as the time
//! at which it is free next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Picos;
use super::costs::Costs;
use super::flight::Cpu;
use crate::addr::NodeId;
use crate::host::Host;
use crate::rng::golden_hash;
use crate::transport::WorkRequest;

/// A server: when it is free next, and how long it has been busy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    pub free: Picos,
    pub busy: Picos,
}

impl Server {
    /// Serves a request that arrives at `at` for `time`; returns when it has been served.
    pub(super) fn serve(&mut self, at: Picos, time: Picos) -> Picos {
        self.free = self.free.max(at) + time;
        self.busy += time;
        self.free
    }
}

/// The index of a key in a table of so many entries.
fn place_of(key: u64, places: usize) -> usize {
    (golden_hash(key) >> 32) as usize % places
}

/// Recently touched lines: of those that share an index, the last.
struct Lines(Vec<u64>);

impl Lines {
    /// Whether a line was touched recently; records the touch.
    fn touch(&mut self, line: u64) -> bool {
        let place = place_of(line, self.0.len());
        std::mem::replace(&mut self.0[place], line) == line
    }
}

/// Words and when their last atomic ends, for the next one of the same word.
struct Recent {
    places: Vec<(u64, Picos)>,
}

impl Recent {
    fn new(places: usize) -> Self {
        Self { places: vec![(u64::MAX, 0); places] }
    }

    /// The entry of `key`, reset when its index held another key.
    fn at(&mut self, key: u64) -> (bool, &mut Picos) {
        let i = place_of(key, self.places.len());
        let place = &mut self.places[i];
        let known = place.0 == key;
        if !known {
            *place = (key, 0);
        }
        (known, &mut place.1)
    }
}

/// Lines that count as recently touched: 32 MiB, about the last-level cache of a host. With much
/// less the WRITE of an update would miss the line that its own READ has touched.
const WARM_LINES: usize = 1 << 19;
/// Words with a record of their last atomic.
const ATOMIC_WORDS: usize = 1 << 14;

/// The cores of a node that run data services: calls wait for them in the order of their arrival.
/// A call's time is known when it begins, so these have a queue.
pub(super) struct DataCores {
    pub idle: u32,
    pub waiting: VecDeque<u32>,
    pub busy: Picos,
}

/// Verbs that a NIC has served as target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    pub reads: u64,
    pub writes: u64,
    pub atomics: u64,
    pub calls: u64,
    pub in_bytes: u64,
    pub out_bytes: u64,
}

/// A node's NIC, and the few cores that serve its calls.
pub(super) struct Nic {
    pub host: Arc<Host>,
    /// When this incarnation began.
    pub born: Picos,
    pub in_wire: Server,
    pub out_wire: Server,
    pub responder: Server,
    pub initiator: Server,
    pub same_word: Picos,
    pcie_in: Server,
    pcie_out: Server,
    pub cores: Vec<Server>,
    pub data_cores: DataCores,
    /// Calls to services that wait, which are not answered yet.
    pub held: Vec<u32>,
    /// As many for jobs. Jobs on one core take turns.
    pub job_cores: Vec<Arc<Cpu>>,
    pub doorbells: Vec<Server>,
    pub threads: u32,
    /// Verbs posted by this node's clients and not delivered.
    pub outstanding: u32,
    /// Queue pairs of others that have reached this node.
    pub queue_pairs: u32,
    pub served: Served,
    atomics: Recent,
    lines: Option<Lines>,
}

impl Nic {
    pub(super) fn new(host: Arc<Host>, c: &Costs, born: Picos) -> Self {
        Self {
            host,
            born,
            in_wire: Server::default(),
            out_wire: Server::default(),
            responder: Server::default(),
            initiator: Server::default(),
            same_word: 0,
            pcie_in: Server::default(),
            pcie_out: Server::default(),
            cores: vec![Server::default(); c.rpc_cores],
            data_cores: DataCores { idle: c.data_cores, waiting: VecDeque::new(), busy: 0 },
            held: Vec::new(),
            job_cores: (0..c.data_cores).map(|_| Arc::default()).collect(),
            doorbells: vec![Server::default(); c.doorbell_slots as usize],
            threads: 0,
            outstanding: 0,
            queue_pairs: 0,
            served: Served::default(),
            atomics: Recent::new(ATOMIC_WORDS),
            lines: (c.write_cold > 0).then(|| Lines(vec![u64::MAX; WARM_LINES])),
        }
    }

    pub(super) fn node(&self) -> NodeId {
        self.host.node
    }

    /// One call on the core that is free first.
    pub(super) fn call(&mut self, at: Picos, time: Picos) -> Picos {
        let first = self.cores.iter_mut().min_by_key(|s| s.free);
        first.map_or(at, |core| core.serve(at, time))
    }

    /// Time of a verb in the responder's pipeline.
    fn respond(&mut self, c: &Costs, wr: &WorkRequest) -> Picos {
        let mut time = c.responder.of(wr.op);
        if let Some(lines) = &mut self.lines {
            // Every line that a verb covers has been touched by it.
            let (first, last) =
                (wr.at.offset() / 64, wr.at.offset() + u64::from(wr.len.max(1)) - 1);
            let cold = (first..=last / 64).filter(|line| !lines.touch(*line)).count();
            let write = time == c.responder.write && !wr.op.is_atomic();
            if write && cold > 0 {
                time = time.max(c.write_cold);
            }
        }
        if c.qp_knee > 0 && self.queue_pairs > c.qp_knee {
            let misses = 1.0 - f64::from(c.qp_knee) / f64::from(self.queue_pairs);
            time += (c.qp_miss as f64 * misses) as Picos;
        }
        time
    }

    /// A verb that reaches this node as target at `at`: queues for wire, responder and word; when
    /// its response has left. The verb's memory effect belongs to this instant of the order.
    pub(super) fn serve(&mut self, c: &Costs, wr: &WorkRequest, at: Picos, by_wire: bool) -> Picos {
        let bytes = c.bytes(wr);
        let (mut received, mut start) = (at, at);
        if by_wire {
            let time = c.wire(bytes.request);
            received = self.in_wire.serve(at, time);
            start = received - time;
            self.served.in_bytes += bytes.request;
        }
        let time = self.respond(c, wr);
        let mut done = self.responder.serve(start, time).max(received);
        match wr.op {
            _ if wr.op.is_atomic() => {
                self.served.atomics += 1;
                let apart = c.same_word[usize::from(wr.at.space() != 0)];
                let (known, free) = self.atomics.at(wr.at.bits());
                if known && *free > done {
                    self.same_word += *free - done;
                    done = *free;
                }
                *free = done + apart;
                if c.atomics_by_call {
                    done = self.call(done, c.handler);
                }
            }
            crate::Opcode::Read => self.served.reads += 1,
            _ => self.served.writes += 1,
        }
        if c.has_pcie() {
            let time = c.pcie(bytes.payload);
            let pipe = match wr.op {
                crate::Opcode::Write | crate::Opcode::WriteWord => &mut self.pcie_in,
                _ => &mut self.pcie_out,
            };
            done = done.max(pipe.serve(done - time.min(done), time));
        }
        if by_wire && bytes.response > 0 {
            done = self.send(c, done, bytes.response);
        }
        done
    }

    /// Bytes leave by this node's wire.
    pub(super) fn send(&mut self, c: &Costs, at: Picos, bytes: u64) -> Picos {
        self.served.out_bytes += bytes;
        self.out_wire.serve(at, c.wire(bytes))
    }

    /// Bytes arrive by this node's wire (their last at `at`); when they are all there.
    pub(super) fn receive(&mut self, c: &Costs, at: Picos, bytes: u64) -> Picos {
        let time = c.wire(bytes);
        self.served.in_bytes += bytes;
        self.in_wire.serve(at.saturating_sub(time), time)
    }

    pub(super) fn forget(&mut self) {
        for s in [
            &mut self.in_wire,
            &mut self.out_wire,
            &mut self.responder,
            &mut self.initiator,
            &mut self.pcie_in,
            &mut self.pcie_out,
        ] {
            s.busy = 0;
        }
        self.cores.iter_mut().for_each(|s| s.busy = 0);
        self.data_cores.busy = 0;
        self.job_cores.iter().for_each(|core| core.busy.store(0, Ordering::Relaxed));
        self.same_word = 0;
        self.served = Served::default();
    }
}

/// A queue pair: one client thread's connection to one node.
#[derive(Default)]
pub(super) struct QueuePair {
    pub known: bool,
    /// READs and atomics in flight.
    pub outstanding: u32,
    /// Verbs that wait for a free place among them, in order.
    pub waiting: VecDeque<Waiting>,
}

/// The verbs of a list to one node from `from` up to `to`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub list: u32,
    pub from: u32,
    pub to: u32,
}
