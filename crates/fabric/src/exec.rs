//! Running many clients on one thread: slots with one future each, and the policy that picks the
//! next ready one.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::core::{Core, Stalled};
use crate::rng::Rng;

/// Picks the next ready slot. Production takes the oldest; simulators and tests take any.
pub trait Policy {
    /// Index into `ready`, which is not empty.
    fn pick(&mut self, ready: &[u32]) -> usize;
    /// Whether the oldest is always picked; spares the executor a rearrangement.
    fn is_fifo(&self) -> bool {
        false
    }
}

/// First in, first out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl Policy for Fifo {
    fn pick(&mut self, _ready: &[u32]) -> usize {
        0
    }
    fn is_fifo(&self) -> bool {
        true
    }
}

/// Any ready slot, drawn from a seed.
#[derive(Clone, Copy, Debug)]
pub struct SeededRandom(Rng);

impl SeededRandom {
    /// A policy that makes the same choices for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// 0 to `n - 1`, for `n` up to 2^32.
    fn below(&mut self, n: u64) -> u64 {
        ((self.0.next_u64() >> 32) * n) >> 32
    }
}

impl Policy for SeededRandom {
    fn pick(&mut self, ready: &[u32]) -> usize {
        self.below(ready.len() as u64) as usize
    }
}

/// Unfair on purpose: for long stretches some clients are not picked while others are ready, so
/// that whole operations of the others fall between two steps of theirs. Finds what uniform choices
/// hardly ever reach.
#[derive(Clone, Copy, Debug)]
pub struct Unfair {
    random: SeededRandom,
    /// The clients held back now: a mask over slot numbers modulo 64.
    held: u64,
    /// Picks until others are held back.
    left: usize,
}

impl Unfair {
    /// A policy that makes the same choices for the same seed.
    pub fn new(seed: u64) -> Self {
        Self { random: SeededRandom::new(seed ^ 0x5deece66d), held: 0, left: 0 }
    }
}

impl Policy for Unfair {
    fn pick(&mut self, ready: &[u32]) -> usize {
        if self.left == 0 {
            let draw = |r: &mut SeededRandom, n| r.below(n);
            self.left = 1 + (draw(&mut self.random, 12) * draw(&mut self.random, 12)) as usize * 2;
            let bits = |r: &mut SeededRandom| (draw(r, 1 << 32) << 32) | draw(r, 1 << 32);
            self.held = bits(&mut self.random) & bits(&mut self.random);
        }
        self.left -= 1;
        let free = |slot: &u32| self.held >> (slot % 64) & 1 == 0;
        let count = ready.iter().filter(|s| free(s)).count();
        if count == 0 {
            self.left = 0;
            return self.random.pick(ready);
        }
        let nth = self.random.below(count as u64) as usize;
        let mut positions = ready.iter().enumerate().filter(|(_, s)| free(s));
        positions.nth(nth).map_or(0, |(i, _)| i)
    }
}

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Client loops, boxed once each, run to their ends on the present thread.
pub struct Worker<'a> {
    core: Rc<Core>,
    tasks: Vec<Option<(Task<'a>, Rc<Waker>)>>,
    live: usize,
}

impl<'a> Worker<'a> {
    /// A worker without clients.
    pub fn new(core: Rc<Core>) -> Self {
        Self { core, tasks: Vec::new(), live: 0 }
    }

    /// Adds the future of a slot made by [`Core::add_slot`]; it is ready at once.
    pub fn spawn(&mut self, slot: u32, task: impl Future<Output = ()> + 'a) {
        let at = slot as usize;
        if self.tasks.len() <= at {
            self.tasks.resize_with(at + 1, || None);
        }
        let task: Task<'a> = Box::pin(task);
        let state: &dyn Future<Output = ()> = &*task;
        self.core.add_prefetch_hint(
            slot,
            std::ptr::from_ref(state).cast::<u8>().addr(),
            size_of_val(state),
        );
        self.tasks[at] = Some((task, self.core.waker(slot)));
        self.live += 1;
        self.core.wake(slot);
    }

    /// Runs until every future has ended.
    ///
    /// # Errors
    /// [`Stalled`] when none can ever be woken again; names the wait reason of each slot.
    pub fn run(&mut self, policy: &mut dyn Policy) -> Result<(), Stalled> {
        self.core.set_driven(true);
        let ran = self.run_all(policy);
        self.core.set_driven(false);
        self.core.drain_detached();
        self.core.tasks.end(&self.core);
        ran
    }

    fn run_all(&mut self, policy: &mut dyn Policy) -> Result<(), Stalled> {
        for (slot, entry) in self.tasks.iter().enumerate() {
            self.core.add_prefetch_hint(
                slot as u32,
                std::ptr::from_ref(entry).addr(),
                size_of_val(entry),
            );
        }
        let mut spins = 0;
        let mut polls = 0u32;
        while self.live > 0 {
            let slot = self.core.next_ready(policy, &mut spins)?;
            let Some(entry) = self.tasks.get_mut(slot as usize) else { continue };
            let Some((task, waker)) = entry else { continue };
            if let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(waker)) {
                *entry = None;
                self.live -= 1;
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(16) {
                self.core.pump();
            }
        }
        Ok(())
    }
}
