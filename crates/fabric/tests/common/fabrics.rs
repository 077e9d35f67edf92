//! A memory node and compute nodes, on every transport without hardware.

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::net::{DataPath, NetFabric, NicConfig, Place, PoolConfig};
use dmtree_fabric::sim::{FabricFaults, Profile, SimFabric};
use dmtree_fabric::{Capabilities, LeaseParameters, NodeId, Role};

use super::{CN, MN};

pub const CN1: NodeId = NodeId::compute(1);
pub const LOSSY: FabricFaults = FabricFaults { call_lost_one_in: 2, ..FabricFaults::NONE };

pub fn local() -> LocalFabric {
    let f = LocalFabric::new();
    f.add_node(MN, 1 << 16).expect("new");
    [CN, CN1].into_iter().for_each(|cn| f.add_node(cn, 1 << 12).expect("new"));
    f
}

/// A memory node with so many cores, and a compute node.
pub fn apart(cores: u32) -> [NetFabric; 2] {
    let mut nic_config = NicConfig::default();
    nic_config.cores = cores;
    let (data_path, options) = (DataPath::Frames, Vec::new());
    let pool_config = PoolConfig {
        memory_nodes: 1,
        compute_nodes: 1,
        journal_nodes: 0,
        skips_journal: false,
        data_path,
        options,
    };
    let leases = LeaseParameters::default();
    let mn = NetFabric::found("127.0.0.1:0", 1 << 16, pool_config, leases, &nic_config)
        .expect("a free port");
    mn.ready().expect("itself");
    let place = Place {
        first: mn.listens(),
        listen: "127.0.0.1:0",
        wanted: None,
        within: std::time::Duration::from_secs(10),
        data_path: None,
        nic_config: &NicConfig::default(),
    };
    let cn = NetFabric::join(&place, Role::Compute, |_| Ok(1 << 12)).expect("joins");
    [mn, cn]
}

pub fn profile(sets: &[(&str, &str)]) -> Profile {
    let mut p = Profile::named("ideal").expect("shipped");
    sets.iter().for_each(|(field, value)| p.set(field, value).expect("a field"));
    p
}

pub fn sim(sets: &[(&str, &str)]) -> SimFabric {
    with_nodes(SimFabric::new(&profile(sets), 1))
}

pub fn adversarial(faults: FabricFaults, seed: u64) -> SimFabric {
    with_nodes(SimFabric::adversarial(faults, Capabilities::NONE, seed).expect("a fabric"))
}

pub fn with_nodes(f: SimFabric) -> SimFabric {
    f.add_node(MN, 1 << 16).expect("new");
    [CN, CN1].into_iter().for_each(|cn| f.add_node(cn, 1 << 12).expect("new"));
    f.set_timed(true);
    f
}
