//! Exhaustive exploration: every order of the verbs of small cases.

use dmtree_bench::registry::find;
use dmtree_check::exhaustive::Depth;
use dmtree_fabric::Capabilities;

/// Two clients with few orders: none goes wrong. Of two cases all orders are explored; the others
/// have more.
#[test]
fn no_order_of_two_small_operations_goes_wrong() {
    let dmtree = find("dmtree").unwrap();
    let depth = Depth { switches: u32::MAX, paths: 200 };
    for seed in [1, 2, 5, 7, 8] {
        let case = dmtree.tiny(seed, Capabilities::NONE);
        let e = dmtree.explore(&case, depth, &|| true).unwrap();
        assert!(e.wrong.is_none(), "seed {seed}: {:?}", e.wrong);
        assert!(e.paths > 20 && e.longest > 5, "seed {seed}: {} paths", e.paths);
        assert_eq!(e.complete, [1, 5].contains(&seed), "seed {seed}");
    }
}

/// The exploration returns a case that replays a wrong order.
#[test]
fn a_published_system_fails_in_some_order_and_replays() {
    let published = find("dmtree-published").unwrap();
    let depth = Depth { switches: 4, paths: 400 };
    let (case, verdict) = (0..20)
        .find_map(|seed| {
            let case = published.tiny(seed, Capabilities::NONE);
            published.explore(&case, depth, &|| true).unwrap().wrong
        })
        .expect("an order that goes wrong");
    assert!(case.choices.is_some());
    assert_eq!(published.check(&case).unwrap().finding, verdict.finding);
}
