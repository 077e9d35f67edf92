//! The measuring window of a simulated cell. It opens when every client is in steady state, and
//! closes before the first client stops.

use std::sync::{Mutex, MutexGuard};

use dmtree_fabric::sync::locked;

use crate::simulated::{SimFabric, Usage};

/// Operations per client, on average, that end before the window opens.
const RAMP_OPS: u64 = 2;
/// The ramp-up also takes this part of the window's operations, because queues at locks build up
/// slowly.
const RAMP_PART: u64 = 4;

/// The extent of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// It closes when this many operations have ended in it.
    pub ops: Option<u64>,
    /// It closes after this long, ns.
    pub ns: Option<u64>,
    /// It opens with the first operation, without a ramp-up.
    pub whole: bool,
}

/// A measuring window, shared by all clients of a cell. All of them run on one thread, so it
/// receives events in their order.
#[derive(Debug)]
pub struct Window {
    extent: Extent,
    ramp_ops: u64,
    ramp_ns: u64,
    sim: SimFabric,
    seen: Mutex<Seen>,
}

/// What a window has seen so far.
#[derive(Debug, Default)]
struct Seen {
    finished: u64,
    inside: u64,
    opened_ns: Option<u64>,
    closed_ns: Option<u64>,
    last_ns: u64,
    begun: u64,
    /// Use of the fabric, and the hash of all events, up to its end.
    at_end: Option<(Usage, u64)>,
}

/// What the end of an operation means for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It ended before the window opened, or after it closed.
    Outside,
    /// It ended the ramp-up: the window opens.
    Opens,
    /// It ended in the window.
    Inside,
    /// It ended in the window, as the last operation.
    Closes,
}

/// The span of a window, after the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Time of its opening, ns.
    pub from_ns: u64,
    /// Time of its closing, ns.
    pub to_ns: u64,
    /// Operations that ended in it.
    pub ops: u64,
    /// Operations that had begun by then, since the start of the phase.
    pub begun: u64,
}

