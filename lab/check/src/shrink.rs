//! Shrinks a failing case greedily: fewer fabric faults, clients, operations and keys, as long as
//! it fails in the same way.

use dmtree_fabric::sim::FabricFaults;

use crate::case::Case;
use crate::fault::NodeFault;
use crate::verdict::Verdict;

/// Orders in which a smaller case is tried before it is discarded: a removed operation shifts all
/// later choices.
const ORDERS: u64 = 4;

/// A smaller case, and what it came to.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The case.
    pub case: Case,
    /// Its verdict.
    pub verdict: Verdict,
    /// How many runs it took.
    pub runs: u64,
}

/// How a case is run; nothing when it cannot be.
type Run<'a> = &'a mut dyn FnMut(&Case) -> Option<Verdict>;

struct Shrinker<'a> {
    best: Shrunk,
    kind: &'static str,
    run: Run<'a>,
    more: &'a mut dyn FnMut() -> bool,
}

/// Shrinks a case that came to `verdict`, as long as `more` says that there is time.
pub fn shrink(
    case: Case,
    verdict: Verdict,
    run: Run<'_>,
    more: &mut dyn FnMut() -> bool,
) -> Shrunk {
    let kind = verdict.finding.as_ref().map_or("", |f| f.kind());
    let best = Shrunk { case, verdict, runs: 0 };
    if kind.is_empty() {
        return best;
    }
    let mut s = Shrinker { best, kind, run, more };
    loop {
        let before = s.best.case.clone();
        s.node_faults();
        s.tries(|c| c.liveness = false);
        s.clients();
        s.operations();
        s.keys();
        s.fabric_faults();
        if s.best.case == before || !(s.more)() {
            return s.best;
        }
    }
}

impl Shrinker<'_> {
    /// Tries a smaller case in some orders; whether it is the best now.
    fn tries(&mut self, make_smaller: impl FnOnce(&mut Case)) -> bool {
        let mut smaller = self.best.case.clone();
        make_smaller(&mut smaller);
        if smaller == self.best.case {
            return false;
        }
        for n in 0..ORDERS {
            if !(self.more)() {
                return false;
            }
            let order = if n == 0 { smaller.order } else { smaller.seed ^ n << 48 };
            let case = Case { order, ..smaller.clone() };
            self.best.runs += 1;
            let Some(verdict) = (self.run)(&case) else { return false };
            if verdict.finding.as_ref().is_some_and(|f| f.kind() == self.kind) {
                (self.best.case, self.best.verdict) = (case, verdict);
                return true;
            }
        }
        false
    }

    /// Removes node faults one by one; a node that comes back is tried without its return.
    fn node_faults(&mut self) {
        for i in (0..self.best.case.node_faults.len()).rev() {
            self.tries(|c| _ = c.node_faults.remove(i));
        }
        for i in 0..self.best.case.node_faults.len() {
            self.tries(|c| {
                if let Some(NodeFault::Crash { back_ns, .. }) = c.node_faults.get_mut(i) {
                    *back_ns = None;
                }
            });
        }
    }

    fn kept(&self) -> Vec<Vec<u32>> {
        let case = &self.best.case;
        (0..case.total()).map(|c| case.numbers_of(c)).collect()
    }

    fn tries_kept(&mut self, kept: Vec<Vec<u32>>) -> bool {
        self.tries(|c| c.kept = Some(kept))
    }

    fn clients(&mut self) {
        for c in (0..self.best.case.total() as usize).rev() {
            let mut kept = self.kept();
            if kept.get(c).is_some_and(|ops| !ops.is_empty()) {
                kept[c].clear();
                self.tries_kept(kept);
            }
        }
    }

    /// Removes ever smaller stretches of each client's operations; the ends of all at first.
    fn operations(&mut self) {
        for eighths in [1, 2, 4, 6, 7] {
            let mut kept = self.kept();
            kept.iter_mut().for_each(|ops| ops.truncate((ops.len() * eighths).div_ceil(8)));
            if self.tries_kept(kept) {
                break;
            }
        }
        for c in 0..self.best.case.total() as usize {
            let mut size = self.kept().get(c).map_or(0, Vec::len).div_ceil(2);
            while size > 0 {
                self.stretches(c, size);
                size /= 2;
            }
        }
    }

    fn stretches(&mut self, c: usize, size: usize) {
        let mut at = 0;
        loop {
            let mut kept = self.kept();
            let Some(ops) = kept.get_mut(c).filter(|ops| at < ops.len()) else { return };
            ops.drain(at..(at + size).min(ops.len()));
            if !self.tries_kept(kept) {
                at += size;
            }
            if !(self.more)() {
                return;
            }
        }
    }

    fn keys(&mut self) {
        let (all, beside) = (self.best.case.keys, self.best.case.neighbours);
        for neighbours in [0, beside / 2] {
            self.tries(|c| c.neighbours = neighbours.min(c.neighbours));
        }
        for keys in [1, 2, 4, all / 4, all / 2, all * 3 / 4] {
            self.tries(|c| c.keys = if keys > 0 { keys.min(c.keys) } else { c.keys });
        }
        self.tries(|c| c.value_bytes = vec![8]);
    }

    fn fabric_faults(&mut self) {
        let json = |faults: FabricFaults| serde_json::to_value(faults).unwrap_or_default();
        let (none, on) = (json(FabricFaults::NONE), json(self.best.case.fabric_faults));
        for name in on.as_object().into_iter().flatten().map(|(name, _)| name) {
            // What is off may be left out.
            let mut faults = json(self.best.case.fabric_faults);
            match (none.get(name), faults.as_object_mut()) {
                (None, Some(faults)) => _ = faults.remove(name),
                (off, _) => faults[name] = off.cloned().unwrap_or_default(),
            }
            if let Ok(fabric_faults) = serde_json::from_value(faults) {
                self.tries(|c| c.fabric_faults = fabric_faults);
            }
        }
    }
}
