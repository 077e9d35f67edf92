//! The simulated fabric for cells: the selection of a pool's fabric, and the additional figures of
//! a simulated cell.

use clap::ValueEnum;
use dmtree_fabric::net::{DataPath, NicConfig};
use serde::{Deserialize, Serialize};

pub use dmtree_fabric::sim::{Confidence, NodeUsage, Profile, SimFabric, Usage};

/// Clients start within this time, ns. If they started together, they would move in convoys.
pub const START_SPREAD_NS: u64 = 500_000;

/// Where the CPU time of a simulated index comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuSource {
    /// The index names its steps, and the profile prices them.
    #[default]
    Charged,
    /// The time of its code on this machine, times the profile's `cpu.measured_factor`. Figures
    /// vary from run to run.
    Measured,
    /// The instructions of each operation, as counted on one node, at the profile's
    /// `cpu.instructions_per_ns`.
    Counted,
    /// Nowhere: it was to be charged, and has named no step. What it computes takes no time, so
    /// that its throughput is an upper bound. This is seen after a run, and cannot be asked for.
    #[value(skip)]
    Free,
}

impl CpuSource {
    /// Whether it is the usual one.
    pub fn is_charged(&self) -> bool {
        *self == Self::Charged
    }

    /// What marks a system in tables and legends.
    pub fn mark(self) -> Option<&'static str> {
        match self {
            Self::Charged => None,
            Self::Measured => Some("CPU measured"),
            Self::Counted => Some("CPU counted"),
            Self::Free => Some("CPU free"),
        }
    }
}

/// The fabric of a pool.
#[derive(Clone, Debug, Default)]
pub enum FabricSpec {
    /// Memory of this process.
    #[default]
    Local,
    /// Simulated hardware.
    Sim {
        /// The hardware.
        profile: Box<Profile>,
        /// The seed of its random choices.
        seed: u64,
        /// Where the CPU time of an index comes from.
        cpu: CpuSource,
    },
    /// Nodes in several processes, in a running pool.
    Joined {
        /// Address of the first memory node.
        first: String,
        /// The required data path, if any.
        data_path: Option<DataPath>,
        /// The NIC configuration of this process, if it needs one.
        nic_config: NicConfig,
    },
    /// Nodes with separate connections, all started in this process.
    Apart {
        /// The data path.
        data_path: DataPath,
        /// The NIC configuration of this process, if it needs one.
        nic_config: NicConfig,
    },
}

/// The busiest server of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Busiest {
    /// Its node.
    pub node: String,
    /// The server: `in-wire` and `out-wire`, the wires towards the node and from it; `responder`
    /// and `initiator`, the pipelines of its NIC that serve and issue verbs; `cores`, those that
    /// run its data services, `jobs`, those that run jobs; `cpu`, its client threads, `workers`,
    /// those of the index's workers.
    pub server: String,
    /// The share of the window that it was busy, 0 to 1.
    pub utilization: f64,
}

impl Busiest {
    /// What limits a run by it: merging, flushing, the CPU of clients, a wire or a NIC; or waiting,
    /// when no server is busy for most of the time.
    pub fn limit(&self) -> &'static str {
        match self.server.as_str() {
            _ if self.utilization < 0.8 => "waiting",
            "jobs" | "cores" => "merge",
            "workers" => "flush",
            "cpu" => "CPU",
            "in-wire" | "out-wire" => "wire",
            _ => "NIC",
        }
    }

    /// As text: `mn0 responder 98 %`.
    pub fn text(&self) -> String {
        format!("{} {} {:.0} %", self.node, self.server, self.utilization * 100.0)
    }
}

/// Use of a node's NIC and CPU in the measuring window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeUse {
    /// Its name: `mn0`, `cn0`.
    pub node: String,
    /// READs, WRITEs and atomics that it served, millions per second.
    pub mverbs: f64,
    /// Remote calls that it served, millions per second.
    pub mrpcs: f64,
    /// Data rate to the node, headers included, Gb/s.
    pub in_gbps: f64,
    /// Data rate from the node, headers included, Gb/s.
    pub out_gbps: f64,
    /// Share of the window that the wire towards it was busy.
    pub in_wire: f64,
    /// Share of the window that the wire from it was busy.
    pub out_wire: f64,
    /// Share of the window that its NIC served verbs.
    pub responder: f64,
    /// Share of the window that its NIC issued verbs.
    pub initiator: f64,
    /// Time that atomics waited for others on the same word, as a share of the window; the sum of
    /// all waits.
    pub same_word: f64,
    /// Share of the window in which remote calls were answered; the sum over cores.
    pub rpc: f64,
    /// Cores that ran data services, on average.
    #[serde(default)]
    pub busy_cores: f64,
    /// How many there are.
    #[serde(default)]
    pub cores: u32,
    /// Cores that ran jobs, on average; there are as many of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub job_cores: f64,
    /// Share of the window that each of its client threads was busy, in their order.
    pub cpu: Vec<f64>,
    /// The same of the threads of its workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<f64>,
}

