//! The adversarial mode: it uses every freedom that the contract leaves to a fabric, drawn from the
//! seed.
//!
//! Verbs take effect piece by piece, at independent times and in any order; READs are stretched and
//! executed again; an atomic reads and writes its word at two times, and a plain WRITE may fall
//! between; independent verbs overtake each other; completions are late; a destination holds
//! garbage until its completion. The guarantees of the contract hold: words are whole, the ordered
//! pairs of a chain stay ordered, atomics on one word exclude each other.
//!
//! *Steps.* A verb begins at a drawn time. A READ or WRITE is cut into pieces, a whole verb being
//! one piece, and each piece takes effect at a drawn time of its own. An atomic has two halves;
//! between them its word is closed to other atomics, but not to plain WRITEs, as on NICs that lock
//! atomics only against each other. The next verb of a chain begins when the contract orders it
//! behind the one before.
//!
//! *Distributions.* Delays favour short times and have a long tail, because most bugs need one verb
//! to be late while many others are not. Each fault has a rate of its own, drawn from the seed, so
//! that some runs have one fault alone and others have all.
//!
//! *Crashes.* The issuer of a verb may crash between two of its steps (`crash.rs`). Then each
//! remaining step executes, is late or is dropped, as the crash plan of its list draws. A
//! revocation at the target ends this: it first completes WRITEs that have begun and that the
//! fabric grants to be whole, then refuses all later steps.
//!
//! *Schedules.* `order.rs` replaces drawn times by priorities or by a list of choices. `lax.rs`
//! breaks one guarantee of the contract, to show that the suite notices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Picos;
use super::crash::Fate;
use super::lax::Overtaken;
use crate::addr::{GlobalAddr, NodeId};
use crate::caps::Capabilities;
use crate::error::{Error, Result};
use crate::host::{Host, down};
use crate::membership::Member;
use crate::rng::Rng;
use crate::slots::Slots;
use crate::transport::{Nanos, Opcode, WorkRequest};

/// The faults of an adversarial fabric, and their rates. Each `one_in` is a chance; 0 is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricFaults {
    /// READs and WRITEs take effect in pieces of 64 bytes, or of 8.
    pub words: bool,
    /// Longest time between the first and the last piece of a verb, ns; 0: verbs are whole.
    pub stretch_ns: Nanos,
    /// Longest time until a verb begins, and until a completion is seen, ns.
    pub delay_ns: Nanos,
    /// A list is held back for a hundred times as long.
    pub stall_one_in: u32,
    /// Pieces of a READ are taken once more, later.
    pub replay_one_in: u32,
    /// Longest time between the two halves of an atomic, ns.
    pub atomic_gap_ns: Nanos,
    /// Destinations hold garbage until the completion.
    pub garbage: bool,
    /// Interleaving points in shared state of a compute node give way to other clients.
    pub point_one_in: u32,
    /// The request or the reply of a remote call is lost: it is sent again, with its number, and
    /// answered once.
    #[serde(default, skip_serializing_if = "is_never")]
    pub call_lost_one_in: u32,
    /// Memory is refused: an allocation fails as if there were none left.
    #[serde(default, skip_serializing_if = "is_never")]
    pub refuse_memory_one_in: u32,
}

fn is_never(one_in: &u32) -> bool {
    *one_in == 0
}

impl FabricFaults {
    /// None: verbs are whole and take 1 us or so.
    pub const NONE: Self = Self {
        words: false,
        stretch_ns: 0,
        delay_ns: 500,
        stall_one_in: 0,
        replay_one_in: 0,
        atomic_gap_ns: 0,
        garbage: false,
        point_one_in: 0,
        call_lost_one_in: 0,
        refuse_memory_one_in: 0,
    };

    /// Those of a seed: each drawn by itself, so that some runs have one of them alone and others
    /// have all.
    pub fn of_seed(seed: u64) -> Self {
        let mut c = Rng::new(seed ^ 0x6861_7a61_7264_7321);
        let mut pick = |choices: &[u64]| choices[c.below(choices.len() as u64) as usize];
        Self {
            words: pick(&[0, 1]) == 1,
            stretch_ns: pick(&[0, 2_000, 20_000, 200_000]),
            delay_ns: pick(&[500, 5_000, 50_000]),
            stall_one_in: pick(&[0, 20, 200]) as u32,
            replay_one_in: pick(&[0, 4]) as u32,
            atomic_gap_ns: pick(&[0, 3_000, 30_000]),
            garbage: pick(&[0, 1]) == 1,
            point_one_in: pick(&[0, 2, 10]) as u32,
            call_lost_one_in: pick(&[0, 0, 3]) as u32,
            refuse_memory_one_in: pick(&[0, 0, 0, 0, 30, 3]) as u32,
        }
    }
}

/// A verb in the middle of its execution.
#[derive(Clone, Debug)]
struct Run {
    list: u32,
    verb: u32,
    /// Pieces that have not taken effect.
    left: u32,
    /// The result of an atomic.
    found: u64,
    error: Option<Error>,
    /// A WRITE of several pieces that executes wholly or not at all when its issuer dies.
    whole: Option<Box<Whole>>,
}