impl Window {
    /// A window for `clients` clients that start within `spread_ns`.
    pub fn new(sim: SimFabric, clients: u32, spread_ns: u64, extent: Extent) -> Self {
        Self {
            extent,
            ramp_ops: (RAMP_OPS * u64::from(clients)).max(extent.ops.unwrap_or(0) / RAMP_PART),
            ramp_ns: spread_ns,
            sim,
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        locked(&self.seen)
    }

    /// Whether it has closed: clients stop.
    pub fn closed(&self) -> bool {
        self.seen().closed_ns.is_some()
    }

    /// Records that a client begins an operation at `now`.
    pub fn begin(&self, now: u64) {
        let mut seen = self.seen();
        if self.extent.whole && seen.opened_ns.is_none() {
            self.sim.reset_usage();
            seen.opened_ns = Some(now);
        }
        seen.begun += u64::from(seen.closed_ns.is_none());
    }

    /// Records that an operation, which counts as so many, has ended at `now`; the phase began at
    /// `start`.
    pub fn end(&self, start: u64, now: u64, counts: u64) -> Ending {
        let mut seen = self.seen();
        if seen.closed_ns.is_some() {
            return Ending::Outside;
        }
        seen.last_ns = now;
        seen.finished += 1;
        let Some(from) = seen.opened_ns else {
            if seen.finished < self.ramp_ops || now < start + self.ramp_ns {
                return Ending::Outside;
            }
            self.sim.reset_usage();
            seen.opened_ns = Some(now);
            return Ending::Opens;
        };
        seen.inside += counts;
        let full = self.extent.ops.is_some_and(|ops| seen.inside >= ops);
        let over = self.extent.ns.is_some_and(|ns| now >= from.saturating_add(ns));
        if full || over {
            self.close(&mut seen, now);
            return Ending::Closes;
        }
        Ending::Inside
    }

    /// Records that there are no more operations to begin. Returns whether this closes the window.
    pub fn run_dry(&self, now: u64) -> bool {
        let mut seen = self.seen();
        let open = seen.closed_ns.is_none();
        if open {
            self.close(&mut seen, now);
        }
        open
    }

    fn close(&self, seen: &mut Seen, now: u64) {
        seen.closed_ns = Some(now);
        seen.at_end = Some((self.sim.usage(), self.sim.trace_hash()));
    }

    /// Use of the fabric in the window, or in the whole phase if the window never opened, and the
    /// hash of all events up to its end.
    pub fn at_end(&self) -> (Usage, u64) {
        let at_end = self.seen().at_end.clone();
        at_end.unwrap_or_else(|| (self.sim.usage(), self.sim.trace_hash()))
    }

    /// Its span. A phase that is too short for a window counts whole, from `start` on.
    pub fn span(&self, start: u64) -> Span {
        let seen = self.seen();
        let begun = seen.begun;
        let to_ns = seen.closed_ns.unwrap_or(seen.last_ns.max(start + 1));
        match seen.opened_ns {
            Some(from_ns) if from_ns < to_ns && seen.inside > 0 => {
                Span { from_ns, to_ns, ops: seen.inside, begun }
            }
            _ => Span { from_ns: start, to_ns: to_ns.max(start + 1), ops: seen.finished, begun },
        }
    }

    /// The elapsed share of the window, 0 to 1.
    pub fn share(&self) -> f64 {
        let inside = self.seen().inside as f64;
        self.extent.ops.map_or(0.0, |ops| inside / ops.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Profile;

    fn window(clients: u32, extent: Extent) -> Window {
        let profile = Profile::named("dmtree-artifact-100g").unwrap();
        Window::new(SimFabric::new(&profile, 1), clients, 1000, extent)
    }

    #[test]
    fn ramps_are_left_out() {
        let w = window(2, Extent { ops: Some(3), ns: None, whole: false });
        // The ramp-up is four operations and 1000 ns.
        for now in [100, 200, 300, 400, 900] {
            assert_eq!(w.end(0, now, 1), Ending::Outside);
        }
        assert_eq!(w.seen().opened_ns, None);
        assert_eq!(w.end(0, 1100, 1), Ending::Opens);
        assert_eq!([w.end(0, 1200, 1), w.end(0, 1300, 1)], [Ending::Inside; 2]);
        assert_eq!(w.end(0, 1400, 1), Ending::Closes);
        assert_eq!(w.end(0, 1500, 1), Ending::Outside, "the ramp-down");
        assert_eq!(w.span(0), Span { from_ns: 1100, to_ns: 1400, ops: 3, begun: 0 });
    }

    #[test]
    fn whole_windows_have_no_ramp() {
        let w = window(2, Extent { ops: None, ns: None, whole: true });
        w.begin(50);
        w.begin(60);
        assert_eq!([w.end(40, 100, 7), w.end(40, 110, 1)], [Ending::Inside; 2]);
        assert!(w.run_dry(120));
        assert_eq!(w.span(40), Span { from_ns: 50, to_ns: 120, ops: 8, begun: 2 });
    }

    #[test]
    fn long_windows_have_long_ramps() {
        let w = window(1, Extent { ops: Some(400), ns: None, whole: false });
        (0..99).for_each(|i| assert_eq!(w.end(0, 2000 + i, 1), Ending::Outside));
        assert_eq!(w.end(0, 3000, 1), Ending::Opens, "a quarter of 400");
    }

    #[test]
    fn time_closes_it_too_and_short_phases_count_whole() {
        let w = window(1, Extent { ops: None, ns: Some(500), whole: false });
        w.end(0, 500, 1);
        w.end(0, 1000, 1);
        assert!(w.seen().opened_ns.is_some());
        assert_eq!([w.end(0, 1499, 1), w.end(0, 1500, 1)], [Ending::Inside, Ending::Closes]);
        assert_eq!(w.span(0).ops, 2);
        let w = window(100, Extent { ops: Some(10), ns: None, whole: false });
        w.end(7, 50, 1);
        assert!(w.run_dry(60) && !w.run_dry(70));
        assert_eq!(w.span(7), Span { from_ns: 7, to_ns: 60, ops: 1, begun: 0 });
    }
}
