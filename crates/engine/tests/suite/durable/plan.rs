//! What a seed draws.

use dmtree_check::rng::Rng;
use dmtree_fabric::sim::{FabricFaults, How};
use dmtree_journal::Level;

use super::journal::Wrong;

/// Keys of a run: two leaves of 32 slots, or some. Every second key is there from the beginning, in
/// leaves that are full: inserts split them.
const KEYS: [u64; 3] = [40, 40, 600];
/// Leases where nodes are lost: a life has many of them, and faults of the fabric make steps of the
/// membership agents take longer than the shorter ones.
const LEASES_NS: [u64; 3] = [100_000, 200_000, 500_000];

/// How a compute node loses its membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It crashes.
    Crash(How),
    /// A worker of it stands still, so that its lease is not renewed. Its clients go on until they
    /// are fenced.
    Lapse,
    /// It stands still for so long, ns, and goes on.
    Freeze(u64),
}

/// The loss of a compute node in the first life.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub cn: u16,
    pub at_ns: u64,
    /// It ends when it has made its next call to the journal node, if that is soon.
    pub with_call: bool,
    pub end: End,
}

/// What a seed draws.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub keys: u64,
    pub level: Level,
    /// The process alone is gone, not the power.
    pub process_dies: bool,
    pub faults: FabricFaults,
    pub whole_write: bool,
    pub fail_one_in: u64,
    /// When everything stops, and how often the device syncs, ns.
    pub dies_at_ns: u64,
    pub sync_ns: u64,
    pub wrong: Option<Wrong>,
    /// The journal is that of a journal node, and records reach it in calls.
    pub is_remote: bool,
    pub compute_nodes: u16,
    /// In the order of their times; one compute node stays.
    pub losses: Vec<Loss>,
    pub lease_ns: u64,
    /// The journal node ends at a time, and is back after another one, ns: after a loss of power at
    /// the level `sync`.
    pub journal_node_ends: Option<(u64, u64)>,
}

impl Wrong {
    /// Whether a run can show it.
    pub fn shows_in(self, plan: &Plan) -> bool {
        match self {
            Self::FencedAccepted => plan.is_remote && !plan.losses.is_empty(),
            Self::LeaseIgnored => !plan.losses.is_empty(),
            _ => true,
        }
    }
}

impl Plan {
    pub fn of(seed: u64, wrong: Option<Wrong>) -> Self {
        let mut rng = Rng::new(seed ^ 0x7077_7233);
        let process = Level::Process { sync_every: None };
        let (level, process_dies) =
            rng.of(&[(process, true), (process, false), (Level::Sync, false), (Level::Sync, true)]);
        let faults =
            if rng.below(2) == 0 { FabricFaults::NONE } else { FabricFaults::of_seed(seed) };
        let plan = Self {
            seed,
            keys: rng.of(&KEYS),
            level,
            process_dies,
            faults: FabricFaults { refuse_memory_one_in: 0, ..faults },
            whole_write: rng.below(2) == 0,
            fail_one_in: rng.of(&[0, 0, 60, 400]),
            dies_at_ns: 20_000 + rng.below(2_000_000),
            sync_ns: rng.of(&[3_000, 30_000, 200_000]),
            wrong,
            is_remote: rng.below(2) == 0,
            compute_nodes: 2,
            losses: Vec::new(),
            lease_ns: rng.of(&LEASES_NS),
            journal_node_ends: None,
        };
        if rng.below(2) == 0 { plan.with_losses(&mut rng) } else { plan }
    }

    /// Nodes are lost in the first life, which goes on afterwards.
    fn with_losses(self, rng: &mut Rng) -> Self {
        let is_back_ns = rng.of(&[20_000, 200_000, 1_000_000]);
        let ends = (50_000 + rng.below(1_500_000), is_back_ns);
        let journal_node_ends = (self.is_remote && rng.below(3) == 0).then_some(ends);
        let compute_nodes = 2 + rng.below(2) as u16;
        let first = rng.below(compute_nodes.into()) as u16;
        let least = u16::from(journal_node_ends.is_none());
        let lost = least + rng.below((compute_nodes - least).into()) as u16;
        let freeze = End::Freeze(self.lease_ns * 4 + rng.below(2_000_000));
        let ends = [End::Crash(How::Process), End::Crash(How::Hung), End::Lapse, freeze];
        let mut losses: Vec<Loss> = (first..first + lost)
            .map(|cn| Loss {
                cn: cn % compute_nodes,
                at_ns: 50_000 + rng.below(1_000_000),
                with_call: rng.below(4) > 0,
                end: rng.of(&ends),
            })
            .collect();
        losses.sort_by_key(|loss| loss.at_ns);
        // Most lives go on when the others have recovered what the last one held.
        let last_ns = losses.last().map_or(0, |loss| loss.at_ns + self.lease_ns);
        let dies_at_ns = last_ns + self.dies_at_ns + rng.of(&[0, 500_000, 2_000_000]);
        Self { compute_nodes, losses, journal_node_ends, dies_at_ns, ..self }
    }

    /// The compute node of a client.
    pub fn cn_of(&self, client: u32) -> u16 {
        client as u16 % self.compute_nodes
    }

    /// Whether the node of a client is lost.
    pub fn loses(&self, client: u32) -> bool {
        self.losses.iter().any(|loss| loss.cn == self.cn_of(client))
    }

    /// Nodes are lost.
    pub fn loses_nodes(&self) -> bool {
        !self.losses.is_empty() || self.journal_node_ends.is_some()
    }

    /// Acknowledged writes may be missing: those behind the last sync.
    pub fn loses_acknowledged(&self) -> bool {
        self.level != Level::Sync && !self.process_dies
    }
}
