//! Cases: what a seed draws, what a file may say, and the verdicts of runs.

use dmtree_check::case::{CASE_VERSION, KeyForm};
use dmtree_check::checked::{granted, grants};
use dmtree_check::plan::{identity, key, number, value};
use dmtree_check::{Case, Finding, NodeFault, NodeFaultSet, Verdict};

fn case(seed: u64) -> Case {
    Case::of_any_system(seed, None)
}

#[test]
fn every_seed_is_large_enough_and_survives_json() {
    for seed in 0..500 {
        let c = case(seed);
        c.check().unwrap();
        assert!(c.clients >= 3 && c.pool.compute_nodes >= 2 && c.keys <= 64, "{c:?}");
        assert!(c.operations() >= 200, "{c:?}");
        assert_eq!(Case::parse(&c.to_json()).unwrap(), c);
        assert_eq!(case(seed), c);
    }
    assert_ne!(case(1).fingerprint(), case(2).fingerprint());
}

#[test]
fn invalid_cases_are_refused() {
    let good = case(1).to_json();
    let version = format!("\"version\":{CASE_VERSION}");
    for (bad, words) in [
        (good.replace(&version, "\"version\":99"), "version 99"),
        (good.replace(&version, "\"versoin\":1"), "no version"),
        (good.replace("\"clients\"", "\"cleints\""), "cleints"),
        ("{".to_owned(), "not JSON"),
        (Case { clients: 0, ..case(1) }.to_json(), "clients is 0"),
        (Case { value_bytes: vec![4], ..case(1) }.to_json(), "value_bytes is 4"),
        (Case { keys: 64, neighbours: 1000, ..case(1) }.to_json(), "neighbours"),
    ] {
        let e = Case::parse(&bad).expect_err(words).to_string();
        assert!(e.contains(words), "{e}");
    }
}

#[test]
fn faults_are_a_function_of_the_seed_and_leave_a_node() {
    let mut case = Case::of_any_system(0, None);
    (case.pool.compute_nodes, case.pool.memory_nodes) = (3, 2);
    // Another number is another version of cases.
    let of_seed = |s| NodeFault::draw(NodeFaultSet::All, s, &case);
    let first = Case { node_faults: (0..50).flat_map(of_seed).collect(), ..case.clone() };
    assert_eq!(first.fingerprint(), 46_359_736);
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..2_000 {
        let drawn = |set| {
            let drawn = NodeFault::draw(set, seed, &case);
            assert_eq!(drawn, NodeFault::draw(set, seed, &case));
            drawn
        };
        assert!(drawn(NodeFaultSet::None).is_empty());
        for set in [NodeFaultSet::Crash, NodeFaultSet::All] {
            let drawn = drawn(set);
            let crashed = drawn.iter().filter(|f| matches!(f, NodeFault::Crash { .. })).count();
            assert!(crashed < 3 && (set == NodeFaultSet::All || crashed > 0), "{drawn:?}");
        }
        let drawn = drawn(NodeFaultSet::Restarts);
        assert!(!drawn.is_empty());
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

#[test]
fn keys_are_in_order_and_come_back() {
    for form in [KeyForm::Early, KeyForm::Late] {
        let keys: Vec<_> = (0..1800).map(|n| key(form, n)).collect();
        assert!(keys.windows(2).all(|w| w[0] < w[1]));
        assert!(keys.iter().all(|k| k.len() == 24));
        assert!((0..1800).all(|n| number(form, &key(form, n)) == Some(n)));
        assert_eq!(number(form, b"key-00000000000000000001"), None);
        assert_eq!(number(form, b"other"), None);
    }
    assert!(key(KeyForm::Late, 0)[..8] == key(KeyForm::Late, 1799)[..8]);
    assert!(key(KeyForm::Early, 0)[..8] != key(KeyForm::Early, 1)[..8]);
}

#[test]
fn torn_values_are_recognised() {
    for bytes in [8, 20, 200] {
        assert_eq!(identity(&value(77, bytes)), Some(77));
    }
    let mut torn = value(1, 64);
    torn[40..].copy_from_slice(&value(2, 64)[40..]);
    assert_eq!(identity(&torn), None);
    assert_eq!(identity(b"short"), None);
}

#[test]
fn grants_have_names() {
    let names = ["line_atomic", "write_ascending", "cas_fail_is_readonly", "whole_write"];
    assert_eq!(granted(&grants(&names).unwrap()), names);
    assert!(granted(&grants(&["none"]).unwrap()).is_empty());
    assert!(grants(&["x"]).unwrap_err().to_string().contains("line_atomic"));
}

#[test]
fn runs_of_one_case_that_differ_are_a_finding() {
    let mut verdict = Verdict { trace_hash: 1, ..Verdict::default() };
    verdict.compare(&verdict.clone());
    assert_eq!(verdict.finding, None);
    verdict.compare(&Verdict { trace_hash: 2, ..Verdict::default() });
    assert_eq!(verdict.finding.unwrap().kind(), "repeat");
    let failed = Finding::Other("failed", None, String::new());
    let mut verdict = Verdict { finding: Some(failed.clone()), ..Verdict::default() };
    verdict.compare(&Verdict { trace_hash: 2, ..Verdict::default() });
    assert_eq!(verdict.finding, Some(failed), "an earlier finding stays");
}
