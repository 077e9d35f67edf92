//! Campaigns end.

use dmtree_check::campaign::Campaign;
use dmtree_check::checked::System;
use dmtree_check::clock;
use dmtree_check::peer::toy::Options;
use dmtree_parts::peer::SystemSpec;

fn campaign(threads: usize) -> Campaign {
    let toy = SystemSpec::of(("toy", "toy"), "a map", Options::default());
    Campaign { systems: vec![System(toy)], seeds: 3..6, threads, ..Campaign::default() }
}

/// Regression: the campaign waited for the panicked thread for ever.
#[test]
fn a_checker_that_panics_ends_it() {
    let mut campaign = campaign(2);
    campaign.systems[0].0.draw = |_, _| panic!("no run");
    let e = campaign.run(&mut |_| {}).unwrap_err().to_string();
    assert!(e.contains("panicked") && e.contains("no run"), "{e}");
}

#[test]
fn time_and_the_user_end_it() {
    let late = Campaign { until: Some(clock::now()), ..campaign(1) };
    assert_eq!(late.run(&mut |_| {}).unwrap().line(), "seeds 0 operations 0 violations 0");
    let none = Campaign { seeds: 5..5, ..campaign(1) };
    assert!(none.run(&mut |_| {}).unwrap_err().to_string().contains("0..200"));
}
