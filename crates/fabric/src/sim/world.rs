//! The simulated cluster: the events, and the effect of each.
//!
//! A posted list goes through four stations. *Launch*, when its thread's CPU has come to it:
//! doorbell, initiator, the client's wire. *Arrive*, when its first packet is at the target: wire,
//! responder, word, the memory effect, the response's wire. *Deliver*, when the response is at the
//! client: its wire, and the completion. *Resume*, when the thread's CPU is free. Every server is
//! first come, first served, and an event is handled at its own time, so that nothing overtakes in
//! a queue.
//!
//! *Servers as times.* No server keeps a queue of requests. Each is the time at which it is free
//! next (`nic.rs`): a request that arrives at `at` begins at the later of the two, and moves that
//! time. This is exact for first come, first served, as long as events are handled in the order of
//! their times.
//!
//! *Groups.* The verbs of a list that go to one node between two fences form a group: one doorbell,
//! one first packet, one response. A queue pair admits a bounded number of READs and atomics in
//! flight. A group that exceeds this window is split, and its rest waits in the queue pair. A
//! fenced verb begins a new launch when everything before it in the list has been delivered.
//!
//! *Memory effects.* A verb takes effect whole at the event of its arrival. So verbs are linearized
//! in the order in which they reach their target; the adversarial mode (`chaos.rs`) replaces this
//! by steps.
//!
//! *Client CPU.* The clients of a thread share one CPU, which is a server as well. Index code
//! charges its steps, and the charge delays the thread's next post and its next resume. The time
//! that a client sees is the fabric's clock plus the work that its thread has been charged for.
//!
//! *Determinism.* Events of one time come out in insertion order, and all draws come from the seed.
//! The trace hash covers every list that reaches a target; it differs at the first event that
//! differs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Picos;
use super::chaos::Chaos;
use super::costs::Costs;
use super::crash::{Crashes, RETRANSMISSION_NS};
use super::flight::{Call, Cpu, Event, List, Thread, VerbGroup};
use super::nic::{Nic, QueuePair, Waiting};
use super::order::Chosen;
use super::prefetch::Ahead;
use super::sanitizer::Sanitizer;
use super::wheel::Wheel;
use crate::addr::{ByNode, NodeId, Role};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::host::Host;
use crate::membership::Member;
use crate::rng::{golden_hash, xorshift64};
use crate::slots::Slots;
use crate::transport::{Ticket, WorkRequest};

/// Runs a remote call's handler: the time, node of the caller, then the call.
pub(super) type Runner<'a> = &'a dyn Fn(Picos, &Arc<Host>, &mut Call) -> Result<()>;

pub(super) struct World {
    pub costs: Costs,
    pub nics: Vec<Nic>,
    /// The index of a node among the NICs.
    pub numbers: ByNode<Option<u32>>,
    pub threads: Vec<Thread>,
    pub now: Picos,
    pub lists: Slots<List>,
    pub(super) groups: Slots<VerbGroup>,
    pub wheel: Wheel<Event>,
    /// Lists in flight.
    pub live: u32,
    /// Threads that got work: those with more waiting get a resume event.
    given: Vec<u32>,
    /// Calls that have arrived at services that wait, and are not being answered.
    pub(super) arrived: Vec<u32>,
    pub hash: u64,
    /// The executor that drives this world.
    pub driver: u64,
    jitter: u64,
    /// The adversarial mode, in place of NICs.
    pub chaos: Option<Chaos>,
    pub crashes: Crashes,
    /// Steps of the adversarial mode are chosen instead of timed.
    pub chosen: Option<Chosen>,
    /// The access sanitizer, if it is on.
    pub sanitizer: Option<Box<Sanitizer>>,
}

/// The hash of a trace after one more word.
pub(super) fn mixed(hash: u64, word: u64) -> u64 {
    golden_hash(hash.rotate_left(23) ^ word)
}

impl World {
    pub(super) fn new(costs: Costs, seed: u64) -> Self {
        Self {
            costs,
            nics: Vec::new(),
            numbers: ByNode::default(),
            threads: Vec::new(),
            now: 0,
            lists: Slots::default(),
            groups: Slots::default(),
            wheel: Wheel::new(),
            live: 0,
            given: Vec::new(),
            arrived: Vec::new(),
            hash: golden_hash(seed) | 1,
            driver: 0,
            jitter: seed.wrapping_mul(0xd134_2543_de82_ef95) | 1,
            chaos: None,
            crashes: Crashes::default(),
            chosen: None,
            sanitizer: None,
        }
    }

