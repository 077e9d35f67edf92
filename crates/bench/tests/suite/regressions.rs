//! Cases that `dmtree check` has found and minimized, and cases that must continue to show a
//! finding.

use dmtree_bench::checked::replay;

/// As published a lock is lost when a failing compare-and-swap writes back the value it has read:
/// an unlock between its two halves is undone. The replay must show this; otherwise the fabric or
/// the checker misses it.
#[test]
fn a_published_lock_is_lost_between_the_halves_of_an_atomic() {
    let case = r##"{"version":5,"system":"dmtree-published","seed":1,"order":844424930131969,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":0,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":30000,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_bytes":24,"leaf_capacity":32,"locks":"table","mirrors":true,"round_trip_combining":false,"table_chunk_bytes":33554432,"tables":"compute","timeout_ms":10000,"value_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":3288},"clients":2,"churn_clients":0,"ops":120,"keys":1,"neighbours":0,"key_form":"early","fill_percent":70,"value_bytes":[8],"scan_one_in":60,"wave_ops":0,"liveness":false,"kept":[[14],[13]]}"##;
    let finding = replay(case).unwrap().finding.unwrap();
    assert_eq!(finding.kind(), "failed");
    assert!(finding.to_string().contains("lock of a leaf"), "{finding}");
    let granted = case.replace("\"cas_fail_is_readonly\":false", "\"cas_fail_is_readonly\":true");
    assert_eq!(replay(&granted).unwrap().finding, None);
}

