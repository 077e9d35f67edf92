//! Rare events, for the log of the program: with the feature `tracing` they go to its subscriber,
//! with the target `dmtree` and the field `event`; without it nowhere, at no cost.

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
    /// An operation has waited for long.
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
