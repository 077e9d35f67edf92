//! Cases that `dmtree check` has found and made small, or that must keep finding what they find.

use dmtree_bench::checked::replay;

/// As published a lock is lost when a compare-and-swap that fails writes back what it read: an unlock between its halves is undone.
/// The replay must show it, or the fabric or the checker have gone blind.
#[test]
fn a_published_lock_is_lost_between_the_halves_of_an_atomic() {
    let case = r##"{"version":2,"system":"dmtree-published","seed":1,"order":844424930131969,"schedule":"uniform","hazards":{"words":false,"stretch_ns":0,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":30000,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_bytes":24,"leaf_capacity":32,"locks":"table","mirrors":true,"round_trip_combining":false,"table_chunk_bytes":33554432,"tables":"compute","timeout_ms":10000,"value_bytes":8},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"life_bits":2,"cache_bytes":3288},"clients":2,"gardeners":0,"ops":120,"keys":1,"neighbours":0,"key_form":"early","fill_percent":70,"value_bytes":[8],"scan_one_in":60,"wave_ops":0,"liveness":false,"kept":[[14],[13]]}"##;
    let finding = replay(case).unwrap().finding.unwrap();
    assert_eq!(finding.kind(), "failed");
    assert!(finding.to_string().contains("lock of a leaf"), "{finding}");
    let granted = case.replace("\"cas_fail_is_readonly\":false", "\"cas_fail_is_readonly\":true");
    assert_eq!(replay(&granted).unwrap().finding, None);
}

/// A READ of an inner node around the replacement of its first record (a leaf moves to get more slots) shows the new place as it was
/// before and the old one as it is after: no first record. That is an image to be read again, not a broken node.
#[test]
fn a_node_sampled_around_the_replacement_of_its_first_record_is_read_again() {
    let case = r##"{"version":2,"system":"dmtree","seed":5148,"order":562949953426460,"schedule":"unfair","hazards":{"words":false,"stretch_ns":20000,"delay_ns":500,"stall_one_in":200,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":false,"point_one_in":0},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":true,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":32,"mirrors":true,"round_trip_combining":true,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":2,"memory_nodes":1,"memory_bytes":33554432,"life_bits":2,"cache_bytes":4560},"clients":9,"gardeners":0,"ops":120,"keys":64,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[8],"scan_one_in":0,"wave_ops":0,"liveness":false,"kept":[[0,1,3,4,5,7,8,9,10,11,12],[0,1,2,3,4,5,6,7,8,9,10],[0,1,3],[7,8,9,10,11,12,13,14],[0,1,2,3,4,5,7,8],[0,1,2,3,4,5,6],[0,1,2,3,4,5,6,7],[0,1,2,3,4],[0,1,2,3,4,5]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// An inner node was split when there was no memory for splitting the node above it: its record was left out, and nobody added it
/// when there was memory again. Now it is a chore, as a leaf's record is.
#[test]
fn the_record_of_an_inner_node_is_added_when_there_is_memory_again() {
    let case = r##"{"version":1,"system":"dmtree","seed":192,"order":844424930132160,"schedule":"uniform","hazards":{"words":false,"stretch_ns":200000,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":3000,"garbage":false,"point_one_in":2,"refuse_memory_one_in":30},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":true,"combining":false,"delegation":true,"fanout":8,"key_inline_bytes":24,"leaf_capacity":64,"mirrors":true,"round_trip_combining":false,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":3,"memory_nodes":2,"memory_bytes":33554432,"life_bits":16,"cache_bytes":4194304},"clients":9,"gardeners":2,"ops":100,"keys":24,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[5000],"scan_one_in":60,"wave_ops":0,"liveness":false,"kept":[[0],[3],[0],[1],[1],[0,1,2],[2],[4],[0,1,3],[],[19,20,22]]}"##;
    assert_eq!(replay(case).unwrap().finding, None);
}

/// Two nodes died one soon after the other, and two claimants gave the tables of the first new homes at the same time: a leaf had
/// two tables, and a value that had been replaced and deleted came back.
#[test]
fn a_table_has_one_home() {
    let case = r##"{"version":2,"system":"dmtree","seed":102,"order":281474976710758,"schedule":"uniform","hazards":{"words":true,"stretch_ns":200000,"delay_ns":500,"stall_one_in":0,"replay_one_in":0,"atomic_gap_ns":0,"garbage":false,"point_one_in":2},"grants":{"line_atomic":false,"write_ascending":false,"raw_cross_qp":false,"cas_fail_is_readonly":false,"whole_write_bytes":0,"on_chip_bytes":0},"options":{"adaptive_capacity":false,"combining":false,"delegation":false,"fanout":8,"key_inline_bytes":8,"leaf_capacity":64,"mirrors":true,"round_trip_combining":false,"tables":"compute","timeout_ms":10000,"value_inline_bytes":64},"pool":{"compute_nodes":4,"memory_nodes":2,"memory_bytes":33554432,"life_bits":16,"cache_bytes":4194304},"clients":9,"gardeners":1,"ops":100,"keys":6,"neighbours":15,"key_form":"early","fill_percent":100,"value_bytes":[8],"scan_one_in":0,"wave_ops":0,"liveness":true,"faults":[{"crash":{"cn":1,"verb":58,"place":"after","how":"process"}},{"crash":{"cn":0,"verb":107,"place":"after","how":"machine"}}],"kept":[[1],[],[12],[12],[],[12],[0],[0,2],[],[]]}"##;
    let verdict = replay(case).unwrap();
    assert_eq!(verdict.finding, None);
}