/// A leaf moves to a larger one while a READ samples the inner node. The READ then shows the first
/// record's new place as it was before, and the old place as it is after: there is no first record.
/// The client must READ such an image again, and not report a corrupt node.
#[test]
fn a_node_sampled_around_the_replacement_of_its_first_record_is_read_again() {
    let case = r##"{"version":5,"system":"dmtree","seed":5148,"order":562949953426460,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":20000,"delay_ns":500,"stall_one_in":200,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":2,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4560},"clients":9,"churn_clients":0,"ops":120,"keys":64,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[8],"scan_one_in":0,"wave_ops":0,"liveness":false,"kept":[[0,1,3,4,5,7,8,9,10,11,12],[0,1,2,3,4,5,6,7,8,9,10],[0,1,3],[7,8,9,10,11,12,13,14],[0,1,2,3,4,5,7,8],[0,1,2,3,4,5,6],[0,1,2,3,4,5,6,7],[0,1,2,3,4],[0,1,2,3,4,5]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// An inner node was split without memory to split the node above it. Its record was left out, and
/// no client added it when memory was available again. Now this is a maintenance task, as for the
/// record of a leaf.
#[test]
fn the_record_of_an_inner_node_is_added_when_there_is_memory_again() {
    let case = r##"{"version":5,"system":"dmtree","seed":192,"order":844424930132160,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":200000,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":false,"point_one_in":2,"refuse_memory_one_in":30},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":false,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":64,"mirrors":true,"round_trip_combining":false,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4194304},"clients":9,"churn_clients":2,"ops":100,"keys":24,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[5000],"scan_one_in":60,"wave_ops":0,"liveness":false,"kept":[[0],[3],[0],[1],[1],[0,1,2],[2],[4],[0,1,3],[],[19,20,22]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A link was cut for longer than a verb is repeated. A detached unlock failed, no client checked
/// it, and the lock was held for ever.
#[test]
fn a_detached_unlock_lost_on_a_cut_link_is_repeated() {
    let case = r##"{"version":5,"system":"dmtree","seed":70,"order":70,"schedule":"uniform","fabric_faults":{"words":true,"stretch_ns":2000,"delay_ns":500,"stall_one_in":200,"replay_one_in":4,"atomic_gap_ns":3000,"garbage":false,"point_one_in":10},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":true,"delegation":true,"fanout":32,"key_inline_bytes":8,"leaf_capacity":64,"mirrors":false,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":2,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":11568},"clients":9,"churn_clients":0,"ops":100,"keys":24,"neighbours":7,"key_form":"early","fill_percent":50,"value_bytes":[5000],"scan_one_in":20,"wave_ops":40,"liveness":true,"node_faults":[{"late_membership":{"cn":1,"late_ns":12000000}},{"cut":{"cn":1,"to":{"compute":0},"at_ns":856809,"for_ns":500000000}}],"lease_ns":100000000}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// All clients of a disconnected node had ended. The locks that their last operations had left
/// stayed locked, because no client of the node called maintenance.
#[test]
fn abandoned_locks_of_a_node_without_clients_are_released() {
    let case = r##"{"version":5,"system":"dmtree","seed":184,"order":184,"schedule":"unfair","fabric_faults":{"words":true,"stretch_ns":20000,"delay_ns":5000,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":false,"point_one_in":10,"call_lost_one_in":3,"refuse_memory_one_in":30},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":8,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4194304},"clients":6,"churn_clients":1,"ops":120,"keys":64,"neighbours":0,"key_form":"early","fill_percent":100,"value_bytes":[200],"scan_one_in":60,"wave_ops":40,"liveness":true,"node_faults":[{"drift":{"cn":1,"ppm":-40000}},{"late_membership":{"cn":1,"late_ns":12000000}},{"cut":{"cn":1,"to":{"memory":0},"at_ns":1911571,"for_ns":500000000}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The checker considered a run settled before every node had learned of the end of a node failure.
/// A late node had not swept, and a table was not built.
#[test]
fn a_node_that_learns_late_of_a_failure_sweeps_after_it() {
    let case = r##"{"version":5,"system":"dmtree","seed":169,"order":169,"schedule":"unfair","fabric_faults":{"words":true,"stretch_ns":0,"delay_ns":5000,"stall_one_in":0,"replay_one_in":4,"atomic_gap_ns":3000,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":false,"delegation":true,"fanout":32,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":false,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":2,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4194304},"clients":4,"churn_clients":0,"ops":100,"keys":24,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[60],"scan_one_in":60,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":0,"verb":45,"place":"inside","how":"process"}},{"late_membership":{"cn":1,"late_ns":5000000}},{"cut":{"cn":0,"to":{"compute":1},"at_ns":182006,"for_ns":500000000}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The checker walked before the failover of a node with an unexpired lease was complete: its
/// tables had no new owners. (Checked crashes, seed 894.)
#[test]
fn a_crashed_node_with_an_unexpired_lease_is_not_alive() {
    let case = r##"{"version":5,"system":"dmtree","seed":894,"order":894,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":20000,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":30000,"garbage":false,"point_one_in":0,"call_lost_one_in":3,"refuse_memory_one_in":30},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":2,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4560},"clients":9,"churn_clients":0,"ops":100,"keys":6,"neighbours":3,"key_form":"early","fill_percent":50,"value_bytes":[8,60,200],"scan_one_in":20,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":0,"verb":101,"place":"inside","how":"machine"}}],"lease_ns":100000000}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The checker walked after the membership had completed a failover, but before the survivors had
/// learned of it: no sweep was due, and a record was missing. (Checked crashes, seed 121.)
#[test]
fn a_node_sweeps_before_the_walk_when_it_has_learned_of_a_failure() {
    let case = r##"{"version":5,"system":"dmtree","seed":121,"order":121,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":0,"delay_ns":500,"stall_one_in":0,"replay_one_in":4,"atomic_gap_ns":3000,"garbage":true,"point_one_in":2},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":false,"delegation":false,"fanout":8,"key_inline_bytes":8,"leaf_capacity":32,"mirrors":false,"round_trip_combining":true,"tables":"memory","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":4,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4080},"clients":9,"churn_clients":1,"ops":100,"keys":64,"neighbours":7,"key_form":"late","fill_percent":100,"value_bytes":[60],"scan_one_in":20,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":1,"verb":276,"place":"inside","how":"process"}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A survivor could not release a lock, because the node with the lock had crashed, and continued
/// with its operation. While it waited for the new owner it did not leave its drain ticket, because
/// of that lock, and was expelled. (Checked crashes, seed 401.)
#[test]
fn an_unlock_that_failed_does_not_delay_a_new_owner() {
    let case = r##"{"version":5,"system":"dmtree","seed":401,"order":401,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":2000,"delay_ns":50000,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":30000,"garbage":false,"point_one_in":10},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":32,"key_inline_bytes":8,"leaf_capacity":64,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":11568},"clients":4,"churn_clients":0,"ops":100,"keys":24,"neighbours":15,"key_form":"early","fill_percent":50,"value_bytes":[8],"scan_one_in":0,"wave_ops":40,"liveness":true,"node_faults":[{"crash":{"cn":1,"verb":297,"place":"before","how":"process"}},{"crash":{"cn":2,"verb":271,"place":"inside","how":"machine"}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// While the last verbs of a phase completed, no membership agent ran, and all survivors were
/// expelled. (Checked crashes, seed 1202.)
#[test]
fn leases_do_not_end_between_two_phases() {
    let case = r##"{"version":5,"system":"dmtree","seed":1202,"order":1202,"schedule":"unfair","fabric_faults":{"words":true,"stretch_ns":20000,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":0,"call_lost_one_in":3},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":true,"delegation":true,"fanout":32,"key_inline_bytes":40,"leaf_capacity":64,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":4,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":14832},"clients":6,"churn_clients":0,"ops":120,"keys":24,"neighbours":15,"key_form":"early","fill_percent":50,"value_bytes":[8],"scan_one_in":0,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":0,"verb":39,"place":"inside","how":"process"}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The claimant of a failover called another owner, which hung. It did not renew its lease
/// meanwhile, and was expelled. (Checked crashes, seed 1596.)
#[test]
fn a_membership_agent_that_calls_a_node_that_hangs_keeps_its_own_lease() {
    let case = r##"{"version":5,"system":"dmtree","seed":1596,"order":1596,"schedule":"unfair","fabric_faults":{"words":true,"stretch_ns":200000,"delay_ns":500,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":0,"garbage":true,"point_one_in":2},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":false,"delegation":true,"fanout":32,"key_inline_bytes":40,"leaf_capacity":32,"mirrors":true,"round_trip_combining":false,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4194304},"clients":3,"churn_clients":1,"ops":100,"keys":64,"neighbours":7,"key_form":"late","fill_percent":70,"value_bytes":[200],"scan_one_in":60,"wave_ops":40,"liveness":true,"node_faults":[{"crash":{"cn":0,"verb":139,"place":"inside","how":"hung"}},{"crash":{"cn":2,"verb":20,"place":"inside","how":"hung","back_ns":50000}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A split had found no memory for its record. An ascending scan waited for the record until its
/// deadline. (Checked crashes, seed 1935.)
#[test]
fn a_scan_passes_a_leaf_without_a_record() {
    let case = r##"{"version":5,"system":"dmtree","seed":1935,"order":1935,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":2000,"delay_ns":50000,"stall_one_in":200,"replay_one_in":4,"atomic_gap_ns":0,"garbage":true,"point_one_in":10,"refuse_memory_one_in":3},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":8,"leaf_capacity":64,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":4,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4194304},"clients":9,"churn_clients":1,"ops":100,"keys":64,"neighbours":15,"key_form":"late","fill_percent":100,"value_bytes":[60],"scan_one_in":20,"wave_ops":40,"liveness":true,"node_faults":[{"crash":{"cn":2,"verb":62,"place":"after","how":"machine","back_ns":5000000}}],"lease_ns":100000000}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The locks of an inner node and of its parent shared a FIFO mutex. A client that held
/// one and wanted the other waited for itself, until its node was expelled. (Checked crashes, seed
/// 2370.)
#[test]
fn no_operation_waits_for_a_mutex_that_it_holds() {
    let case = r##"{"version":5,"system":"dmtree","seed":2370,"order":2370,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":2000,"delay_ns":5000,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":true,"point_one_in":2,"call_lost_one_in":3,"refuse_memory_one_in":3},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":false,"delegation":false,"fanout":8,"key_inline_bytes":8,"leaf_capacity":32,"mirrors":false,"round_trip_combining":true,"tables":"memory","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":4,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4080},"clients":6,"churn_clients":2,"ops":120,"keys":64,"neighbours":15,"key_form":"late","fill_percent":100,"value_bytes":[60],"scan_one_in":60,"wave_ops":40,"liveness":true,"node_faults":[{"crash":{"cn":0,"verb":19,"place":"before","how":"machine"}}],"lease_ns":100000000}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// Two nodes failed shortly after each other, and two claimants reassigned the tables of the first
/// at the same time. A leaf had two tables, and a value that had been replaced and deleted
/// reappeared.
#[test]
fn a_table_has_one_owner() {
    let case = r##"{"version":5,"system":"dmtree","seed":102,"order":281474976710758,"schedule":"uniform","fabric_faults":{"words":true,"stretch_ns":200000,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":2},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":false,"delegation":false,"fanout":8,"key_inline_bytes":8,"leaf_capacity":64,"mirrors":true,"round_trip_combining":false,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":4,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4194304},"clients":9,"churn_clients":1,"ops":100,"keys":6,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[8],"scan_one_in":0,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":1,"verb":58,"place":"after","how":"process"}},{"crash":{"cn":0,"verb":107,"place":"after","how":"machine"}}],"kept":[[1],[],[12],[12],[],[12],[0],[0,2],[],[]]}"##;
    let verdict = replay(case).unwrap();
    assert_eq!(verdict.finding, None);
}

/// The end of a phase dropped maintenance in the middle of a merge. The locks that it held were
/// abandoned, and later clients waited for them for ever. (All faults, seed 20126; eight more of
/// one run ended so.)
#[test]
fn a_dropped_merge_releases_its_locks() {
    let case = r##"{"clients":6,"node_faults":[{"late_membership":{"cn":3,"late_ns":5000000}},{"cut":{"at_ns":529394,"cn":1,"for_ns":500000000,"to":{"compute":0}}}],"fill_percent":70,"churn_clients":1,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":30000,"call_lost_one_in":3,"delay_ns":50000,"garbage":true,"point_one_in":0,"refuse_memory_one_in":30,"replay_one_in":0,"stall_one_in":0,"stretch_ns":200000,"words":true},"key_form":"late","keys":64,"liveness":true,"neighbours":7,"ops":120,"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"order":20126,"pool":{"cache_bytes":4560,"compute_nodes":4,"generation_bits":2,"memory_bytes":33554432,"memory_nodes":2},"scan_one_in":20,"schedule":"unfair","seed":20126,"system":"dmtree","value_bytes":[8,60,200],"version":5,"wave_ops":40}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The same during an attempt at the lock: the compare-and-swap executed after its caller was
/// dropped. (All faults, seed 20609.)
#[test]
fn a_dropped_lock_attempt_does_not_lose_the_lock() {
    let case = r##"{"clients":6,"node_faults":[{"cut":{"at_ns":765654,"cn":2,"for_ns":200000,"to":{"memory":0}}}],"fill_percent":100,"churn_clients":2,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":0,"delay_ns":50000,"garbage":false,"point_one_in":0,"refuse_memory_one_in":30,"replay_one_in":0,"stall_one_in":0,"stretch_ns":2000,"words":false},"key_form":"early","keys":24,"liveness":true,"neighbours":3,"ops":100,"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"order":20609,"pool":{"cache_bytes":4560,"compute_nodes":4,"generation_bits":16,"memory_bytes":33554432,"memory_nodes":2},"scan_one_in":60,"schedule":"uniform","seed":20609,"system":"dmtree","value_bytes":[60],"version":5,"wave_ops":0}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A sweep after a node failure was dropped with its caller. No client swept the rest of the tree,
/// and a table was not built. (All faults, seed 21869.)
#[test]
fn a_dropped_sweep_begins_again() {
    let case = r##"{"clients":6,"node_faults":[{"freeze":{"cn":1,"for_ns":100000000,"verb":18}},{"cut":{"at_ns":1644005,"cn":0,"for_ns":500000000,"to":{"memory":1}}}],"fill_percent":70,"churn_clients":1,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":3000,"delay_ns":50000,"garbage":true,"point_one_in":2,"refuse_memory_one_in":30,"replay_one_in":0,"stall_one_in":0,"stretch_ns":2000,"words":true},"key_form":"late","keys":24,"liveness":true,"neighbours":15,"ops":100,"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"order":21869,"pool":{"cache_bytes":4194304,"compute_nodes":4,"generation_bits":2,"memory_bytes":33554432,"memory_nodes":2},"scan_one_in":20,"schedule":"unfair","seed":21869,"system":"dmtree","value_bytes":[8],"version":5,"wave_ops":0}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A client that completed a crashed client's split read the new leaf's address, and the leaf was
/// moved before the client locked the parent. The parent got two records with one key, and readers
/// took them for a relocation in progress. (All faults, seed 638.)
#[test]
fn a_record_is_added_once_per_key() {
    let case = r##"{"clients":6,"node_faults":[{"crash":{"back_ns":5000000,"cn":1,"how":"machine","place":"before","verb":143}},{"crash":{"back_ns":200000000,"cn":2,"how":"machine","place":"after","verb":32}},{"drift":{"cn":0,"ppm":-40000}},{"late_membership":{"cn":2,"late_ns":12000000}}],"fill_percent":100,"churn_clients":1,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":3000,"delay_ns":5000,"garbage":true,"point_one_in":2,"replay_one_in":0,"stall_one_in":20,"stretch_ns":2000,"words":false},"key_form":"early","keys":64,"lease_ns":100000000,"liveness":true,"neighbours":15,"ops":120,"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":8,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"order":638,"pool":{"cache_bytes":4080,"compute_nodes":3,"generation_bits":2,"memory_bytes":33554432,"memory_nodes":2},"scan_one_in":0,"schedule":"unfair","seed":638,"system":"dmtree","value_bytes":[8,5000],"version":5,"wave_ops":40}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The same with fence keys in blocks. (Checked crashes, seed 5296.)
#[test]
fn a_record_is_added_once_per_key_with_long_keys() {
    let case = r##"{"clients":9,"node_faults":[{"crash":{"cn":1,"how":"process","place":"before","verb":52}}],"fill_percent":100,"churn_clients":0,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":0,"call_lost_one_in":3,"delay_ns":500,"garbage":true,"point_one_in":10,"replay_one_in":4,"stall_one_in":20,"stretch_ns":2000,"words":true},"key_form":"late","keys":64,"liveness":true,"neighbours":15,"ops":120,"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":8,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"order":5296,"pool":{"cache_bytes":4080,"compute_nodes":2,"generation_bits":2,"memory_bytes":33554432,"memory_nodes":1},"scan_one_in":20,"schedule":"unfair","seed":5296,"system":"dmtree","value_bytes":[5000],"version":5,"wave_ops":40}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The checker ran the last maintenance node by node. The maintenance of the first node waited for
/// a lock that the second node had abandoned. (All faults, seed 23293.)
#[test]
fn an_abandoned_lock_of_one_node_does_not_block_the_maintenance_of_another() {
    let case = r##"{"clients":4,"node_faults":[{"crash":{"cn":2,"how":"hung","place":"inside","verb":12}},{"drift":{"cn":2,"ppm":-40000}},{"late_membership":{"cn":2,"late_ns":12000000}},{"cut":{"at_ns":127395,"cn":1,"for_ns":10000000,"to":{"compute":0}}}],"fill_percent":100,"churn_clients":1,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":3000,"call_lost_one_in":3,"delay_ns":50000,"garbage":true,"point_one_in":0,"replay_one_in":4,"stall_one_in":20,"stretch_ns":2000,"words":true},"key_form":"early","keys":24,"liveness":true,"neighbours":3,"ops":100,"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":40,"leaf_capacity":32,"mirrors":false,"round_trip_combining":false,"tables":"memory","timeout_ms":10000,"value_inline_bytes":8},"order":23293,"pool":{"cache_bytes":5040,"compute_nodes":3,"generation_bits":16,"memory_bytes":33554432,"memory_nodes":1},"scan_one_in":0,"schedule":"unfair","seed":23293,"system":"dmtree","value_bytes":[200],"version":5,"wave_ops":0}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A merge had lost its parent's memory node for good, so its locks cannot be released. Other
/// clients waited until their deadlines, and their errors did not name the lost node. (All faults,
/// seed 31982.)
#[test]
fn a_wait_for_lost_memory_ends_in_an_error_that_names_it() {
    let case = r##"{"version":5,"system":"dmtree","seed":31982,"order":31982,"schedule":"unfair","fabric_faults":{"words":true,"stretch_ns":0,"delay_ns":500,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":true,"point_one_in":2},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":40,"leaf_capacity":32,"mirrors":false,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":4,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4194304},"clients":6,"churn_clients":1,"ops":100,"keys":24,"neighbours":7,"key_form":"late","fill_percent":70,"value_bytes":[60],"scan_one_in":60,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":0,"verb":19,"place":"before","how":"machine","back_ns":50000}},{"drift":{"cn":0,"ppm":-40000}},{"lose_memory":{"mn":1,"cn":0,"verb":144}},{"drop":{"cn":1,"verb":177}},{"drop":{"cn":1,"verb":9}},{"drop":{"cn":1,"verb":30}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A table was on a memory node that was lost. Writers waited for a new owner, but tables of memory
/// nodes are never reassigned. (All faults, seed 30023.)
#[test]
fn a_table_on_a_lost_memory_node_gives_an_error_that_names_it() {
    let case = r##"{"version":5,"system":"dmtree","seed":30023,"order":30023,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":20000,"delay_ns":50000,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":30000,"garbage":true,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":32,"key_inline_bytes":8,"leaf_capacity":64,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":4,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4194304},"clients":4,"churn_clients":2,"ops":100,"keys":64,"neighbours":7,"key_form":"early","fill_percent":50,"value_bytes":[200],"scan_one_in":60,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":3,"verb":5,"place":"inside","how":"process","back_ns":50000}},{"late_membership":{"cn":2,"late_ns":1000000}},{"lose_memory":{"mn":1,"cn":1,"verb":373}}],"lease_ns":100000000}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A leaf was moved, and its successor was merged away together with the block of their fence key.
/// A client that passed the tombstone took the block for garbage. (All faults, seed 104094.)
#[test]
fn the_fence_keys_of_a_tombstone_are_not_read() {
    let case = r##"{"clients":6,"node_faults":[{"drift":{"cn":2,"ppm":-1000}},{"late_membership":{"cn":2,"late_ns":12000000}},{"freeze":{"cn":2,"for_ns":100000000,"verb":29}}],"fill_percent":100,"churn_clients":1,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":3000,"call_lost_one_in":3,"delay_ns":500,"garbage":false,"point_one_in":0,"refuse_memory_one_in":3,"replay_one_in":4,"stall_one_in":20,"stretch_ns":0,"words":false},"key_form":"late","keys":6,"liveness":true,"neighbours":15,"ops":100,"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":8,"leaf_capacity":64,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"order":104094,"pool":{"cache_bytes":4080,"compute_nodes":3,"generation_bits":2,"memory_bytes":33554432,"memory_nodes":1},"scan_one_in":0,"schedule":"unfair","seed":104094,"system":"dmtree","value_bytes":[200],"version":5,"wave_ops":0}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A client that waited for the lock of an inner node recovered a leaf meanwhile. The record of the
/// leaf's sibling belongs into the same node, so the client queued behind itself until its node was
/// expelled. (All faults, seed 104865.)
#[test]
fn no_leaf_is_recovered_under_a_mutex_that_the_recovery_needs() {
    let case = r##"{"clients":4,"node_faults":[{"crash":{"back_ns":50000,"cn":0,"how":"process","place":"before","verb":68}},{"drop":{"cn":0,"verb":354}},{"drop":{"cn":1,"verb":9}},{"drop":{"cn":2,"verb":48}}],"fill_percent":100,"churn_clients":1,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":0,"delay_ns":50000,"garbage":false,"point_one_in":10,"refuse_memory_one_in":30,"replay_one_in":0,"stall_one_in":0,"stretch_ns":200000,"words":false},"key_form":"late","keys":24,"lease_ns":100000000,"liveness":true,"neighbours":7,"ops":120,"options":{"adaptive_capacity":true,"combining":false,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":false,"round_trip_combining":false,"tables":"memory","timeout_ms":10000,"value_inline_bytes":8},"order":104865,"pool":{"cache_bytes":4560,"compute_nodes":3,"generation_bits":16,"memory_bytes":33554432,"memory_nodes":1},"scan_one_in":0,"schedule":"unfair","seed":104865,"system":"dmtree","value_bytes":[8,60,200],"version":5,"wave_ops":0}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// The checker waited for the last maintenance with a link that was cut and never healed. (All
/// faults, seed 114256.)
#[test]
fn links_are_healed_before_the_last_maintenance() {
    let case = r##"{"clients":4,"node_faults":[{"drift":{"cn":2,"ppm":-40000}},{"late_membership":{"cn":0,"late_ns":5000000}},{"cut":{"at_ns":1891664,"cn":2,"for_ns":500000000,"to":{"memory":0}}}],"fill_percent":50,"churn_clients":1,"grants":{"cas_fail_is_readonly":false,"line_atomic":false,"on_chip_bytes":0,"raw_cross_qp":false,"whole_write_bytes":0,"write_ascending":false},"fabric_faults":{"atomic_gap_ns":0,"delay_ns":5000,"garbage":true,"point_one_in":10,"replay_one_in":4,"stall_one_in":0,"stretch_ns":0,"words":true},"key_form":"late","keys":24,"liveness":true,"neighbours":3,"ops":120,"options":{"adaptive_capacity":false,"combining":false,"delegation":false,"fanout":32,"key_inline_bytes":40,"leaf_capacity":32,"mirrors":false,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"order":114256,"pool":{"cache_bytes":14832,"compute_nodes":4,"generation_bits":16,"memory_bytes":33554432,"memory_nodes":2},"scan_one_in":20,"schedule":"unfair","seed":114256,"system":"dmtree","value_bytes":[8,5000],"version":5,"wave_ops":0}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A sweep after a node failure met a table without contents. A client held its lock to attempt a
/// merge, and the sweep assumed that this client would build the table. The client released the
/// lock, and the table stayed unbuilt. (All faults, seed 305458.)
#[test]
fn a_sweep_reads_a_locked_table_again() {
    let case = r##"{"version":5,"system":"dmtree","seed":305458,"order":281474977016114,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":20000,"delay_ns":5000,"stall_one_in":200,"replay_one_in":4,"atomic_gap_ns":3000,"garbage":false,"point_one_in":2},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":32,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":13200},"clients":4,"churn_clients":1,"ops":120,"keys":64,"neighbours":7,"key_form":"late","fill_percent":50,"value_bytes":[200],"scan_one_in":0,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":2,"verb":188,"place":"after","how":"hung"}},{"freeze":{"cn":2,"verb":59,"for_ns":5000000}}],"kept":[[],[0,1,2,6,8,12,13,14,15,16,17,18,19,20,24,25,26,27,28],[0,1,2,3,4,5,6,8,12,14,15,16,17,18,20],[0,1,2,3,4,5,6,7,8,12,13,15,17,18,19,21,22,23,24,25,26,27,28,29],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119,120,121,122,123,124,125,126,127,128,129,130,131,132,133,134,135,136,137,138,139,140,141,142,143,144,145,146,147]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A crashed client had torn a leaf, and the leaf's lock was on a memory node that was lost. No
/// client can recover the leaf. Readers waited until their deadlines instead of naming the node.
/// (All faults, seed 313716.)
#[test]
fn a_wait_for_a_leaf_with_a_lost_lock_ends_in_an_error_that_names_it() {
    let case = r##"{"version":5,"system":"dmtree","seed":313716,"order":313716,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":20000,"delay_ns":5000,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":false,"delegation":false,"fanout":32,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"memory","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4194304},"clients":9,"churn_clients":1,"ops":120,"keys":64,"neighbours":15,"key_form":"late","fill_percent":50,"value_bytes":[8],"scan_one_in":60,"wave_ops":40,"liveness":false,"node_faults":[{"crash":{"cn":0,"verb":59,"place":"after","how":"process"}},{"lose_memory":{"mn":1,"cn":2,"verb":100}}],"kept":[[0,1,2],[0,1,3],[9],[8,9,10],[8,9],[],[0,1,2],[8,9,13],[14],[0,1]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A leaf was moved, a recovery bypassed it, and the leaf that it had been moved to was merged
/// away. The right link of its left sibling then led elsewhere, and maintenance searched the link
/// to the tombstone for ever. (All faults, seed 414592.)
#[test]
fn a_tombstone_with_a_merged_successor_is_unlinked_already() {
    let case = r##"{"version":5,"system":"dmtree","seed":414592,"order":562949953835904,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":20000,"delay_ns":500,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":2,"call_lost_one_in":3},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":40,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":3,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":5040},"clients":6,"churn_clients":1,"ops":100,"keys":64,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[200],"scan_one_in":0,"wave_ops":40,"liveness":true,"node_faults":[{"crash":{"cn":2,"verb":15,"place":"after","how":"hung","back_ns":5000000}},{"drift":{"cn":0,"ppm":-40000}},{"late_membership":{"cn":1,"late_ns":12000000}}]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A client with a stale record locked the table of a leaf that had been merged away and retired,
/// and was dropped before it learned this. The client that recovered the abandoned lock assumed
/// that the leaf's removal was unfinished, and retired it again: the leaf was in the free lists of
/// two nodes. The first garbage collection found this. (All faults, seed 403576.)
#[test]
fn a_closed_leaf_is_retired_once() {
    let case = r##"{"version":5,"system":"dmtree","seed":403576,"order":403576,"schedule":"uniform","fabric_faults":{"words":true,"stretch_ns":0,"delay_ns":50000,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":0,"garbage":true,"point_one_in":10},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":40,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":2,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":5040},"clients":3,"churn_clients":1,"ops":120,"keys":64,"neighbours":3,"key_form":"early","fill_percent":100,"value_bytes":[60],"scan_one_in":0,"wave_ops":0,"liveness":false,"node_faults":[{"drop":{"cn":0,"verb":392}}],"kept":[[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,17,19],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119,120,121,122,123,124,125,126,127,128,129,130,131,132,133,134,135,136,137,138,139,140,141,142,143]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A leaf was in a failed node's free list. Garbage collection blanked it, because old records may
/// still lead there, and the checker took this for a WRITE to freed memory. Memory in a failed
/// node's free list has no owner. (Crashes, seed 1314.)
#[test]
fn memory_on_the_free_list_of_a_failed_node_may_be_blanked() {
    let case = r##"{"version":5,"system":"dmtree","seed":1314,"order":844424930133282,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":0,"delay_ns":5000,"stall_one_in":0,"replay_one_in":4,"atomic_gap_ns":30000,"garbage":false,"point_one_in":0,"call_lost_one_in":3,"refuse_memory_one_in":3},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":40,"leaf_capacity":32,"locks":16384,"mirrors":true,"on_chip":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":5040},"clients":4,"churn_clients":1,"ops":100,"keys":24,"neighbours":3,"key_form":"late","fill_percent":70,"value_bytes":[8,60,200],"scan_one_in":20,"wave_ops":0,"liveness":false,"node_faults":[{"crash":{"cn":0,"verb":18,"place":"inside","how":"machine"}}],"kept":[[],[0,1,2,3,4,5,10,12,14,16,17,19,20,21,22,23,24,25,26,27,28,29,30,32,34,35,36,38,39,41,42,43,44],[],[0,1,2,3],[]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A write had failed at a table owner that had just crashed. The next get of its node, on another
/// leaf, recovered the abandoned lock first, and waited until the fabric gave up. Operations now
/// recover abandoned locks only on nodes that have answered a probe, and do not wait for the probe.
#[test]
fn a_get_does_not_wait_for_the_owner_of_an_abandoned_lock() {
    let case = r##"{"version":5,"system":"dmtree","seed":603862,"order":603862,"schedule":"uniform","fabric_faults":{"words":false,"stretch_ns":0,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":16,"key_inline_bytes":40,"leaf_capacity":32,"locks":16384,"mirrors":true,"on_chip":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":4,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":2,"cache_bytes":4194304},"clients":3,"churn_clients":1,"ops":120,"keys":4,"neighbours":7,"key_form":"late","fill_percent":50,"value_bytes":[8],"scan_one_in":60,"wave_ops":0,"liveness":true,"node_faults":[{"crash":{"cn":2,"verb":14,"place":"after","how":"process"}}],"kept":[[0,1,2,3,4,5],[0,1],[0,1],[4,5,6,7,8,9,10,11,12]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A client waited long for the lock of a tombstone that a stale route had led to, and READ its
/// fence key. The block of the fence key belonged to its successor, which had been merged away, and
/// was free. A stall diagnosis relies on nothing that it READs, so there was no wrong result, but
/// it was a READ of freed memory. It is now an unvalidated read
/// ([`dmtree_fabric::verb::read_unvalidated`]). (All faults, seed 611664.)
#[test]
fn a_stall_diagnosis_may_read_freed_memory() {
    let case = r##"{"version":5,"system":"dmtree","seed":611664,"order":562949954032976,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":2000,"delay_ns":50000,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":10,"refuse_memory_one_in":3},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":32,"key_inline_bytes":8,"leaf_capacity":32,"locks":16384,"mirrors":true,"on_chip":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4194304},"clients":3,"churn_clients":1,"ops":100,"keys":64,"neighbours":7,"key_form":"late","fill_percent":100,"value_bytes":[8],"scan_one_in":20,"wave_ops":0,"liveness":false,"node_faults":[{"crash":{"cn":2,"verb":22,"place":"before","how":"hung"}},{"cut":{"cn":1,"to":{"compute":2},"at_ns":167446,"for_ns":10000000}}],"lease_ns":100000000,"kept":[[6,8,9,11],[0,1,2,3,4,5,12,13,14,15,16,17],[0,1],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119,120,121,122,123,124,125,126,127,128,129,130,131,132,133,134,144,145,146,147,148,149]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A node was paused for the length of its lease. Another compute node had revoked the access of
/// the paused node to itself, and reclaimed memory without a check of the epoch of the paused node,
/// while the memory nodes still served the paused node. That node read a block that was freed under
/// its pin. A node that a memory node serves is now always asked. (All faults, seed 614564.)
#[test]
fn a_node_is_asked_for_its_epoch_until_no_memory_node_serves_it() {
    let case = r##"{"version":5,"system":"dmtree","seed":614564,"order":844424930746532,"schedule":"unfair","fabric_faults":{"words":true,"stretch_ns":200000,"delay_ns":5000,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":2,"refuse_memory_one_in":3},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":32,"key_inline_bytes":8,"leaf_capacity":32,"locks":16384,"mirrors":true,"on_chip":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":4,"memory_nodes":1,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":4194304},"clients":4,"churn_clients":1,"ops":100,"keys":24,"neighbours":7,"key_form":"late","fill_percent":70,"value_bytes":[5000],"scan_one_in":20,"wave_ops":40,"liveness":false,"node_faults":[{"freeze":{"cn":1,"verb":7,"for_ns":100000000}}],"lease_ns":100000000,"kept":[[37],[22],[],[],[126,127,128,129,130,131,132,133,134,135,136,137,138,139,140,141,142,143,144,145,146,147,148,149,150,151,152,153,154,155,156,157,158,159,160,161,162,163,164,165,166,167,168,169,170,171,172,173,174,175,176,177,178,179,180,181,182,183,184,185]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// A phase had ended during maintenance, which had just locked an inner node. Its verb was still in
/// flight when all nodes searched for remaining work, and none found the lock: the checker had not
/// waited. (All faults, seed 681239.)
#[test]
fn the_checker_waits_for_operations_that_the_end_of_a_phase_drops() {
    let case = r##"{"version":5,"system":"dmtree","seed":681239,"order":562949954102551,"schedule":"unfair","fabric_faults":{"words":false,"stretch_ns":200000,"delay_ns":50000,"stall_one_in":20,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":40,"leaf_capacity":32,"locks":16384,"mirrors":true,"on_chip":true,"round_trip_combining":false,"tables":"compute","timeout_ms":10000,"value_inline_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"generation_bits":16,"cache_bytes":5040},"clients":6,"churn_clients":1,"ops":120,"keys":64,"neighbours":7,"key_form":"late","fill_percent":50,"value_bytes":[5000],"scan_one_in":0,"wave_ops":40,"liveness":true,"node_faults":[{"cut":{"cn":2,"to":{"memory":0},"at_ns":1834647,"for_ns":200000}}],"kept":[[0,1,2,3,4,5,6,7,8,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119],[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68,69,70,71,72,73,74,75,76,77,78,79,80,81,82,83,84,85,86,87,88,89,90,91,92,93,94,95,96,97,98,99,100,101,102,103,104,105,106,107,108,109,110,111,112,113,114,115,116,117,118,119,120,121,122,123,124,125,126,127,128,129,130,131,132,133,134,135,136,137,138,139,140,141,142,143,144,145,146,147,148,149,150,151,152,153,154,155,156,157,158,159,160,161,162,163,164,165,166,167,168,169,170,171,172,173,174,175,176,177,178,179,180,181,182,183,184,185,186,187,188,189,190,191,192,193,194,195,196,197,198,199,200,201,202,203,204,205,206,207,208,209,210,211,212,213,214,215,216,217,218,219,220,221,222,223,224,225,226,227,228,229,230,231,232,233,234,235,236,237,238,239,240,241,242,243,244,245,246,247,248,249,250,251,252,253,254,255,256,257,258,259,260,261,262,263,264,265,266,267,268,269,270,271,272,273,274,275,276,277,278,279,280,281,282,283,284,285,286,287,288,289,290,291,292,293,294,295,296,297,298,299,300,301,302,303,304,305,306,307,308,309,310,311,312,313,314,315,316,317,318,319,320,321,322,323,324,325,326,327,328,329,330,331,332,333,334,335,336,337,338,339,340,341,342,343,344,345,346,347,348,349,350,351,352,353,354,355,356,357,358,359,360,361,362,363,364,365,366,367,368,369,370,371,372,373,374,375,376,377,378,379,380,381,382,383,384,385,386,387,388,389,390,391,392,393,394,395,396,397,398,399,400,401,402,403,404,405,406,407,408,409,410,411,412,413,414,415,416,417,418,419,420,421,422,423,424,425,426,427,428,429,430,431,432,433,434,435,436,437,438,439,440,441,442,443,444,445,446,447,448,449,450,451,452,453,454,455,456,457,458,459,460,461,462,463,464,465,466,467,468,469,470,471,472,473,474,475,476,477,478,479,480,481,482,483,484,485,486,487,488,489,490,491,492,493,494,495,496,497,498,499,500,501,502,503,504,505,506,507,508,509,510,511,512,513,514,515,516,517,518,519,520,521,522,523,524,525,526,527,528,529,530,531,532,533,534,535,536,537,538,539,540,541,542,543,544,545,546,547,548,549,550,551,552,553,554,555,556,557,558,559,560,561,562,563,564,565,566,567,568,569,570,571,572,573,574,575,576,577,578,579,580,581,582,583,584,585,586,587,588,589,590,591,592,593,594,595,596,597,598,599]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}