    pub(super) fn add_nic(&mut self, host: Arc<crate::host::Host>) {
        let node = host.node;
        let born = self.now;
        match self.nics.iter().position(|n| n.node() == node) {
            Some(i) => {
                self.fail_waiting(i);
                self.fail_held(i);
                self.nics[i] = Nic::new(host, &self.costs, born);
            }
            None => {
                *self.numbers.at(node) = Some(self.nics.len() as u32);
                self.nics.push(Nic::new(host, &self.costs, born));
            }
        }
    }

    /// The core of a node for one more job: the one with the fewest, and the first to be free.
    pub(super) fn job_core(&self, node: NodeId) -> Option<Arc<Cpu>> {
        let nic = self.nics.iter().find(|n| n.node() == node)?;
        let load = |c: &&Arc<Cpu>| (c.jobs.load(Ordering::Relaxed), c.free.load(Ordering::Relaxed));
        let core = nic.job_cores.iter().min_by_key(load)?;
        core.jobs.fetch_add(1, Ordering::Relaxed);
        Some(core.clone())
    }

    pub(super) fn add_thread(
        &mut self,
        node: NodeId,
        cpu: Arc<Cpu>,
        job_of: Option<Member>,
    ) -> Option<u32> {
        let is_job = job_of.is_some();
        let job_of = job_of.filter(|_| !self.keeps_jobs());
        let nic = self.nics.iter().position(|n| n.node() == node)?;
        let n = &mut self.nics[nic];
        self.threads.push(Thread {
            cpu,
            nic: nic as u32,
            own: n.host.clone(),
            number: n.threads,
            job_of,
            is_job,
            queue_pairs: Vec::new(),
            done: VecDeque::new(),
            resuming: false,
        });
        n.threads += 1;
        self.slow_down(nic as u32);
        Some(self.threads.len() as u32 - 1)
    }

    /// The number of threads of a compute node has changed.
    fn slow_down(&self, nic: u32) {
        let n = &self.nics[nic as usize];
        if n.node().role() != Role::Compute {
            return;
        }
        let slowdown = self.costs.slowdown(n.threads);
        for t in self.threads.iter().filter(|t| t.nic == nic) {
            t.cpu.slowdown.store(slowdown.0, Ordering::Relaxed);
        }
    }

    /// The index of a node among the NICs.
    pub(super) fn number_of(&self, node: NodeId) -> Option<u32> {
        *self.numbers.get(node)?
    }

    /// Removes a thread: it shares no doorbell any more.
    pub(super) fn drop_thread(&mut self, thread: u32) {
        let Thread { nic, is_job, cpu, .. } = &self.threads[thread as usize];
        if *is_job {
            cpu.jobs.fetch_sub(1, Ordering::Relaxed);
        }
        let nic = *nic;
        let n = &mut self.nics[nic as usize];
        n.threads = n.threads.saturating_sub(1);
        self.slow_down(nic);
    }

    pub(super) fn mix(&mut self, word: u64) {
        self.hash = mixed(self.hash, word);
    }

    /// Posts a list on its thread's CPU.
    pub(super) fn post(&mut self, core: &Core, thread: u32, ticket: Ticket, list: &[WorkRequest]) {
        let about = core.about(ticket);
        if let Some(chaos) = &mut self.chaos {
            let at = self.now + chaos.hold();
            chaos.scribble(list);
            let number = self.enter(thread, ticket, about, None);
            if let Some(s) = &mut self.sanitizer {
                s.lend(number, list);
            }
            let at = self.soon(at);
            self.wheel.push(at, Event::Launch(number));
            self.count(number, list.len());
            return;
        }
        let c = &self.costs;
        let mut work = c.post * list.len() as u64;
        if !about.0 {
            work += c.round;
        }
        if c.line > 0 {
            work += list.iter().map(|wr| c.lines(u64::from(wr.len))).sum::<u64>();
        }
        let at = self.threads[thread as usize].cpu.work(self.now, work);
        let number = self.enter(thread, ticket, about, None);
        self.wheel.push(at, Event::Launch(number));
        self.count(number, list.len());
    }

    pub(super) fn enter(
        &mut self,
        thread: u32,
        ticket: Ticket,
        (detached, slot): (bool, u32),
        call: Option<Box<Call>>,
    ) -> u32 {
        self.live += 1;
        self.lists.put(List {
            ticket,
            thread,
            posted: self.now,
            pending: 0,
            next: 0,
            detached,
            slot,
            error: None,
            call,
            cut_since: None,
            crash_plan: None,
            late: None,
            failed_at: None,
        })
    }

    /// When the next event is due, ps.
    pub(super) fn next_at(&mut self) -> Option<Picos> {
        [self.wheel.next_at(), self.next_chosen()].into_iter().flatten().min()
    }

