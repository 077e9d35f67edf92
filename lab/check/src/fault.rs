//! Faults of nodes and links in a run, drawn from its seed. Fabric faults may occur at any verb;
//! node faults occur once each, at a verb or at a time.

use dmtree_fabric::Error;
use dmtree_fabric::sim::{How, Place};
use serde::{Deserialize, Serialize};

use crate::case::{Case, drawn_from};
use crate::rng::Rng;

pub use dmtree_parts::peer::NodeFaultSet;

/// A fault. Verbs are counted among those that the node posts, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the variants say what the fields are")]
pub enum NodeFault {
    /// A compute node crashes at a verb, and restarts after a time, if at all.
    Crash {
        cn: u16,
        verb: u64,
        place: Place,
        how: How,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        back_ns: Option<u64>,
    },
    /// A compute node stops entirely when it has posted a verb, and continues later in the same
    /// state.
    Freeze { cn: u16, verb: u64, for_ns: u64 },
    /// A compute node's clock runs faster, or slower, by so many millionths.
    Drift { cn: u16, ppm: i64 },
    /// Membership updates reach a compute node late.
    LateMembership { cn: u16, late_ns: u64 },
    /// The link between a compute node and another node carries nothing for a while.
    Cut { cn: u16, to: End, at_ns: u64, for_ns: u64 },
    /// The callers drop the operations that clients of a compute node run when it has posted a
    /// verb, each at its present await. The clients continue with their next operations.
    Drop { cn: u16, verb: u64 },
    /// All compute nodes end at a time, and some come back after another time.
    Outage { at_ns: u64, end: Ending, back: u16, for_ns: u64 },
    /// A compute node ends so many times, by these endings in turn, first at a time; it is away,
    /// and up again, for so long.
    RestartLoop { cn: u16, at_ns: u64, times: u32, ends: [Ending; 3], away_ns: u64, up_ns: u64 },
    /// All compute nodes stall for a while; perhaps the memory nodes, too, and with the first of
    /// them the membership server.
    StallAll { at_ns: u64, for_ns: u64, memory: bool },
    /// A memory node stalls for a while; the first one with the membership server.
    Stall { mn: u16, at_ns: u64, for_ns: u64 },
    /// The clock of the membership server jumps ahead.
    Jump { at_ns: u64, by_ns: u64 },
    /// A memory node is lost with its contents when a compute node has posted a verb.
    LoseMemory { mn: u16, cn: u16, verb: u64 },
}

/// The way in which an incarnation of a compute node ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It leaves the pool in good order.
    Leaves,
    /// Its process is killed.
    Process,
    /// Its processors stop, and its NIC goes on.
    Hung,
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A compute node.
    Compute(u16),
    /// A memory node.
    Memory(u16),
}