/// See [`Capabilities::whole_write_bytes`].
#[derive(Clone, Debug)]
struct Whole {
    issuer: (NodeId, u32),
    target: NodeId,
    at: GlobalAddr,
    payload: Vec<u8>,
    /// Pieces that have not taken effect.
    rest: Vec<(u32, u32)>,
    /// One has.
    begun: bool,
    /// Its issuer died before it began: whether it never executes.
    dropped: Option<bool>,
}

/// A step of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Verb number so-and-so of a list begins.
    Begin {
        /// The list.
        list: u32,
        /// The verb.
        verb: u32,
    },
    /// Bytes `from` to `to` of a running verb take effect.
    Piece {
        /// The running verb.
        run: u32,
        from: u32,
        to: u32,
    },
    /// The second half of an atomic.
    AtomicWrite {
        /// The running verb.
        run: u32,
    },
}

/// The outcome of a step.
pub(super) enum Effect {
    /// More steps follow by themselves.
    Goes,
    /// The verb has ended, well or not; the next of its chain may begin.
    Ended(u32, u32, Result<()>),
}

pub(super) struct Chaos {
    pub fabric_faults: FabricFaults,
    pub grants: Capabilities,
    pub(super) chance: Rng,
    runs: Slots<Run>,
    /// Words with an atomic that has read and not written yet, and until when.
    busy: BTreeMap<u64, Picos>,
    /// Steps to be scheduled, with their times.
    pub next: Vec<(Picos, Step)>,
    /// The platform keeps less than the contract.
    pub overtaken: Overtaken,
}

impl Chaos {
    pub(super) fn new(fabric_faults: FabricFaults, grants: Capabilities, seed: u64) -> Self {
        Self {
            fabric_faults,
            grants,
            chance: Rng::new(seed),
            runs: Slots::default(),
            busy: BTreeMap::new(),
            next: Vec::new(),
            overtaken: Overtaken::default(),
        }
    }

    /// A time up to the longest delay, short ones more often than long ones.
    pub(super) fn delay(&mut self) -> Picos {
        let longest = self.fabric_faults.delay_ns.max(1) * 1000;
        self.spread(longest)
    }

    /// How long a list is held back.
    pub(super) fn hold(&mut self) -> Picos {
        let delay = self.delay();
        if self.chance.one_in(self.fabric_faults.stall_one_in) { delay * 100 } else { delay }
    }

    fn spread(&mut self, longest: Picos) -> Picos {
        let octave = self.chance.below(8);
        1 + self.chance.below((longest >> octave).max(1))
    }

    /// A list has been posted: garbage in its destinations.
    pub(super) fn scribble(&mut self, requests: &[WorkRequest]) {
        if self.fabric_faults.garbage {
            requests.iter().for_each(Host::scribble);
        }
    }

    /// Begins a verb: draws its pieces and their times.
    pub(super) fn begin(
        &mut self,
        now: Picos,
        (list, verb): (u32, u32),
        wr: &WorkRequest,
        (host, issuer): (&Host, Member),
    ) {
        let run = Run { list, verb, left: 0, found: 0, error: None, whole: None };
        match wr.op {
            Opcode::Cas | Opcode::Faa => {
                if let Some(until) = self.busy.get(&wr.at.bits()).copied() {
                    self.next.push((until.max(now) + 1, Step::Begin { list, verb }));
                    return;
                }
                let gap = match self.fabric_faults.atomic_gap_ns {
                    0 => 1,
                    longest => self.spread(longest * 1000),
                };
                self.busy.insert(wr.at.bits(), now + gap);
                let run =
                    self.runs.put(Run { found: host.memory(wr.at).load(wr.at.offset()), ..run });
                self.next.push((now + gap, Step::AtomicWrite { run }));
            }
            Opcode::WriteWord => {
                let run = self.runs.put(Run { left: 1, ..run });
                self.next.push((now + 1, Step::Piece { run, from: 0, to: wr.len }));
            }
            Opcode::Read | Opcode::Write => {
                let number = self.runs.put(run);
                let left = self.pieces(now, number, wr);
                self.runs.at(number).left = left;
                if wr.op == Opcode::Write && wr.len <= self.grants.whole_write_bytes {
                    let pieces = self.next.iter().filter_map(|(_, step)| match step {
                        Step::Piece { run, from, to } if *run == number => Some((*from, *to)),
                        _ => None,
                    });
                    let whole = Whole {
                        issuer: (issuer.node, issuer.incarnation),
                        target: host.node,
                        at: wr.at,
                        payload: Host::payload(wr),
                        rest: pieces.collect(),
                        begun: false,
                        dropped: None,
                    };
                    self.runs.at(number).whole = Some(Box::new(whole));
                }
            }
        }
    }

