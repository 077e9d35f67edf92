//! Rare events, for the log of the program: with the feature `tracing` they go to its subscriber,
//! with the target `dmtree` and the field `event`; without it nowhere, at no cost.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::transport::Nanos;

/// Operations and waits of this length are events.
static SLOW_NS: AtomicU64 = AtomicU64::new(100_000_000);

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member has joined, or its standing has changed: each step of a death.
    Membership,
    /// Tables have another owner.
    Move,
    /// What a dead or failed client has left is repaired.
    Repair,
    /// A search for memory that dead nodes held has begun or ended.
    GarbageCollection,
    /// A peer was refused.
    Refused,
    /// An operation was slow, or a wait of it ([`set_slow_ns`]).
    Slow,
}

impl Event {
    /// Its name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Membership => "membership",
            Self::Move => "move",
            Self::Repair => "repair",
            Self::GarbageCollection => "garbage_collection",
            Self::Refused => "refused",
            Self::Slow => "slow",
        }
    }
}

/// Reports an event. `text` is called where a subscriber wants it.
#[inline]
pub fn report(event: Event, text: impl FnOnce() -> String) {
    #[cfg(feature = "tracing")]
    match event {
        Event::Refused | Event::Slow => {
            tracing::warn!(target: "dmtree", event = event.name(), "{}", text());
        }
        _ => tracing::info!(target: "dmtree", event = event.name(), "{}", text()),
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (event, text);
}

/// Operations and waits of `ns` and more are events from now on: a setting of the process, as the
/// subscriber is. 100 ms unless set.
pub fn set_slow_ns(ns: Nanos) {
    SLOW_NS.store(ns, Ordering::Relaxed);
}

/// Reports what took `ns`, if that is slow. `text` gets milliseconds.
#[inline]
pub fn report_slow(ns: Nanos, text: impl FnOnce(Nanos) -> String) {
    if cfg!(feature = "tracing") && ns >= SLOW_NS.load(Ordering::Relaxed) {
        report(Event::Slow, || text(ns / 1_000_000));
    }
}