impl NodeFault {
    /// Its kind, in a word or two.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Crash { how: How::Process, .. } => "crash of a process",
            Self::Crash { how: How::Machine, .. } => "crash of a machine",
            Self::Crash { how: How::Hung, .. } => "hung node",
            Self::Freeze { .. } => "frozen node",
            Self::Drift { .. } => "clock drift",
            Self::LateMembership { .. } => "delayed membership updates",
            Self::Cut { .. } => "cut link",
            Self::LoseMemory { .. } => "lost memory node",
            Self::Drop { .. } => "dropped operations",
            Self::Outage { .. } => "end of all compute nodes",
            Self::RestartLoop { .. } => "restart cycles of a node",
            Self::StallAll { memory: false, .. } => "stall of all compute nodes",
            Self::StallAll { .. } => "stall of all nodes",
            Self::Stall { mn: 0, .. } => "stall of the first memory node",
            Self::Stall { .. } => "stall of a memory node",
            Self::Jump { .. } => "clock jump",
        }
    }

    /// Whether verbs of running nodes may fail by it, other than verbs to the crashed node.
    pub fn hits_the_living(&self) -> bool {
        matches!(
            self,
            Self::Freeze { .. } | Self::Cut { .. } | Self::LoseMemory { .. } | Self::Drop { .. }
        ) || self.is_of_restarts()
    }

    /// Whether only [`NodeFaultSet::Restarts`] draws it: in such a case a node that has lost its
    /// membership comes back.
    pub fn is_of_restarts(&self) -> bool {
        matches!(
            self,
            Self::Outage { .. }
                | Self::RestartLoop { .. }
                | Self::StallAll { .. }
                | Self::Stall { .. }
                | Self::Jump { .. }
        )
    }

    /// Those of a seed, for a case with these nodes.
    pub fn draw(set: NodeFaultSet, seed: u64, case: &Case) -> Vec<Self> {
        let mut d = drawn_from(seed ^ 0x6661_756c_7473);
        match set {
            NodeFaultSet::None => Vec::new(),
            NodeFaultSet::Crash => crashes(&mut d, case),
            NodeFaultSet::All => {
                let mut out = all(&mut d, case);
                drops(&mut drawn_from(seed ^ 0x6472_6f70_7073), case, &mut out);
                out
            }
            NodeFaultSet::Restarts => restarts(seed, case),
        }
    }
}

fn any_cn(d: &mut Rng, case: &Case) -> u16 {
    d.below(case.pool.compute_nodes.into()) as u16
}

/// Early verbs more often than late ones: every node posts that many in nearly every run.
fn verb(d: &mut Rng) -> u64 {
    let most = d.of(&[20, 80, 200, 400]);
    1 + d.below(most)
}

fn crash(d: &mut Rng, cn: u16) -> NodeFault {
    NodeFault::Crash {
        cn,
        verb: verb(d),
        place: d.of(&[Place::Before, Place::Inside, Place::After]),
        how: d.of(&[How::Process, How::Machine, How::Hung]),
        back_ns: d.of(&[None, None, Some(50_000), Some(5_000_000), Some(200_000_000)]),
    }
}

/// One or two nodes, never all.
fn crashes(d: &mut Rng, case: &Case) -> Vec<NodeFault> {
    let first = any_cn(d, case);
    let mut out = vec![crash(d, first)];
    if case.pool.compute_nodes > 2 && d.below(3) == 0 {
        let other = 1 + d.below(u64::from(case.pool.compute_nodes) - 1) as u16;
        out.push(crash(d, (first + other) % case.pool.compute_nodes));
    }
    out
}

fn all(d: &mut Rng, case: &Case) -> Vec<NodeFault> {
    let mut out = Vec::new();
    if d.below(2) == 0 {
        out = crashes(d, case);
    }
    if d.below(3) == 0 {
        let ppm = d.of(&[-40_000, -1_000, 1_000, 40_000]);
        out.push(NodeFault::Drift { cn: any_cn(d, case), ppm });
    }
    if d.below(3) == 0 {
        // Shorter than a lease: a joining node waits for this update.
        let late_ns = d.of(&[1_000_000, 5_000_000, 12_000_000]);
        out.push(NodeFault::LateMembership { cn: any_cn(d, case), late_ns });
    }
    if d.below(4) == 0 {
        let for_ns = d.of(&[100_000, 5_000_000, 100_000_000, 1_000_000_000]);
        out.push(NodeFault::Freeze { cn: any_cn(d, case), verb: verb(d), for_ns });
    }
    if d.below(4) == 0 {
        let near = any_cn(d, case);
        let other = (near + 1 + d.below(u64::from(case.pool.compute_nodes) - 1) as u16)
            % case.pool.compute_nodes;
        let mn = End::Memory(d.below(case.pool.memory_nodes.into()) as u16);
        let to = d.of(&[End::Compute(other), End::Compute(other), mn]);
        let (at_ns, for_ns) = (d.below(2_000_000), d.of(&[200_000, 10_000_000, 500_000_000]));
        out.push(NodeFault::Cut { cn: near, to, at_ns, for_ns });
    }
    if case.pool.memory_nodes > 1 && d.below(10) == 0 {
        // The first holds the catalog.
        let mn = 1 + d.below(u64::from(case.pool.memory_nodes) - 1) as u16;
        out.push(NodeFault::LoseMemory { mn, cn: any_cn(d, case), verb: verb(d) });
    }
    out
}

