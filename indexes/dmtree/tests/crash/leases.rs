//! A node that does not keep its lease is declared dead while its clients run on: whatever they say is true, or an error.

use std::cell::Cell;

use dmtree_engine::Defect;
use dmtree_fabric::SeededRandom;
use dmtree_parts::RangeIndex;

use crate::one_leaf;
use crate::scene::{Op, PAUSE_NS, Play, Scene, get, key, perform, value, with_defect};

/// Who does not keep its lease.
const SLOW: u16 = 1;
/// Its reads go on no longer than this, ns.
const PATIENCE_NS: u64 = 20_000_000;

/// What the slow one has refused to say, or what it has said that is wrong.
fn reads_behind_the_lease(defect: Option<Defect>) -> Result<u32, String> {
    let load = ((0..200).map(|n| n * 10).collect(), 0.5);
    let play = Play { name: "behind the lease", load, ..one_leaf() };
    let play = match defect {
        Some(defect) => with_defect(play, defect),
        None => play,
    };
    let scene = Scene::new(&play, false, 7);
    let mut slow = scene.client(SLOW);
    let mut pairs = play.load.0.iter().map(|k| (key(*k), value(*k)));
    scene.now(slow.load(&mut pairs, true, play.load.1.into())).expect("room");
    let new: Vec<u64> = play.load.0.iter().map(|k| k + 3).collect();
    for k in play.load.0.iter().chain(&new) {
        scene.now(get(&mut slow, *k)).expect("a lease");
    }
    [0, 2].into_iter().for_each(|cn| scene.keeper(cn, PAUSE_NS));
    let refused = Cell::new(0);
    scene.run(&mut SeededRandom::new(7), async {
        let mut c = scene.client(0);
        let ep = c.endpoint().clone();
        let own = scene.endpoint(SLOW, ep.slot());
        for _ in 0..4 {
            let _ = scene.pool(SLOW).keep(&own).await;
            ep.sleep(PAUSE_NS).await;
        }
        scene.settled(&ep, 0, &[SLOW]).await;
        for k in &new {
            perform(&mut c, &Op::Insert(*k, value(*k))).await.expect("its tables have new homes");
        }
        slow.endpoint().set_timeout(PATIENCE_NS);
        for k in play.load.0.iter().chain(&new) {
            match get(&mut slow, *k).await {
                Ok(v) if v == Some(value(*k)) => {}
                Ok(v) => return scene.complain()(format!("key {k} is {v:?}")),
                Err(_) => refused.set(refused.get() + 1),
            }
        }
    });
    scene.trouble().map_or(Ok(refused.get()), Err)
}

/// Its own memory, with the tables that it had, answers a fenced node: an absence there is that of before.
#[test]
fn a_fenced_node_says_nothing_old() {
    let refused = reads_behind_the_lease(None).expect("nothing old");
    assert!(refused >= 200, "{refused}");
    let found = reads_behind_the_lease(Some(Defect::NoLease));
    eprintln!("NoLease: {found:?}");
    assert!(found.is_err(), "{found:?}");
}
