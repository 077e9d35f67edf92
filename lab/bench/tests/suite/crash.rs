//! A small crash experiment: a node crashes under simulated load.

use dmtree_bench::crash::{Setup, run};

fn small() -> Setup {
    Setup {
        keys: 5_000,
        cns: 3,
        threads: 2,
        coroutines: 2,
        lease_us: 2_000,
        crash_us: 1_000,
        until_us: 8_000,
        ..Setup::default()
    }
}

fn lives_on(system: &str, hung: bool) {
    let o = run(&Setup { system: system.to_owned(), hung, ..small() }).unwrap();
    assert!(o.is_fine() && o.keys_checked > 100, "{}", o.text());
    assert!(o.after_mops > 0.5 * o.before_mops, "{}", o.text());
    let whats: Vec<&str> = o.moments.iter().map(|m| m.what.as_str()).collect();
    assert!(whats.contains(&"its tables have new owners"), "{whats:?}");
    let lease_ns = o.setup.lease_us * 1000;
    // Images are at the owner that died: their readers wait for it, too.
    let waits = system != "dmtree";
    assert_eq!(o.longest_read_ns > lease_ns / 2, waits, "readers: {}", o.text());
    assert!(o.longest_update_ns > lease_ns / 2, "updates wait for the crashed node: {}", o.text());
    assert!(o.text().contains("its tables have new owners"));
}

#[test]
fn survivors_come_back_and_nothing_acknowledged_is_lost() {
    for system in ["dmtree", "dmtree-images", "dmtree-log"] {
        lives_on(system, false);
    }
    lives_on("dmtree", true);
}

/// dLSM, with options.
fn dlsm(options: &[&str]) -> Setup {
    let options = options.iter().map(|&text| text.to_owned()).collect();
    let until_us = 40_000;
    Setup { system: "dlsm".to_owned(), options, until_us, ..small() }
}

/// Workers run beside the clients. A survivor takes the ranges of the dead owner over: its log has
/// what was acknowledged.
#[test]
fn an_owner_of_ranges_loses_what_it_has_not_logged() {
    let logged = run(&dlsm(&["dlsm.owners=3"])).unwrap();
    assert!(logged.is_fine() && logged.keys_checked > 100, "{}", logged.text());
    let unlogged = run(&dlsm(&["dlsm.owners=3", "dlsm.log=false"])).unwrap();
    assert!(unlogged.keys_wrong > 0 && unlogged.errors == 0, "{}", unlogged.text());
}

/// A call of the dead owner would end after 50 ms by itself.
#[test]
fn callers_of_a_dead_owner_wait_for_its_lease_alone() {
    let o = run(&dlsm(&["dlsm.owners=3"])).unwrap();
    let waits = [o.longest_read_ns, o.longest_update_ns].map(|ns| ns / 1_000_000);
    assert!(o.is_fine() && waits.iter().all(|ms| (1..10).contains(ms)), "{}", o.text());
}

/// Behind the run 22 ms pass for what jobs have posted, and no agent runs: the reads in the end
/// have leases all the same.
#[test]
fn jobs_that_outlast_the_clients_cost_no_lease() {
    let usual = Setup::default();
    let o = run(&Setup { system: "dlsm".to_owned(), keys: 50_000, ..usual }).unwrap();
    assert!(o.is_fine() && o.keys_checked > 100, "{}", o.text());
}

#[test]
fn readers_do_not_notice_and_a_run_is_a_function_of_its_seed() {
    let s = Setup { update_percent: 0, ..small() };
    let (a, b) = (run(&s).unwrap(), run(&s).unwrap());
    assert!(a.is_fine() && a.least_mops > 0.0, "{}", a.text());
    assert_eq!(a, b);
    assert_ne!(a.trace_hash, run(&Setup { seed: 7, ..s }).unwrap().trace_hash);
}

#[test]
fn impossible_settings_are_refused() {
    for (bad, words) in [
        (Setup { cns: 1, ..small() }, "cns is 1; it must be 2 to 64"),
        (Setup { until_us: 500, ..small() }, "until-us is 500"),
        (Setup { keys: 1, ..small() }, "keys is 1"),
        (Setup { lease_us: 0, ..small() }, "lease-us is 0"),
        (Setup { profile: "none".to_owned(), ..small() }, "none"),
        (Setup { maintain_every: 0, ..small() }, "maintain-every is 0"),
        (Setup { system: "fptree".to_owned(), ..small() }, "fptree does not recover"),
        (dlsm(&["owners=3"]), "give NAME.field=value"),
        (dlsm(&["dmtree.fanout=32"]), "dmtree is not dlsm"),
        (dlsm(&["dlsm.owner=3"]), "unknown field `owner`"),
        (dlsm(&["dlsm.owners=0"]), "owners is 0; it must be 1 to 1024"),
        (Setup { system: "none".to_owned(), ..small() }, "none"),
    ] {
        let e = run(&bad).expect_err(words).to_string();
        assert!(e.contains(words), "{e}");
    }
}