/// In a third of the seeds, up to three times.
fn drops(d: &mut Rng, case: &Case, out: &mut Vec<NodeFault>) {
    let times = if d.below(3) == 0 { 1 + d.below(3) } else { 0 };
    out.extend((0..times).map(|_| NodeFault::Drop { cn: any_cn(d, case), verb: verb(d) }));
}

/// Virtual time over which a case's operations and faults are spread, ns, unless it says otherwise.
pub(crate) const SPAN_NS: u64 = 40_000_000;
/// Incarnations in a case that has many, all nodes together.
const MANY_LIVES: u64 = 200;

/// Draws some faults of one kind.
type Drawer = fn(&mut Rng, &Case) -> Vec<NodeFault>;

/// Those of the set `restarts`, one at least: nodes that end and come back, alone or all at once,
/// stalls, losses, clock jumps. Each has a draw of its own, so that a new fault leaves the others
/// of a seed unchanged.
fn restarts(seed: u64, case: &Case) -> Vec<NodeFault> {
    let draws: [(u64, u64, Drawer); 7] = [
        (0x6f75_7461_6765, 3, outages),
        (0x0074_7572_6e73, 3, restart_loop),
        (0x0073_7469_6c6c, 5, |d, case| {
            let memory = d.of(&[true, true, false]);
            vec![NodeFault::StallAll { at_ns: at(d), for_ns: some_time(d, case), memory }]
        }),
        (0x0073_7461_6c6c, 5, |d, case| {
            let mn = d.below(case.pool.memory_nodes.into()) as u16;
            vec![NodeFault::Stall { mn, at_ns: at(d), for_ns: some_time(d, case) }]
        }),
        (0x6a75_6d70, 8, |d, case| {
            vec![NodeFault::Jump { at_ns: at(d), by_ns: some_time(d, case) }]
        }),
        (0x6c6f_7374, 8, loss),
        (0x0063_7261_7368, 8, |d, case| {
            let cn = any_cn(d, case);
            vec![crash(d, cn)]
        }),
    ];
    let of = |tag: u64| drawn_from(seed ^ tag << 8 ^ 0x006c_6976_6573);
    let mut out = Vec::new();
    for (tag, one_in, some) in draws {
        let mut d = of(tag);
        if d.below(one_in) == 0 {
            out.extend(some(&mut d, case));
        }
    }
    if out.is_empty() {
        let (tag, _, some) = draws[of(0).below(5) as usize];
        out = some(&mut of(tag + 1), case);
    }
    out
}

fn at(d: &mut Rng) -> u64 {
    d.below(SPAN_NS)
}

fn ending(d: &mut Rng) -> Ending {
    d.of(&[Ending::Leaves, Ending::Process, Ending::Process, Ending::Hung])
}

/// Times that matter to leases.
fn some_time(d: &mut Rng, case: &Case) -> u64 {
    let lease = case.lease_ns;
    d.of(&[50_000, lease / 4, lease, 2 * lease, 10 * lease])
}

/// Once or twice, for any time: longer than the membership waits for acknowledgements, too.
fn outages(d: &mut Rng, case: &Case) -> Vec<NodeFault> {
    let times = 1 + d.below(3) / 2;
    let mut all = Vec::new();
    for _ in 0..times {
        let long = d.of(&[0, 0, 1_500_000_000, 3_000_000_000]);
        let for_ns = long + some_time(d, case);
        let back = 1 + any_cn(d, case);
        all.push(NodeFault::Outage { at_ns: at(d), end: ending(d), back, for_ns });
    }
    all
}