impl NodeUse {
    fn servers(&self) -> [(&'static str, f64); 8] {
        [
            ("in-wire", self.in_wire),
            ("out-wire", self.out_wire),
            ("responder", self.responder),
            ("initiator", self.initiator),
            ("cores", (self.busy_cores / f64::from(self.cores.max(1))).min(1.0)),
            ("jobs", (self.job_cores / f64::from(self.cores.max(1))).min(1.0)),
            // The average thread.
            ("cpu", mean(&self.cpu)),
            ("workers", mean(&self.workers)),
        ]
    }
}

fn mean(shares: &[f64]) -> f64 {
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

fn is_zero(n: &f64) -> bool {
    *n == 0.0
}

/// Additional figures of a simulated cell, of the last round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SimFigures {
    /// Hash of all events up to the end of the cell, hexadecimal.
    pub trace_hash: String,
    /// The measuring window: from, to, ns of virtual time.
    pub window_ns: (u64, u64),
    /// Operations that ended in it.
    pub window_ops: u64,
    /// Every node.
    pub nodes: Vec<NodeUse>,
    /// CPU time of memory nodes for an operation, ns.
    #[serde(default)]
    pub mn_cpu_ns_per_op: f64,
    /// The busiest server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest: Option<Busiest>,
    /// Real seconds of the simulation, without load and warm-up.
    pub real_seconds: f64,
    /// One-sided verbs simulated in that time, ramps included.
    #[serde(default)]
    pub real_verbs: u64,
    /// Verbs simulated per real second.
    #[serde(default)]
    pub sim_verbs_per_s: f64,
}

/// Usage counters as shares of the time they cover. Of a node's threads that were busy, the first
/// `clients` are those of clients, the others those of workers.
pub fn nodes(u: &Usage, clients: usize) -> Vec<NodeUse> {
    let ns = u.until_ns.saturating_sub(u.since_ns).max(1) as f64;
    // Work counts when a server accepts it, so a saturated server may exceed the window by a
    // little.
    let share = |busy: u64| (busy as f64 / ns).min(1.0);
    let sum = |busy: u64| busy as f64 / ns;
    let per_second = |n: u64| n as f64 / ns * 1e9;
    let threads = |node| {
        let mine = u.threads.iter().filter(move |t| t.node == node && t.cpu_ns > 0);
        mine.map(|t| share(t.cpu_ns))
    };
    let one = |n: &NodeUsage| NodeUse {
        node: n.node.to_string(),
        mverbs: per_second(n.reads + n.writes + n.atomics) / 1e6,
        mrpcs: per_second(n.rpcs) / 1e6,
        in_gbps: per_second(n.in_bytes) * 8.0 / 1e9,
        out_gbps: per_second(n.out_bytes) * 8.0 / 1e9,
        in_wire: share(n.in_wire_ns),
        out_wire: share(n.out_wire_ns),
        responder: share(n.responder_ns),
        initiator: share(n.initiator_ns),
        same_word: sum(n.same_word_wait_ns),
        rpc: sum(n.rpc_ns),
        busy_cores: sum(n.data_ns),
        job_cores: sum(n.job_ns),
        cores: n.data_cores,
        cpu: threads(n.node).take(clients).collect(),
        workers: threads(n.node).skip(clients).collect(),
    };
    u.nodes.iter().map(one).collect()
}

/// The busiest server of all nodes; the first of equals.
pub fn busiest(nodes: &[NodeUse]) -> Option<Busiest> {
    let mut best: Option<Busiest> = None;
    for n in nodes {
        for (server, utilization) in n.servers() {
            if best.as_ref().is_none_or(|b| utilization > b.utilization) {
                let (node, server) = (n.node.clone(), server.to_owned());
                best = Some(Busiest { node, server, utilization });
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_server_is_named() {
        let node = |name: &str, responder, cpu| NodeUse {
            node: name.to_owned(),
            responder,
            cpu,
            ..NodeUse::default()
        };
        let nodes = [node("mn0", 0.97, vec![]), node("cn0", 0.3, vec![1.0, 0.2])];
        assert_eq!(busiest(&nodes).unwrap().text(), "mn0 responder 97 %");
        let nodes = [node("mn0", 0.5, vec![]), node("cn0", 0.3, vec![1.0, 0.8])];
        assert_eq!(busiest(&nodes).unwrap().text(), "cn0 cpu 90 %");
        let cores = NodeUse { node: "mn0".into(), busy_cores: 1.5, cores: 2, ..NodeUse::default() };
        assert_eq!(busiest(&[cores]).unwrap().text(), "mn0 cores 75 %");
        assert_eq!(busiest(&[]), None);
    }
}
