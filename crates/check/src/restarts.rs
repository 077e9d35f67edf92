//! The faults of lives: nodes that end and come back, alone or all at once, standstills, losses, jumps of clocks. Each has a draw of its
//! own, so that a new one leaves the others of a seed as they are.

use dmtree_fabric::sim::How;

use crate::case::Draw;
use crate::fault::{Ending, NodeFault, Scenario, crash, verb};

/// Virtual time over which a case's operations and faults are spread, ns, unless it says otherwise.
pub(crate) const SPAN_NS: u64 = 40_000_000;
/// Lives of a case in which they are many, all nodes together.
const MANY_LIVES: u64 = 200;

/// Draws some faults of one kind.
type Drawer = fn(&mut Draw, Scenario) -> Vec<NodeFault>;

/// Those of a seed; one at least.
pub(crate) fn draw(seed: u64, scenario: Scenario) -> Vec<NodeFault> {
    let draws: [(u64, u64, Drawer); 7] = [
        (0x6f75_7461_6765, 3, outages),
        (0x0074_7572_6e73, 3, turns),
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
            out.extend(some(&mut d, scenario));
        }
    }
    if out.is_empty() {
        let (tag, _, some) = draws[of(0).below(5) as usize];
        out = some(&mut of(tag + 1), scenario);
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
fn some_time(d: &mut Draw, scenario: Scenario) -> u64 {
    let lease = scenario.lease_ns;
    d.of(&[50_000, lease / 4, lease, 2 * lease, 10 * lease])
}

/// Once or twice, for any time: longer than the membership waits for acknowledgements, too.
fn outages(d: &mut Draw, scenario: Scenario) -> Vec<NodeFault> {
    let times = 1 + d.below(3) / 2;
    let mut all = Vec::new();
    for _ in 0..times {
        let long = d.of(&[0, 0, 1_500_000_000, 3_000_000_000]);
        let for_ns = long + some_time(d, scenario);
        let back = 1 + d.below(scenario.compute_nodes.into()) as u16;
        all.push(NodeFault::Outage { at_ns: at(d), end: ending(d), back, for_ns });
    }
    all
}

/// One node a few times, or all of them very often.
fn turns(d: &mut Draw, scenario: Scenario) -> Vec<NodeFault> {
    let all = u64::from(scenario.compute_nodes);
    let (nodes, times) = match d.below(8) {
        0 => (all, MANY_LIVES.div_ceil(all)),
        n => (1 + n % all, d.of(&[2, 5, 12])),
    };
    let mut out = Vec::new();
    for cn in 0..nodes as u16 {
        let up_ns = d.of(&[200_000, 1_000_000, 3_000_000]);
        let away_ns = match times {
            0..=12 => some_time(d, scenario),
            _ => d.of(&[20_000, 200_000]),
        };
        let ends = [ending(d), ending(d), ending(d)];
        let at_ns = d.below(SPAN_NS / 4);
        out.push(NodeFault::Turns { cn, at_ns, times: times as u32, ends, away_ns, up_ns });
    }
    out
}

fn standstill(d: &mut Draw, scenario: Scenario) -> Vec<NodeFault> {
    let memory = d.of(&[true, true, false]);
    vec![NodeFault::Standstill { at_ns: at(d), for_ns: some_time(d, scenario), memory }]
}

fn stall(d: &mut Draw, scenario: Scenario) -> Vec<NodeFault> {
    let mn = d.below(scenario.memory_nodes.into()) as u16;
    vec![NodeFault::Stall { mn, at_ns: at(d), for_ns: some_time(d, scenario) }]
}

fn jump(d: &mut Draw, scenario: Scenario) -> Vec<NodeFault> {
    vec![NodeFault::Jump { at_ns: at(d), by_ns: some_time(d, scenario) }]
}

/// Any memory node, the first of them seldom: nothing can be judged afterwards but that all ends.
fn loss(d: &mut Draw, scenario: Scenario) -> Vec<NodeFault> {
    let mn = match (scenario.memory_nodes, d.below(3)) {
        (1, _) | (_, 0) => 0,
        (n, _) => 1 + d.below(u64::from(n) - 1) as u16,
    };
    let cn = d.below(scenario.compute_nodes.into()) as u16;
    vec![NodeFault::LoseMemory { mn, cn, verb: verb(d) }]
}

fn one_crash(d: &mut Draw, scenario: Scenario) -> Vec<NodeFault> {
    let cn = d.below(scenario.compute_nodes.into()) as u16;
    vec![crash(d, cn)]
}

impl Ending {
    /// As the fabric does it, unless the node leaves in good order.
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
        let scenario = Scenario { compute_nodes: 3, memory_nodes: 2, lease_ns: 20_000_000 };
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..2_000 {
            let drawn = NodeFault::draw(NodeFaultSet::Restarts, seed, scenario);
            assert!(!drawn.is_empty());
            assert_eq!(drawn, NodeFault::draw(NodeFaultSet::Restarts, seed, scenario));
            kinds.extend(drawn.iter().map(NodeFault::kind));
        }
        for kind in [
            "end of all compute nodes",
            "many lives of a node",
            "all compute nodes stand still",
            "everything stands still",
            "the first memory node stands still",
            "a memory node stands still",
            "clock jump",
            "lost memory node",
        ] {
            assert!(kinds.contains(kind), "{kind}");
        }
    }
}
