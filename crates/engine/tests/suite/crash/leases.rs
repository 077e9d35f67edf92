//! A node that does not renew its lease is declared dead while its clients run on: every answer of
//! theirs is true, or an error.

use std::cell::Cell;

use dmtree_engine::Mutant;
use dmtree_fabric::SeededRandom;

use super::images::imaged;
use super::one_leaf;
use super::scenario::{Op, PAUSE_NS, Scenario, Script, get, key, perform, value, with_mutant};

/// The node that does not renew its lease.
const SLOW: u16 = 1;
/// Its reads continue no longer than this, ns.
const PATIENCE_NS: u64 = 20_000_000;

/// Refusals and wrong answers of the slow node.
fn reads_behind_the_lease(script: Script, mutant: Option<Mutant>) -> Result<u32, String> {
    let load = ((0..200).map(|n| n * 10).collect(), 0.5);
    let script = Script { name: "behind the lease", load, ..script };
    let script = match mutant {
        Some(mutant) => with_mutant(script, mutant),
        None => script,
    };
    let scenario = Scenario::new(&script, false, 7);
    let mut slow = scenario.client(SLOW);
    let mut pairs = script.load.0.iter().map(|k| (key(*k), value(*k)));
    scenario.now(slow.load(&mut pairs, true, script.load.1.into())).expect("room");
    let new: Vec<u64> = script.load.0.iter().map(|k| k + 3).collect();
    for k in script.load.0.iter().chain(&new) {
        scenario.now(get(&mut slow, *k)).expect("a lease");
    }
    [0, 2].into_iter().for_each(|cn| scenario.membership_agent(cn, PAUSE_NS));
    let refused = Cell::new(0);
    scenario.run(&mut SeededRandom::new(7), async {
        let mut c = scenario.client(0);
        let ep = c.endpoint().clone();
        let own = scenario.endpoint(SLOW, ep.slot());
        for _ in 0..4 {
            let _ = scenario.pool(SLOW).membership().membership_step(&own).await;
            ep.sleep(PAUSE_NS).await;
        }
        scenario.settled(&ep, 0, &[SLOW]).await;
        for k in &new {
            perform(&mut c, &Op::Insert(*k, value(*k))).await.expect("its tables have new owners");
        }
        for k in &script.load.0 {
            perform(&mut c, &Op::Update(*k, value(*k + 3))).await.expect("they have");
        }
        slow.endpoint().set_timeout(PATIENCE_NS);
        for k in script.load.0.iter().chain(&new) {
            match get(&mut slow, *k).await {
                Ok(v) if v == Some(value(*k / 10 * 10 + 3)) => {}
                Ok(v) => return scenario.complain()(format!("key {k} is {v:?}")),
                Err(_) => refused.set(refused.get() + 1),
            }
        }
    });
    scenario.trouble().map_or(Ok(refused.get()), Err)
}

/// A revoked node's own memory, with its former tables, answers it: an absence there is out of
/// date.
#[test]
fn a_revoked_node_returns_no_stale_value() {
    let refused = reads_behind_the_lease(one_leaf(), None).expect("nothing old");
    assert!(refused >= 200, "{refused}");
    let found = reads_behind_the_lease(one_leaf(), Some(Mutant::NoLease));
    eprintln!("NoLease: {found:?}");
    assert!(found.is_err(), "{found:?}");
    // So do images there.
    let refused = reads_behind_the_lease(imaged(one_leaf()), None).expect("nothing old");
    assert!(refused >= 200, "{refused}");
    let found = reads_behind_the_lease(imaged(one_leaf()), Some(Mutant::ImagedNoLease));
    eprintln!("ImagedNoLease: {found:?}");
    assert!(found.is_err(), "{found:?}");
}
