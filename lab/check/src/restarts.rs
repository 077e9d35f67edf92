//! The faults of the set `restarts`: nodes that end and come back, alone or all at once, stalls,
//! losses, clock jumps. Each has a draw of its own, so that a new fault leaves the others of a seed
//! unchanged.

use dmtree_fabric::sim::How;

use crate::case::Draw;
use crate::fault::{Ending, FaultTargets, NodeFault, crash, verb};

/// Virtual time over which a case's operations and faults are spread, ns, unless it says otherwise.
pub(crate) const SPAN_NS: u64 = 40_000_000;
/// Incarnations in a case that has many, all nodes together.
const MANY_LIVES: u64 = 200;

/// Draws some faults of one kind.
type Drawer = fn(&mut Draw, FaultTargets) -> Vec<NodeFault>;

/// Those of a seed; one at least.
pub(crate) fn draw(seed: u64, targets: FaultTargets) -> Vec<NodeFault> {
    let draws: [(u64, u64, Drawer); 7] = [
        (0x6f75_7461_6765, 3, outages),
        (0x0074_7572_6e73, 3, restart_loop),
        (0x0073_7469_6c6c, 5, standstill),
        (0x0073_7461_6c6c, 5, stall),
        (0x6a75_6d70, 8, jump),
        (0x6c6f_7374, 8, loss),
        (0x0063_7261_7368, 8, one_crash),
    ];
    let of = |tag: u64| Draw::new(seed ^ tag << 8 ^ 0x006c_6976_6573);
    let mut out = Vec::new();
    for (tag, one_in, some) in draws {
        let mut d = of(tag);
        if d.below(one_in) == 0 {
            out.extend(some(&mut d, targets));
        }
    }
    if out.is_empty() {
        let (tag, _, some) = draws[of(0).below(5) as usize];
        out = some(&mut of(tag + 1), targets);
    }
    out
}

fn at(d: &mut Draw) -> u64 {
    d.below(SPAN_NS)
}

fn ending(d: &mut Draw) -> Ending {
    d.of(&[Ending::Leaves, Ending::Process, Ending::Process, Ending::Hung])
}

/// Times that matter to leases.
fn some_time(d: &mut Draw, targets: FaultTargets) -> u64 {
    let lease = targets.lease_ns;
    d.of(&[50_000, lease / 4, lease, 2 * lease, 10 * lease])
}

/// Once or twice, for any time: longer than the membership waits for acknowledgements, too.
fn outages(d: &mut Draw, targets: FaultTargets) -> Vec<NodeFault> {
    let times = 1 + d.below(3) / 2;
    let mut all = Vec::new();
    for _ in 0..times {
        let long = d.of(&[0, 0, 1_500_000_000, 3_000_000_000]);
        let for_ns = long + some_time(d, targets);
        let back = 1 + d.below(targets.compute_nodes.into()) as u16;
        all.push(NodeFault::Outage { at_ns: at(d), end: ending(d), back, for_ns });
    }
    all
}

/// One node a few times, or all of them very often.
fn restart_loop(d: &mut Draw, targets: FaultTargets) -> Vec<NodeFault> {
    let all = u64::from(targets.compute_nodes);
    let (nodes, times) = match d.below(8) {
        0 => (all, MANY_LIVES.div_ceil(all)),
        n => (1 + n % all, d.of(&[2, 5, 12])),
    };
    let mut out = Vec::new();
    for cn in 0..nodes as u16 {
        let up_ns = d.of(&[200_000, 1_000_000, 3_000_000]);
        let away_ns = match times {
            0..=12 => some_time(d, targets),
            _ => d.of(&[20_000, 200_000]),
        };
        let ends = [ending(d), ending(d), ending(d)];
        let at_ns = d.below(SPAN_NS / 4);
        out.push(NodeFault::RestartLoop { cn, at_ns, times: times as u32, ends, away_ns, up_ns });
    }
    out
}

fn standstill(d: &mut Draw, targets: FaultTargets) -> Vec<NodeFault> {
    let memory = d.of(&[true, true, false]);
    vec![NodeFault::StallAll { at_ns: at(d), for_ns: some_time(d, targets), memory }]
}

fn stall(d: &mut Draw, targets: FaultTargets) -> Vec<NodeFault> {
    let mn = d.below(targets.memory_nodes.into()) as u16;
    vec![NodeFault::Stall { mn, at_ns: at(d), for_ns: some_time(d, targets) }]
}

fn jump(d: &mut Draw, targets: FaultTargets) -> Vec<NodeFault> {
    vec![NodeFault::Jump { at_ns: at(d), by_ns: some_time(d, targets) }]
}

/// Any memory node, the first one rarely: after its loss a run only checks that every operation
/// ends.
fn loss(d: &mut Draw, targets: FaultTargets) -> Vec<NodeFault> {
    let mn = match (targets.memory_nodes, d.below(3)) {
        (1, _) | (_, 0) => 0,
        (n, _) => 1 + d.below(u64::from(n) - 1) as u16,
    };
    let cn = d.below(targets.compute_nodes.into()) as u16;
    vec![NodeFault::LoseMemory { mn, cn, verb: verb(d) }]
}

fn one_crash(d: &mut Draw, targets: FaultTargets) -> Vec<NodeFault> {
    let cn = d.below(targets.compute_nodes.into()) as u16;
    vec![crash(d, cn)]
}

impl Ending {
    /// The fabric's crash mode; a node that leaves in good order ends as a process.
    pub(crate) fn how(self) -> How {
        match self {
            Self::Leaves | Self::Process => How::Process,
            Self::Hung => How::Hung,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::NodeFaultSet;

    #[test]
    fn every_fault_is_drawn_and_is_a_function_of_its_seed() {
        let targets = FaultTargets { compute_nodes: 3, memory_nodes: 2, lease_ns: 20_000_000 };
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..2_000 {
            let drawn = NodeFault::draw(NodeFaultSet::Restarts, seed, targets);
            assert!(!drawn.is_empty());
            assert_eq!(drawn, NodeFault::draw(NodeFaultSet::Restarts, seed, targets));
            kinds.extend(drawn.iter().map(NodeFault::kind));
        }
        for kind in [
            "end of all compute nodes",
            "restart cycles of a node",
            "stall of all compute nodes",
            "stall of all nodes",
            "stall of the first memory node",
            "stall of a memory node",
            "clock jump",
            "lost memory node",
        ] {
            assert!(kinds.contains(kind), "{kind}");
        }
    }
}