    /// Handles the next event if it is due at `until` or before. `None` when there is none; true
    /// when a list has completed.
    pub(super) fn step(&mut self, core: &Core, until: Picos, run: Runner<'_>) -> Option<bool> {
        if !self.given.is_empty() {
            self.resume_given();
        }
        if self.wheel.refill() && self.chaos.is_none() {
            Ahead(self).prefetch(core);
        }
        let (at, event) = self.next_event(until)?;
        self.now = self.now.max(at);
        Some(match event {
            Event::Launch(list) if self.chaos.is_some() => {
                self.set_out(core, list);
                false
            }
            Event::Launch(list) => {
                self.launch(core, list);
                false
            }
            Event::Chaos(step) => {
                self.misbehave(core, step);
                false
            }
            Event::Complete(list) => self.complete(core, list),
            Event::Arrive(group) => {
                self.arrive(core, group);
                false
            }
            Event::Deliver(group) => self.deliver(core, group),
            Event::Resume(thread) => self.resume(core, thread),
            Event::CallArrives(list) => {
                self.call_arrives(core, list, run);
                false
            }
            Event::CallReturns(list) => self.call_returns(core, list),
            Event::CallQueues(list) => {
                self.call_queues(list, run);
                false
            }
            Event::CallEnds(list) => {
                self.call_ends(list, run);
                false
            }
            Event::CallAnswered(list) => {
                self.call_answered(list);
                false
            }
        })
    }

    // ---- launch
    // -----------------------------------------------------------------------------------

    /// Launches the verbs up to the next fence, those to each node together.
    fn launch(&mut self, core: &Core, number: u32) {
        let (ticket, first) = {
            let l = self.lists.at(number);
            (l.ticket, l.next)
        };
        core.with_requests(ticket, |requests| {
            let fence = requests.iter().skip(first as usize + 1).position(|wr| wr.fenced);
            let to = fence.map_or(requests.len() as u32, |i| first + 1 + i as u32);
            self.lists.at(number).next = to;
            // Guards the list against completing before its last group has been launched.
            self.lists.at(number).pending += 1;
            let part = &requests[first as usize..to as usize];
            for (i, wr) in part.iter().enumerate() {
                let node = wr.at.node();
                if part[..i].iter().any(|earlier| earlier.at.node() == node) {
                    continue;
                }
                let from = first + i as u32;
                self.ring(number, Waiting { list: number, from, to }, requests);
            }
        });
        self.lists.at(number).pending -= 1;
        if self.lists.at(number).pending == 0 {
            // Nothing of it could be launched: no such node.
            self.finish(core, number);
        }
    }

    /// The doorbell of one queue pair.
    fn ring(&mut self, number: u32, w: Waiting, requests: &[WorkRequest]) {
        let thread = self.lists.at(number).thread;
        let Some(target) = self.number_of(requests[w.from as usize].at.node()) else {
            let e = unreachable(&requests[w.from as usize]);
            self.lists.at(number).error.get_or_insert(e);
            return;
        };
        let t = &mut self.threads[thread as usize];
        let mut at = self.now;
        let nic = &mut self.nics[t.nic as usize];
        if !nic.doorbells.is_empty() {
            let slots = nic.doorbells.len() as u32;
            let sharers = nic.threads.div_ceil(slots);
            if sharers > 1 {
                let hold = self.costs.hold(sharers);
                at = nic.doorbells[(t.number % slots) as usize].serve(at, hold);
                let waited = at.saturating_sub(self.now);
                t.cpu.work(self.now, waited);
            }
        }
        self.lists.at(number).pending += 1;
        if t.queue_pairs.len() <= target as usize {
            t.queue_pairs.resize_with(target as usize + 1, QueuePair::default);
        }
        let qp = &mut t.queue_pairs[target as usize];
        if !qp.known {
            qp.known = true;
            self.nics[target as usize].queue_pairs += 1;
        }
        if qp.waiting.is_empty() {
            self.initiate(thread, target, w, at, requests);
        } else {
            qp.waiting.push_back(w);
        }
    }