    /// Cuts a READ or WRITE; how many pieces.
    fn pieces(&mut self, now: Picos, run: u32, wr: &WorkRequest) -> u32 {
        let h = self.fabric_faults;
        let size = if h.words && !self.grants.line_atomic { 8 } else { 64 };
        let mut cuts = vec![0];
        if h.stretch_ns > 0 {
            let first = size - (wr.at.offset() % size) as u32 as u64;
            cuts.extend((0..).map(|i| (first + i * size) as u32).take_while(|c| *c < wr.len));
        }
        cuts.push(wr.len);
        let n = cuts.len() - 1;
        let mut times: Vec<Picos> =
            (0..n).map(|_| if n == 1 { 1 } else { self.spread(h.stretch_ns * 1000) }).collect();
        let ascending = wr.op == Opcode::Write && self.grants.write_ascending;
        match if ascending { 0 } else { self.chance.below(4) } {
            0 => times.sort_unstable(),
            1 => times.sort_unstable_by(|a, b| b.cmp(a)),
            // Both ends early, the middle late.
            2 => {
                times.sort_unstable();
                let last = n - 1;
                times.swap(usize::from(n > 1), last);
            }
            _ => {}
        }
        let mut left = n as u32;
        for (i, time) in times.iter().enumerate() {
            let piece = Step::Piece { run, from: cuts[i], to: cuts[i + 1] };
            self.next.push((now + time, piece));
            if wr.op == Opcode::Read && self.chance.one_in(h.replay_one_in) {
                left += 1;
                let again = time + self.spread(h.stretch_ns.max(1) * 1000);
                self.next.push((now + again, piece));
            }
        }
        left
    }

    /// Which list and verb a step belongs to.
    pub(super) fn owner(&mut self, step: Step) -> (u32, u32) {
        match step {
            Step::Begin { list, verb } => (list, verb),
            Step::Piece { run, .. } | Step::AtomicWrite { run } => {
                let r = self.runs.at(run);
                (r.list, r.verb)
            }
        }
    }

    /// A piece or the second half of an atomic takes effect.
    /// `refused` says why the target does not let it; the fate is that of its issuer.
    pub(super) fn step(
        &mut self,
        step: Step,
        wr: &WorkRequest,
        host: &Host,
        (refused, fate): (Option<Error>, Fate),
    ) -> Effect {
        match step {
            Step::Begin { list, verb } => Effect::Ended(list, verb, Ok(())),
            Step::Piece { run, from, to } => {
                let part = WorkRequest {
                    at: wr.at.plus(u64::from(from)),
                    len: to - from,
                    local: wr.local.wrapping_add(from as usize),
                    ..*wr
                };
                let r = self.runs.at(run);
                let result = r.piece(&part, host, (from, to), (refused, fate));
                r.left -= 1;
                if let Err(e) = result {
                    r.error.get_or_insert(e);
                }
                if r.left > 0 { Effect::Goes } else { self.end(run) }
            }
            Step::AtomicWrite { run } => {
                self.busy.remove(&wr.at.bits());
                let found = self.runs.at(run).found;
                let refused = refused.or_else(|| (fate == Fate::Never).then(|| down(host.node)));
                match refused {
                    None => host.finish_atomic(wr, found, self.grants.cas_fail_is_readonly),
                    Some(e) => self.runs.at(run).error = Some(e),
                }
                self.end(run)
            }
        }
    }

    fn end(&mut self, run: u32) -> Effect {
        let Run { list, verb, error, .. } = self.runs.take(run);
        Effect::Ended(list, verb, error.map_or(Ok(()), Err))
    }

    /// Completes the whole WRITEs of a node that have begun: its access is about to be revoked.
    pub(super) fn land(&mut self, host: &Host, node: NodeId, incarnation: u32) {
        for whole in self.runs.all().filter_map(|r| r.whole.as_mut()) {
            let its = whole.issuer.0 == node && whole.issuer.1 <= incarnation;
            if its && whole.target == host.node && whole.begun {
                for (from, to) in whole.rest.drain(..) {
                    let at = whole.at.plus(u64::from(from));
                    host.memory(at).write(at.offset(), &whole.payload[from as usize..to as usize]);
                }
            }
        }
    }
}

impl Run {
    /// A piece takes effect, unless the target refuses it or its issuer has died before.
    fn piece(
        &mut self,
        part: &WorkRequest,
        host: &Host,
        (from, to): (u32, u32),
        (refused, fate): (Option<Error>, Fate),
    ) -> Result<()> {
        let mut never = fate == Fate::Never;
        if let Some(whole) = &mut self.whole {
            let Some(i) = whole.rest.iter().position(|piece| *piece == (from, to)) else {
                // A revocation has completed it.
                return Ok(());
            };
            whole.rest.swap_remove(i);
            never = !whole.begun && *whole.dropped.get_or_insert(never);
            whole.begun |= !never && refused.is_none();
        }
        match refused {
            Some(e) => Err(e),
            None if never => Err(down(host.node)),
            None => host.serve(part),
        }
    }
}
