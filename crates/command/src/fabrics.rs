//! The names of the fabrics.

use dmtree_fabric::net::DataPath;

/// The fabric in this process's memory.
pub const LOCAL: &str = "local";
/// The simulated fabric.
pub const SIM: &str = "sim";
/// Nodes in several processes, over TCP.
pub const TCP: &str = "tcp";
/// Real RDMA.
pub const VERBS: &str = "verbs";
/// All of them.
pub const FABRICS: [&str; 4] = [LOCAL, SIM, TCP, VERBS];

/// The data path of a fabric with several processes; `None` for the fabrics of one process.
pub fn data_path(fabric: &str) -> Option<DataPath> {
    [DataPath::Frames, DataPath::Rdma].into_iter().find(|c| c.name() == fabric)
}