    /// Launches as many verbs of one group as the queue pair's window allows; the rest waits.
    fn initiate(
        &mut self,
        thread: u32,
        target: u32,
        w: Waiting,
        at: Picos,
        requests: &[WorkRequest],
    ) {
        let c = &self.costs;
        let own = self.threads[thread as usize].nic;
        let node = requests[w.from as usize].at.node();
        let room = c.max_rd_atomic;
        let mut g = VerbGroup {
            list: w.list,
            nic: target,
            from: w.from,
            to: w.to,
            verbs: 0,
            reads: 0,
            bytes: 0,
            received: false,
            target: 0,
        };
        let mut departs = 0;
        let mut rest = None;
        for i in w.from..w.to {
            let wr = &requests[i as usize];
            if wr.at.node() != node {
                continue;
            }
            let qp = &mut self.threads[thread as usize].queue_pairs[target as usize];
            let windowed = wr.op.is_atomic() || wr.op == crate::Opcode::Read;
            if windowed {
                if qp.outstanding == room {
                    rest = Some(Waiting { from: i, ..w });
                    break;
                }
                qp.outstanding += 1;
                g.reads += 1;
            }
            g.verbs += 1;
            let nic = &mut self.nics[own as usize];
            let time = c.initiate(wr.op, nic.outstanding);
            nic.outstanding += 1;
            let issued = nic.initiator.serve(at, time);
            let bytes = c.bytes(wr);
            let wire = c.wire(bytes.request);
            let sent =
                if own == target { issued } else { nic.send(c, issued, bytes.request) - wire };
            if g.verbs == 1 {
                departs = sent;
            }
            if g.verbs == 1 {
                g.target = self.nics[target as usize].host.memory(wr.at).place(wr.at.offset());
            }
        }
        if let Some(rest) = rest {
            g.to = rest.from;
            let qp = &mut self.threads[thread as usize].queue_pairs[target as usize];
            qp.waiting.push_front(rest);
            if g.verbs == 0 {
                return;
            }
            // The group was split in two.
            self.lists.at(w.list).pending += 1;
        }
        let way = self.way(own == target);
        let number = self.groups.put(g);
        self.wheel.push(departs + way, Event::Arrive(number));
    }

    /// One-way latency between two nodes, or between a NIC and itself.
    fn way(&mut self, loopback: bool) -> Picos {
        let base = if loopback { self.costs.loopback } else { self.costs.propagation };
        if self.costs.jitter_sigma == 0.0 {
            return base;
        }
        // Sum of twelve uniform draws less six: normal enough for a spread.
        let mut sum = -6.0;
        for _ in 0..12 {
            self.jitter = xorshift64(self.jitter);
            sum += (self.jitter >> 11) as f64 / (1u64 << 53) as f64;
        }
        (base as f64 * (sum * self.costs.jitter_sigma).exp()) as Picos
    }

    // ---- arrive
    // -----------------------------------------------------------------------------------

    fn arrive(&mut self, core: &Core, number: u32) {
        let g = *self.groups.at(number);
        let l = self.lists.at(g.list);
        let (ticket, thread) = (l.ticket, l.thread);
        let (own, issuer) = {
            let t = &self.threads[thread as usize];
            (t.nic, t.own.clone())
        };
        let job_of = self.threads[thread as usize].job_of;
        let by_wire = own != g.nic;
        let at = self.now;
        let (mut done, mut bytes, mut ends_in_write) = (at, 0u64, false);
        let (mut hash, mut error) = (0u64, None);
        core.with_requests(ticket, |requests| {
            let node = requests[g.from as usize].at.node();
            let nic = &mut self.nics[g.nic as usize];
            if nic.host.incarnation > 1 || nic.host.revocations.load(Ordering::Relaxed) > 0 {
                error = nic.host.refusal(&issuer).or_else(|| nic.host.refusal_of_job(job_of));
                if error.is_some() {
                    return;
                }
            }
            for wr in
                requests[g.from as usize..g.to as usize].iter().filter(|w| w.at.node() == node)
            {
                done = done.max(nic.serve(&self.costs, wr, at, by_wire));
                bytes += self.costs.bytes(wr).response;
                ends_in_write = !wr.op.is_atomic() && wr.op != crate::Opcode::Read;
                hash = (hash ^ wr.at.bits() ^ u64::from(wr.len) << 56)
                    .wrapping_mul(0xff51_afd7_ed55_8ccd)
                    ^ wr.op as u64;
                if let Err(e) = nic.host.serve(wr) {
                    error = Some(e);
                    break;
                }
            }
        });
        self.mix(at ^ hash.rotate_left(17));
        self.mix(u64::from(thread));
        if by_wire && ends_in_write {
            let ack = self.costs.ack;
            done = done.max(self.nics[g.nic as usize].send(&self.costs, done, ack));
            bytes += ack;
        }
        if let Some(e) = error {
            if e.kind() == ErrorKind::Unreachable {
                done += RETRANSMISSION_NS * 1000;
            }
            self.lists.at(g.list).error.get_or_insert(e.effect_unknown());
        }
        self.groups.at(number).bytes = bytes as u32;
        let way = self.way(!by_wire);
        let after = if self.costs.line > 0 { 0 } else { self.costs.completion };
        self.wheel.push(done + way + after, Event::Deliver(number));
    }

