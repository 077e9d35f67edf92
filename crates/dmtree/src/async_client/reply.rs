//! The future of a request's answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use dmtree_fabric::{Error, Result};

use super::mailbox::Door;
use super::request::{Asked, Job, Request};
use crate::pool::locked;

/// The answer to a request of an [`AsyncClient`](crate::AsyncClient), to be awaited. `Send`,
/// whatever the runtime.
///
/// The request is posted at the first poll. Dropped after that, the request still runs to its end,
/// with an effect that the caller does not learn.
#[must_use = "a request is posted when its reply is awaited"]
pub struct Reply<T> {
    door: Arc<Door>,
    job: Option<Job>,
    slot: Arc<Slot<T>>,
}

struct Slot<T>(Mutex<Answer<T>>);

struct Answer<T> {
    value: Option<Result<T>>,
    waker: Option<Waker>,
}

/// The worker's end: sends once. Dropped without (its worker panicked), it says so.
pub(super) struct Sender<T>(Option<Arc<Slot<T>>>);

impl<T: Send + 'static> Reply<T> {
    pub(super) fn new(door: &Arc<Door>, request: impl Request<Out = T>) -> Self {
        let slot = Arc::new(Slot(Mutex::new(Answer { value: None, waker: None })));
        let answer = Sender(Some(slot.clone()));
        let job: Job = Box::new(Asked { request, answer, attempts: None });
        Self { door: door.clone(), job: Some(job), slot }
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        {
            let mut answer = locked(&self.slot.0);
            if let Some(value) = answer.value.take() {
                return Poll::Ready(value);
            }
            answer.waker = Some(cx.waker().clone());
        }
        if let Some(job) = self.job.take() {
            // A refused job is dropped with its sender; the result of that is ignored.
            if let Err(e) = self.door.mailbox().post(job) {
                locked(&self.slot.0).value = None;
                return Poll::Ready(Err(e));
            }
        }
        Poll::Pending
    }
}

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({})", if self.job.is_some() { "not posted" } else { "posted" })
    }
}

impl<T> Sender<T> {
    pub(super) fn send(mut self, value: Result<T>) {
        self.finish(value);
    }

    fn finish(&mut self, value: Result<T>) {
        let Some(slot) = self.0.take() else { return };
        let waker = {
            let mut answer = locked(&slot.0);
            answer.value = Some(value);
            answer.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.is_some() {
            let e = Error::closed("the worker ended before it answered");
            self.finish(Err(e.effect_unknown()));
        }
    }
}
