//! Limits on the resources of a process that peers may take, and their current use.

use crate::transport::Nanos;

const MS: Nanos = 1_000_000;

/// Limits on the resources that peers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Of these, from one address.
    pub per_peer: usize,
    /// Of these, connections without a stated purpose: their peers are not known. A newer one
    /// replaces the oldest one, and waits while that is young.
    pub ungreeted: usize,
    /// How long such a connection keeps its place at least, ns: many that are set up at once do not
    /// end each other.
    pub ungreeted_for_ns: Nanos,
    /// Time to state the purpose, ns.
    pub greeted_within_ns: Nanos,
    /// Idle time of a connection for questions, ns.
    pub idle_ns: Nanos,
    /// A frame has come wholly within this time, ns, after its beginning: no sender lets it be
    /// executed later.
    pub frame_within_ns: Nanos,
    /// Answers are taken within this time, ns.
    pub answers_within_ns: Nanos,
    /// The same while answers that are not taken fill [`Limits::unsent_bytes`].
    pub answers_within_when_full_ns: Nanos,
    /// Bytes of answers of one connection that are not taken; it is not read from meanwhile. (An
    /// answer that was begun is finished.)
    pub unsent_of_one: usize,
    /// Bytes of answers of all connections that are not taken: longer answers than
    /// [`Limits::small`] wait meanwhile.
    pub unsent_bytes: usize,
    /// Bytes of unfinished frames of all connections: all but one of those with more than
    /// [`Limits::small`] of them wait meanwhile.
    pub unfinished_bytes: usize,
    /// Bytes that a connection may always have.
    pub small: usize,
    /// Calls of one connection that are not answered; it is not read from meanwhile.
    pub calls_of_one: usize,
    /// Bytes of calls that wait for the thread that answers: connections that bring calls wait
    /// meanwhile.
    pub calls_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            per_peer: 2048,
            ungreeted: 64,
            ungreeted_for_ns: 100 * MS,
            greeted_within_ns: 2_000 * MS,
            idle_ns: 60_000 * MS,
            frame_within_ns: 2_000 * MS,
            answers_within_ns: 10_000 * MS,
            answers_within_when_full_ns: 2_000 * MS,
            unsent_of_one: 256 << 10,
            unsent_bytes: 16 << 20,
            unfinished_bytes: 16 << 20,
            small: 4 << 10,
            calls_of_one: 64,
            calls_bytes: 4 << 20,
        }
    }
}

impl Limits {
    /// These limits, reduced so that a quarter of the process's descriptors remain for other uses.
    pub(super) fn within_descriptors(self) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(usize::MAX, |n| usize::try_from(n / 4 * 3).unwrap_or(usize::MAX));
        Self { connections: self.connections.min(most.max(16)), ..self }
    }
}

/// Current use.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Bytes of answers that are not taken.
    pub unsent: usize,
    /// Bytes of unfinished frames.
    pub unfinished: usize,
    /// The one connection that may receive its long frame although there is no room for it.
    pub favoured: Option<u64>,
}

impl Room {
    /// Whether there is room for an answer of so many bytes.
    pub(super) fn has_for_answer(&self, limits: &Limits, bytes: usize) -> bool {
        bytes <= limits.small || self.unsent == 0 || self.unsent + bytes <= limits.unsent_bytes
    }

    /// Whether a connection with so many bytes of an unfinished frame may be read from.
    pub(super) fn has_for_frame(&mut self, limits: &Limits, token: u64, bytes: usize) -> bool {
        if bytes <= limits.small || self.unfinished < limits.unfinished_bytes {
            return true;
        }
        *self.favoured.get_or_insert(token) == token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_frame_comes_in_when_there_is_no_room() {
        let limits = Limits::default();
        let mut room = Room::default();
        assert!(room.has_for_frame(&limits, 1, 1 << 20));
        room.unfinished = limits.unfinished_bytes;
        assert!(room.has_for_frame(&limits, 1, 1 << 20));
        assert!(!room.has_for_frame(&limits, 2, 1 << 20));
        assert!(room.has_for_frame(&limits, 2, limits.small), "the first bytes of any");
        room.favoured = None;
        assert!(room.has_for_frame(&limits, 2, 1 << 20));
    }

    #[test]
    fn one_long_answer_is_made_when_there_is_no_room() {
        let limits = Limits::default();
        let mut room = Room::default();
        assert!(room.has_for_answer(&limits, 64 << 20));
        room.unsent = 1;
        assert!(!room.has_for_answer(&limits, 64 << 20));
        assert!(room.has_for_answer(&limits, 1 << 20) && room.has_for_answer(&limits, 8));
    }
}