    // ---- deliver
    // ----------------------------------------------------------------------------------

    fn deliver(&mut self, core: &Core, number: u32) -> bool {
        let g = *self.groups.at(number);
        let thread = self.lists.at(g.list).thread;
        let own = self.threads[thread as usize].nic;
        if own != g.nic && !g.received {
            let there = self.nics[own as usize].receive(&self.costs, self.now, u64::from(g.bytes));
            self.groups.at(number).received = true;
            if there > self.now {
                self.wheel.push(there, Event::Deliver(number));
                return false;
            }
        }
        self.groups.take(number);
        self.nics[own as usize].outstanding -= g.verbs;
        if g.reads > 0 {
            let qp = &mut self.threads[thread as usize].queue_pairs[g.nic as usize];
            qp.outstanding -= g.reads;
            self.let_through(core, thread, g.nic);
        }
        let l = self.lists.at(g.list);
        l.pending -= 1;
        if l.pending > 0 {
            return false;
        }
        let ticket = l.ticket;
        if l.error.is_none() && (l.next as usize) < core.with_requests(ticket, <[WorkRequest]>::len)
        {
            self.launch(core, g.list);
            return false;
        }
        self.done(core, g.list)
    }

    /// Launches groups that wait for a queue pair's window, as far as they fit.
    fn let_through(&mut self, core: &Core, thread: u32, target: u32) {
        loop {
            let qp = &mut self.threads[thread as usize].queue_pairs[target as usize];
            if qp.outstanding >= self.costs.max_rd_atomic {
                return;
            }
            let Some(w) = qp.waiting.pop_front() else { return };
            let ticket = self.lists.at(w.list).ticket;
            let at = self.now;
            core.with_requests(ticket, |requests| self.initiate(thread, target, w, at, requests));
        }
    }

    /// A list has completed: its client is resumed when the thread's CPU is free.
    fn done(&mut self, core: &Core, number: u32) -> bool {
        let l = self.lists.at(number);
        let thread = l.thread;
        if l.detached {
            return self.finish(core, number);
        }
        let t = &mut self.threads[thread as usize];
        let free = t.cpu.free.load(Ordering::Relaxed);
        if t.done.is_empty() && free <= self.now {
            return self.finish(core, number);
        }
        t.done.push_back(number);
        if !t.resuming {
            t.resuming = true;
            self.wheel.push(free.max(self.now), Event::Resume(thread));
        }
        false
    }

    /// The CPU of a thread may have come to its next completion.
    fn resume(&mut self, core: &Core, thread: u32) -> bool {
        let t = &mut self.threads[thread as usize];
        t.resuming = false;
        let free = t.cpu.free.load(Ordering::Relaxed);
        if free > self.now {
            t.resuming = true;
            self.wheel.push(free, Event::Resume(thread));
            return false;
        }
        let Some(number) = t.done.pop_front() else { return false };
        if !t.done.is_empty() {
            // Its client runs now; the charged time is known afterwards.
            self.given.push(thread);
        }
        self.finish(core, number)
    }

    fn resume_given(&mut self) {
        while let Some(thread) = self.given.pop() {
            let t = &mut self.threads[thread as usize];
            if !t.resuming && !t.done.is_empty() {
                t.resuming = true;
                let at = t.cpu.free.load(Ordering::Relaxed).max(self.now);
                self.wheel.push(at, Event::Resume(thread));
            }
        }
    }

    pub(super) fn finish(&mut self, core: &Core, number: u32) -> bool {
        let l = self.lists.take(number);
        if let Some(s) = &mut self.sanitizer {
            s.give_back(number);
        }
        self.live -= 1;
        self.mix(self.now ^ u64::from(l.thread) << 40);
        if self.swallow(core, l.thread, l.ticket) {
            return true;
        }
        if let Some(to) = l.failed_at {
            // A call has no slot.
            let slot = l.call.is_none().then_some(l.slot);
            let by = self.threads[l.thread as usize].own.node;
            self.crashes.record_failure((by, slot), to, self.now);
        }
        if let Some(call) = l.call {
            core.complete_rpc(l.ticket, call.reply);
        }
        core.complete(l.ticket, l.error.map_or(Ok(()), Err));
        true
    }
}

#[cold]
pub(super) fn unreachable(wr: &WorkRequest) -> Error {
    Error::unreachable(format!("{} is no node of this fabric", wr.at.node()))
}
