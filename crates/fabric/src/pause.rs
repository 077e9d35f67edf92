//! Waits of a client: for a time, for the other clients of its thread, and between tries.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::addr::GlobalAddr;
use crate::core::WaitReason;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::trace::report_slow;
use crate::transport::Nanos;

/// A wait that has begun.
#[must_use = "it ends"]
pub(crate) struct Wait {
    why: WaitReason,
    began: Nanos,
}

impl Wait {
    /// A client begins to wait.
    pub(crate) fn begin(ep: &Endpoint, why: WaitReason) -> Self {
        ep.core().waiting(ep.slot(), Some(why));
        Self { why, began: ep.now() }
    }

    /// It goes on.
    pub(crate) fn end(self, ep: &Endpoint) {
        let ns = ep.now().saturating_sub(self.began);
        ep.counters().waited(self.why, ns);
        let why = self.why;
        report_slow(ns, |ms| format!("an operation has waited {ms} ms for {why}"));
        ep.core().waiting(ep.slot(), None);
    }
}

/// See [`Endpoint::sleep`].
#[derive(Debug)]
pub struct Sleep<'e> {
    pub(crate) ep: &'e Endpoint,
    pub(crate) until: Option<Nanos>,
    pub(crate) ns: Nanos,
}

impl Future for Sleep<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        let now = self.ep.now();
        match self.until {
            Some(until) if now >= until => Poll::Ready(()),
            Some(_) => Poll::Pending,
            None => {
                let until = now + self.ns;
                self.until = Some(until);
                self.ep.core().wake_at(self.ep.slot(), until);
                Poll::Pending
            }
        }
    }
}

/// See [`Endpoint::yield_now`].
#[derive(Debug)]
pub struct Yield<'e> {
    pub(crate) ep: &'e Endpoint,
    pub(crate) yielded: bool,
}

impl Future for Yield<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        self.ep.core().wake(self.ep.slot());
        Poll::Pending
    }
}

/// See [`Endpoint::backoff`].
#[derive(Debug)]
pub struct Backoff<'e> {
    pub(crate) ep: &'e Endpoint,
    pub(crate) what: &'static str,
    pub(crate) at: GlobalAddr,
    pub(crate) step: u32,
    pub(crate) longest: Nanos,
}

/// Default longest pause of a back-off.
pub(crate) const LONGEST_PAUSE_NS: Nanos = 64_000;

impl Backoff<'_> {
    /// Pauses: 0.5 us doubling to the longest, spread by half; gives way to other clients first.
    ///
    /// # Errors
    /// `TimedOut` when the deadline of the operation has passed.
    pub async fn step(&mut self) -> Result<()> {
        let step = self.step;
        self.step += 1;
        if step > 0 {
            self.ep.check_deadline(self.what, self.at.bits())?;
        }
        let base = (500u64 << step.min(20)).min(self.longest);
        if step == 0 || base == 0 {
            self.repeats();
            self.ep.yield_now().await;
            return Ok(());
        }
        let pause = base / 2 + self.ep.core().draw() % (base / 2 + 1);
        let wait = Wait::begin(self.ep, self.why());
        self.ep.sleep(pause).await;
        wait.end(self.ep);
        Ok(())
    }

    fn why(&self) -> WaitReason {
        WaitReason { what: self.what, at: self.at.bits() }
    }

    /// Counts that the client tries again at once: a wait without time.
    pub fn repeats(&self) {
        self.ep.counters().waited(self.why(), 0);
    }

    /// How often it has paused.
    pub fn steps(&self) -> u32 {
        self.step
    }
}
