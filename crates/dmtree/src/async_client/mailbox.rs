//! The queue between async callers and worker threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use dmtree_fabric::{Error, Result};

use super::request::Job;
use crate::pool::locked;

/// The next event for a coroutine.
pub(super) enum Taken {
    Job(Job),
    News,
    Closed,
}

/// The state that callers and workers share.
pub(crate) struct Mailbox {
    state: Mutex<State>,
    bound: usize,
}

#[derive(Default)]
struct State {
    /// With their numbers.
    jobs: VecDeque<(u64, Job)>,
    posted: u64,
    /// Coroutines without work.
    idle: VecDeque<(u64, Waker)>,
    coroutines: u64,
    workers: usize,
    closed: bool,
}

/// Wakes an idle coroutine, outside the lock.
fn wake_one(mut state: MutexGuard<'_, State>) {
    let idle = state.idle.pop_front();
    drop(state);
    if let Some((_, waker)) = idle {
        waker.wake();
    }
}

impl Mailbox {
    pub(super) fn post(&self, job: Job) -> Result<()> {
        let mut state = locked(&self.state);
        if state.closed {
            return Err(Error::closed("the workers of this client have ended"));
        }
        if state.jobs.len() >= self.bound {
            return Err(Error::busy(format!(
                "{} requests wait already: await some before posting more, or give the client a longer queue or more workers",
                self.bound
            )));
        }
        let number = state.posted;
        state.posted += 1;
        state.jobs.push_back((number, job));
        wake_one(state);
        Ok(())
    }

    /// The next job for coroutine `id`; `Closed` when there will be no more, `News` first after a
    /// change.
    pub(super) fn poll_take(
        &self,
        id: u64,
        has_news: impl Fn() -> bool,
        cx: &mut Context<'_>,
    ) -> Poll<Taken> {
        let mut state = locked(&self.state);
        state.idle.retain(|(idle, _)| *idle != id);
        // Read under the lock: a later change finds the coroutine among the idle ones.
        if has_news() {
            return Poll::Ready(Taken::News);
        }
        if let Some((_, job)) = state.jobs.pop_front() {
            return Poll::Ready(Taken::Job(job));
        }
        if state.closed {
            return Poll::Ready(Taken::Closed);
        }
        state.idle.push_back((id, cx.waker().clone()));
        Poll::Pending
    }

    /// A job that another coroutine is to run, before the others.
    pub(super) fn put_back(&self, job: Job) {
        let mut state = locked(&self.state);
        state.jobs.push_front((0, job));
        wake_one(state);
    }

    /// How many requests have come so far.
    pub(super) fn posted(&self) -> u64 {
        locked(&self.state).posted
    }

    /// Answers those of the first so many requests that still wait with an error.
    pub(super) fn refuse(&self, first: u64, e: &Error) {
        let mut state = locked(&self.state);
        let old = state.jobs.iter().take_while(|(number, _)| *number < first).count();
        let refused: Vec<_> = state.jobs.drain(..old).collect();
        drop(state);
        refused.into_iter().for_each(|(_, job)| job.refuse(e.clone()));
    }

    /// Wakes idle coroutines.
    pub(crate) fn wake_all(&self) {
        let idle = std::mem::take(&mut locked(&self.state).idle);
        idle.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Whether there is nothing to be done any more.
    pub(super) fn is_over(&self) -> bool {
        let state = locked(&self.state);
        state.closed && state.jobs.is_empty()
    }

    /// A number for a new coroutine.
    pub(super) fn enlist(&self) -> u64 {
        let mut state = locked(&self.state);
        state.coroutines += 1;
        state.coroutines
    }

    /// No more jobs are taken; those that wait are still run.
    fn close(&self) {
        locked(&self.state).closed = true;
        self.wake_all();
    }
}

/// A worker thread exists. When the last one ends, by a panic too, waiting requests end with an
/// error.
pub(super) struct OnDuty(pub(super) Arc<Mailbox>);

impl OnDuty {
    pub(super) fn new(mailbox: &Arc<Mailbox>) -> Self {
        locked(&mailbox.state).workers += 1;
        Self(mailbox.clone())
    }
}

impl Drop for OnDuty {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        state.workers -= 1;
        if state.workers > 0 {
            return;
        }
        state.closed = true;
        let left = std::mem::take(&mut state.jobs);
        drop(state);
        // Outside the lock: their callers are woken.
        drop(left);
    }
}

/// The callers' side: when the last clone is dropped the mailbox closes.
pub(crate) struct Door(Arc<Mailbox>);

impl Door {
    pub(super) fn new(bound: usize) -> Self {
        Self(Arc::new(Mailbox { state: Mutex::default(), bound }))
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.0
    }

    pub(super) fn is_open(&self) -> bool {
        !locked(&self.0.state).closed
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = locked(&self.0.state);
        write!(f, "Door({} workers, {} requests wait)", state.workers, state.jobs.len())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use dmtree_fabric::ErrorKind;

    use super::*;
    use crate::async_client::Reply;

    struct One;

    impl crate::async_client::request::Request for One {
        type Out = u32;
        const READS: bool = true;
        fn what(&self) -> Option<crate::Operation> {
            None
        }
        async fn run(&mut self, _tree: &mut dmtree_engine::DmTree) -> Result<u32> {
            Ok(1)
        }
    }

    fn request(door: &Arc<Door>) -> Reply<u32> {
        Reply::new(door, One)
    }

    fn poll(reply: &mut Reply<u32>) -> Poll<Result<u32>> {
        Pin::new(reply).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn kind(polled: Poll<Result<u32>>) -> Option<(ErrorKind, dmtree_fabric::Effect)> {
        match polled {
            Poll::Ready(Err(e)) => Some((e.kind(), e.effect())),
            _ => None,
        }
    }

    #[test]
    fn over_the_bound_is_busy_without_effect() {
        let door = Arc::new(Door::new(2));
        let mut replies: Vec<_> = (0..3).map(|_| request(&door)).collect();
        assert!(poll(&mut replies[0]).is_pending() && poll(&mut replies[1]).is_pending());
        let refused = kind(poll(&mut replies[2]));
        assert_eq!(refused, Some((ErrorKind::Busy, dmtree_fabric::Effect::None)));
    }

    #[test]
    fn when_the_last_worker_goes_nobody_waits_in_vain() {
        let door = Arc::new(Door::new(8));
        let (one, other) = (OnDuty::new(door.mailbox()), OnDuty::new(door.mailbox()));
        let mut waiting = request(&door);
        assert!(poll(&mut waiting).is_pending());
        drop(one);
        assert!(poll(&mut waiting).is_pending() && door.is_open());
        drop(other);
        let error = kind(poll(&mut waiting));
        assert_eq!(error, Some((ErrorKind::Closed, dmtree_fabric::Effect::Unknown)));
        let refused = kind(poll(&mut request(&door)));
        assert_eq!(refused, Some((ErrorKind::Closed, dmtree_fabric::Effect::None)));
    }
}
