//! Cache budgets become smaller while clients work: answers are those of one index, and without
//! node faults the memory of each node is within its budget. Of the seeds of `dmtree-images` half
//! have a smaller budget.

use dmtree_check::campaign::Campaign;
use dmtree_check::checked::System;
use dmtree_check::concurrent::seeds;
use dmtree_parts::peer::{NodeFaultSet, Setting};

/// Runs seeds, without and with faults of nodes.
fn run(node_faults: NodeFaultSet, usual: u64) {
    let systems = dmtree_engine::systems().into_iter();
    let campaign = Campaign {
        systems: systems.filter(|s| s.name == "dmtree-images").map(System).collect(),
        seeds: seeds(0, usual),
        setting: Setting { node_faults, ..Setting::default() },
        threads: 2,
        ..Campaign::default()
    };
    let tally = campaign.run(&mut |_| ()).expect("the cases run");
    assert!(tally.violations.is_empty(), "{:#?}", tally.violations);
    let taken = tally.marks["images: a leaf loses its one to a smaller budget"];
    assert!(taken > 0, "no leaf has lost its image");
}

#[test]
fn while_clients_work() {
    run(NodeFaultSet::None, 16);
}

#[test]
fn while_nodes_fail() {
    run(NodeFaultSet::All, 16);
}