/// One node a few times, or all of them very often.
fn restart_loop(d: &mut Rng, case: &Case) -> Vec<NodeFault> {
    let all = u64::from(case.pool.compute_nodes);
    let (nodes, times) = match d.below(8) {
        0 => (all, MANY_LIVES.div_ceil(all)),
        n => (1 + n % all, d.of(&[2, 5, 12])),
    };
    let mut out = Vec::new();
    for cn in 0..nodes as u16 {
        let up_ns = d.of(&[200_000, 1_000_000, 3_000_000]);
        let away_ns = match times {
            0..=12 => some_time(d, case),
            _ => d.of(&[20_000, 200_000]),
        };
        let ends = [ending(d), ending(d), ending(d)];
        let at_ns = d.below(SPAN_NS / 4);
        out.push(NodeFault::RestartLoop { cn, at_ns, times: times as u32, ends, away_ns, up_ns });
    }
    out
}

/// Any memory node, the first one rarely: after its loss a run only checks that every operation
/// ends.
fn loss(d: &mut Rng, case: &Case) -> Vec<NodeFault> {
    let mn = match (case.pool.memory_nodes, d.below(3)) {
        (1, _) | (_, 0) => 0,
        (n, _) => 1 + d.below(u64::from(n) - 1) as u16,
    };
    let cn = any_cn(d, case);
    vec![NodeFault::LoseMemory { mn, cn, verb: verb(d) }]
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

/// A fault that has occurred in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happened {
    /// Which of the case's faults.
    pub fault: NodeFault,
    /// When, ns of virtual time.
    pub at_ns: u64,
    /// Operations that it interrupted: of the node's clients, or all that ran when a link or memory
    /// node failed.
    pub inside: u32,
}

impl Happened {
    /// Whether the fault explains the error of an operation.
    pub fn excuses(&self, cn: u16, e: &Error) -> bool {
        use dmtree_fabric::ErrorKind as K;
        match self.fault {
            NodeFault::Crash { .. }
            | NodeFault::Drift { .. }
            | NodeFault::LateMembership { .. }
            | NodeFault::Outage { .. }
            | NodeFault::RestartLoop { .. }
            | NodeFault::Jump { .. } => false,
            // The membership server does not answer, or verbs do not complete. (The membership is
            // lost with the first memory node, and every error says so.)
            NodeFault::StallAll { .. }
            | NodeFault::Stall { .. }
            | NodeFault::LoseMemory { mn: 0, .. } => matches!(
                e.kind(),
                K::Revoked | K::TimedOut | K::Contended | K::Unreachable | K::Busy
            ),
            // The operation was combined into one that was dropped.
            NodeFault::Drop { cn: at, .. } => at == cn && e.kind() == K::Busy,
            NodeFault::Freeze { cn: frozen, .. } => {
                frozen == cn && matches!(e.kind(), K::Revoked | K::TimedOut | K::Contended)
            }
            NodeFault::Cut { cn: near, to, .. } => {
                let end = near == cn || to == End::Compute(cn);
                end && matches!(e.kind(), K::Revoked | K::TimedOut | K::Contended | K::Unreachable)
            }
            // The error names the node; `NodeStates` checks that a verb of the operation went
            // there.
            NodeFault::LoseMemory { mn, .. } => {
                e.kind() == K::Unreachable && e.to_string().contains(&format!("mn{mn}"))
            }
        }
    }

    /// Whether the fault may cost a compute node its membership. A stall of the membership server
    /// costs no node its own.
    pub fn expels(&self, cn: u16) -> bool {
        match self.fault {
            NodeFault::Freeze { cn: frozen, .. } => frozen == cn,
            NodeFault::Cut { cn: near, to, .. } => near == cn || to == End::Compute(cn),
            NodeFault::StallAll { memory, .. } => !memory,
            _ => false,
        }
    }
}
