//! Schedules of the verbs in flight in adversarial mode, in place of the times that the seed draws.
//! One schedule uses priorities with a few changes, which finds any ordering bug of small depth
//! with a known probability. The other follows a list of choices, so that a caller can try all
//! lists.
//!
//! Time then hardly passes: each step takes 1 ns, and a client that sleeps comes after everything
//! that is in flight. The priorities are those of "A Randomized Scheduler with Probabilistic
//! Guarantees of Finding Bugs" (ASPLOS'10), with steps of verbs for its instructions.

use std::collections::BTreeMap;

use super::Picos;
use super::chaos::Step;
use super::flight::Event;
use super::wheel::Wheel;
use crate::rng::Rng;

/// How long a chosen step takes, ps.
pub(super) const STEP: Picos = 1_000;
/// So many steps in a row count as spinning: a client that polls falls behind the clients that it
/// waits for.
const SPINNING: u64 = 20_000;

/// A decision between steps that could be next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which was taken; 0 goes on with the client of the step before, if it has one.
    pub taken: u32,
    /// How many there were.
    pub of: u32,
}

/// The order of the verbs in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// By the times that the seed draws.
    Drawn,
    /// The client of the highest priority runs for as long as it can (or until it spins). At
    /// `changes` moments, drawn among the first `steps` steps, the running client falls behind all
    /// others.
    Priorities {
        /// Seed of priorities and moments.
        seed: u64,
        /// Moments, 0 to 3 or so.
        changes: u32,
        /// About how many steps a run has.
        steps: u64,
    },
    /// The choices given, then the first of each; after `switches` choices other than the first
    /// none is left. Verbs are whole.
    Listed {
        /// Numbers of the alternatives to take, one for each decision between several.
        choices: Vec<u32>,
        /// Choices other than the first per run; `u32::MAX` for no bound.
        switches: u32,
    },
}

enum Chooser {
    Priorities { chance: Rng, of: BTreeMap<u32, u64>, moments: Vec<u64>, lowest: u64 },
    Listed { choices: Vec<u32>, switches: u32, made: Vec<Choice> },
}

/// The steps of one client, by their drawn times.
type Queue = BTreeMap<(Picos, u64), Step>;

/// Steps that wait to be chosen.
pub(super) struct Chosen {
    /// By client; none is empty.
    open: BTreeMap<u32, Queue>,
    chooser: Chooser,
    picks: u64,
    puts: u64,
    last: u32,
    /// Steps of that client in a row.
    row: u64,
}

impl Chosen {
    pub(super) fn new(order: &Order) -> Option<Self> {
        let chooser = match *order {
            Order::Drawn => return None,
            Order::Priorities { seed, changes, steps } => {
                let mut chance = Rng::new(seed);
                let mut moments: Vec<_> =
                    (0..changes).map(|_| chance.below(steps.max(1))).collect();
                moments.sort_unstable();
                let lowest = u64::from(u32::MAX);
                Chooser::Priorities { chance, of: BTreeMap::new(), moments, lowest }
            }
            Order::Listed { ref choices, switches } => {
                Chooser::Listed { choices: choices.clone(), switches, made: Vec::new() }
            }
        };
        Some(Self { open: BTreeMap::new(), chooser, picks: 0, puts: 0, last: u32::MAX, row: 0 })
    }

    fn put(&mut self, at: Picos, client: u32, step: Step) {
        self.puts += 1;
        self.open.entry(client).or_default().insert((at, self.puts), step);
    }

    /// Whether no step waits.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// All steps that wait, each with its client.
    pub(super) fn into_steps(self) -> impl Iterator<Item = (u32, Step)> {
        let steps =
            |(client, queue): (u32, Queue)| queue.into_values().map(move |step| (client, step));
        self.open.into_iter().flat_map(steps)
    }

    /// The decisions so far.
    pub(super) fn made(&self) -> Vec<Choice> {
        match &self.chooser {
            Chooser::Listed { made, .. } => made.clone(),
            Chooser::Priorities { .. } => Vec::new(),
        }
    }

    pub(super) fn pick(&mut self) -> Option<Step> {
        let (client, nth) = match &self.chooser {
            Chooser::Priorities { .. } => (self.by_priority()?, 0),
            Chooser::Listed { .. } => self.by_list()?,
        };
        self.picks += 1;
        self.row = if client == self.last { self.row + 1 } else { 0 };
        self.last = client;
        let queue = self.open.get_mut(&client)?;
        let key = *queue.keys().nth(nth)?;
        let step = queue.remove(&key);
        if queue.is_empty() {
            self.open.remove(&client);
        }
        step
    }

    fn by_priority(&mut self) -> Option<u32> {
        let Chooser::Priorities { chance, of, moments, lowest } = &mut self.chooser else {
            return None;
        };
        for client in self.open.keys() {
            of.entry(*client).or_insert_with(|| (1 << 33) + chance.below(1 << 32));
        }
        let highest = |of: &BTreeMap<u32, u64>| {
            self.open.keys().copied().max_by_key(|client| (of.get(client).copied(), *client))
        };
        let client = highest(of)?;
        let due = moments.first().is_some_and(|m| *m <= self.picks);
        if !due && self.row < SPINNING {
            return Some(client);
        }
        if due {
            moments.remove(0);
        }
        of.insert(client, *lowest);
        *lowest -= 1;
        highest(of)
    }

    /// A client, and one of its steps: the client of the last step comes first, the others follow
    /// by number.
    fn by_list(&mut self) -> Option<(u32, usize)> {
        let Chooser::Listed { choices, switches, made } = &mut self.chooser else { return None };
        let used = made.iter().filter(|c| c.taken > 0).count() as u32;
        let all = self.open.values().map(BTreeMap::len).sum::<usize>() as u32;
        let of = if used >= *switches { all.min(1) } else { all };
        let mut taken = 0;
        if of > 1 {
            taken = choices.get(made.len()).copied().unwrap_or(0).min(of - 1);
            made.push(Choice { taken, of });
        }
        let mut rest = taken as usize;
        let mut clients: Vec<u32> = self.open.keys().copied().collect();
        clients.sort_by_key(|c| (*c != self.last, *c));
        for client in clients {
            let n = self.open.get(&client).map_or(0, BTreeMap::len);
            if rest < n {
                return Some((client, rest));
            }
            rest -= n;
        }
        None
    }
}

/// The next list of choices after a run that made these, in the order of a search that takes every
/// path once; `None` after the last.
pub fn next_choices(made: &[Choice]) -> Option<Vec<u32>> {
    let last = made.iter().rposition(|c| c.taken + 1 < c.of)?;
    let mut out: Vec<u32> = made[..=last].iter().map(|c| c.taken).collect();
    out[last] += 1;
    Some(out)
}

/// A step is to happen at a time of its own, or when it is chosen.
pub(super) fn put(
    chosen: &mut Option<Chosen>,
    wheel: &mut Wheel<Event>,
    at: Picos,
    client: u32,
    step: Step,
) {
    let Some(chosen) = chosen else { return wheel.push(at, Event::Chaos(step)) };
    // Listed verbs are whole, and atomics execute in any chosen order: all steps of a verb follow
    // its beginning at once.
    let listed = matches!(chosen.chooser, Chooser::Listed { .. });
    match step {
        Step::Begin { .. } => chosen.put(at, client, step),
        Step::Piece { .. } if !listed => chosen.put(at, client, step),
        Step::Piece { .. } | Step::AtomicWrite { .. } => wheel.push(0, Event::Chaos(step)),
    }
}
