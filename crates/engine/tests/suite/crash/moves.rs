//! A compute node joins and takes its share of the tables, or hands its tables over and leaves.
//! Meanwhile it, the node that carries the move out, or another one dies at any verb. Operations
//! continue within their bounds, the move or the death is handled completely, and every invariant
//! holds afterwards.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use dmtree_fabric::sim::{CrashPoint, How, Place};
use dmtree_fabric::{Endpoint, Error, MemberPhase, NodeId, SeededRandom};
use dmtree_parts::{AnyIndex, AnyNode};

use dmtree_check::scenario::sweeps::{at_least, every};

use super::one_leaf;
use super::scenario::{
    Op, PAUSE_NS, PLACES, READ_BOUND_NS, Scenario, Script, WRITE_BOUND_NS, get, key, one_holder,
    perform, value, was_accepted,
};

/// Watches, and works all the time.
const WATCHER: u16 = 0;
/// Joins or leaves.
const MOVER: u16 = 1;
/// Its membership agent polls so often that it carries the move out.
const CLAIMANT: u16 = 2;
/// Its tables move, too.
const OTHER: u16 = 3;
/// Longest time that a death and a move take together, ns.
const HANDLED_NS: u64 = 3_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Join,
    Leave,
}

/// The crash: node and verb.
#[derive(Clone, Copy, Debug)]
struct Cut {
    victim: u16,
    point: (u64, Place),
    how: How,
    seed: u64,
}

fn script() -> Script {
    let load = ((0..200).map(|n| n * 10).collect(), 0.5);
    Script { name: "tables move", compute_nodes: 4, load, ..one_leaf() }
}

fn arm(scenario: &Scenario, cut: Cut) {
    let (verb, place) = cut.point;
    let victim = NodeId::compute(cut.victim);
    scenario.fabric.crash_at(victim, CrashPoint { verb, place }, cut.how).expect("known");
}

/// The mover's next incarnation: when its membership agent has joined, it takes its share, and
/// works.
async fn join(scenario: &Scenario, slot: u32, node: AnyNode) -> Result<(), Error> {
    let (pool, ep) = (scenario.pool(MOVER), scenario.endpoint(MOVER, slot));
    let mut c = node.client(ep.clone());
    while pool.check_lease(&ep).is_err() || !was_accepted(pool.partitions().take_share(&ep).await)?
    {
        ep.sleep(PAUSE_NS).await;
        ep.renew_deadline();
    }
    perform(&mut c, &Op::Put(5, value(5))).await
}

/// The mover hands its tables over and leaves.
async fn leave(scenario: &Scenario, slot: u32) -> Result<(), Error> {
    let (pool, ep) = (scenario.pool(MOVER), scenario.endpoint(MOVER, slot));
    ep.set_timeout(5_000_000);
    while !was_accepted(pool.partitions().hand_over(&ep).await)? {
        ep.sleep(PAUSE_NS).await;
        ep.renew_deadline();
    }
    pool.membership().leave(&ep).await
}

/// Writes and reads all the time; no other client writes.
async fn work(scenario: &Scenario, c: &mut AnyIndex, stop: &Cell<bool>) -> BTreeMap<u64, Vec<u8>> {
    let keys = script().load.0;
    let mut sure: BTreeMap<u64, Vec<u8>> = keys.iter().map(|k| (*k, value(*k))).collect();
    let (ep, complain) = (c.endpoint().clone(), scenario.complain());
    for n in 0.. {
        if stop.get() || scenario.trouble().is_some() {
            break;
        }
        let k = keys[n * 37 % keys.len()];
        let began = ep.now();
        if let Err(e) = perform(c, &Op::Update(k, value(n as u64))).await {
            complain(format!("update of {k}: {e}"));
        }
        sure.insert(k, value(n as u64));
        let middle = ep.now();
        let far = keys[n * 91 % keys.len()];
        match get(c, far).await {
            Ok(seen) if seen.as_ref() == sure.get(&far) => {}
            seen => complain(format!("key {far} is {seen:?}, not {:?}", sure.get(&far))),
        }
        if middle > began + WRITE_BOUND_NS || ep.now() > middle + READ_BOUND_NS {
            complain(format!(
                "{} ns for a write, {} for a read",
                middle - began,
                ep.now() - middle
            ));
        }
        ep.sleep(30_000).await;
    }
    sure
}

/// No step of a death or a move is left, as the watcher knows it.
async fn wait_until_handled(scenario: &Scenario, ep: &Endpoint, ready: impl Fn() -> bool) {
    let began = ep.now();
    while !(ready() && scenario.pool(WATCHER).membership().has_settled_membership())
        && scenario.trouble().is_none()
    {
        if ep.now() > began + HANDLED_NS {
            scenario.complain()(format!(
                "not handled: {:?}",
                scenario.test_cluster.cluster.in_process_membership()
            ));
        }
        ep.sleep(PAUSE_NS).await;
    }
}

/// One run: whether the victim died, or the error.
fn once(what: Move, cut: Cut) -> Result<bool, String> {
    let scenario = Rc::new(Scenario::new(&script(), cut.seed.is_multiple_of(2), cut.seed));
    let mut c = scenario.client(WATCHER);
    let mut pairs = script().load.0.into_iter().map(|k| (key(k), value(k)));
    scenario.now(c.load(&mut pairs, true, 0.5.into())).map_err(|e| e.to_string())?;
    drop(c);
    scenario.membership_agents_at(|cn| if cn == CLAIMANT { PAUSE_NS / 4 } else { PAUSE_NS });
    let flag = || Rc::new(Cell::new(false));
    let (go, ended, stop, stopped) = (flag(), flag(), flag(), flag());
    let (slot, membership_agent) = (scenario.core().add_slot(), scenario.core().add_slot());
    let node: Rc<RefCell<Option<AnyNode>>> = Rc::default();
    let told = |go: Rc<Cell<bool>>| {
        poll_fn(move |_| if go.get() { Poll::Ready(()) } else { Poll::Pending })
    };
    let (s, may, done, its) = (scenario.clone(), told(go.clone()), ended.clone(), node.clone());
    scenario.spawn(MOVER, slot, async move {
        may.await;
        let node = its.take();
        let moved = match node {
            Some(node) => join(&s, slot, node).await,
            None => leave(&s, slot).await,
        };
        match moved {
            Ok(()) => done.set(true),
            Err(e) => s.complain()(format!("{what:?}: {e}")),
        }
    });
    if what == Move::Join {
        let (s, may) = (scenario.clone(), told(go.clone()));
        scenario.spawn(MOVER, membership_agent, async move {
            may.await;
            let ep = s.endpoint(MOVER, membership_agent);
            ep.set_timeout(5_000_000);
            _ = s.pool(MOVER).membership().run_membership(&ep, PAUSE_NS, || false).await;
        });
    }
    let sure = Rc::new(RefCell::new(BTreeMap::new()));
    let (s, to_stop, has_stopped, found) =
        (scenario.clone(), stop.clone(), stopped.clone(), sure.clone());
    scenario.worker(WATCHER, |mut c| async move {
        let seen = work(&s, &mut c, &to_stop).await;
        found.replace(seen);
        has_stopped.set(true);
    });
    let died = Cell::new(false);
    scenario.run(&mut SeededRandom::new(cut.seed), async {
        let ep = scenario.client(WATCHER).endpoint().clone();
        let watcher = scenario.pool(WATCHER);
        let gone = |cn: u16, generation| {
            watcher.membership().phase(NodeId::compute(cn), generation) == Some(MemberPhase::Gone)
        };
        ep.sleep(1_500_000).await;
        let mover_generation = match what {
            Move::Leave => 1,
            Move::Join => {
                let mover = NodeId::compute(MOVER);
                scenario.fabric.crash(mover, How::Process).expect("known");
                wait_until_handled(&scenario, &ep, || gone(MOVER, 1)).await;
                scenario.fabric.restart(mover).expect("down");
                node.replace(Some(
                    scenario.test_cluster.revive(usize::from(MOVER)).expect("restarted"),
                ));
                2
            }
        };
        arm(&scenario, cut);
        go.set(true);
        [slot, membership_agent].into_iter().for_each(|slot| scenario.core().wake(slot));
        let dead = || scenario.fabric.is_down(NodeId::compute(cut.victim));
        wait_until_handled(&scenario, &ep, || ended.get() || dead()).await;
        died.set(dead());
        scenario.fabric.spare(NodeId::compute(cut.victim));
        // Another node's death keeps no node from joining or leaving.
        let moves_on = !died.get() || cut.victim != MOVER;
        wait_until_handled(&scenario, &ep, || {
            (ended.get() || !moves_on)
                && (!died.get() || gone(cut.victim, if moves_on { 1 } else { mover_generation }))
                && (what == Move::Join || gone(MOVER, 1))
        })
        .await;
        stop.set(true);
        while !stopped.get() && scenario.trouble().is_none() {
            ep.sleep(100_000).await;
        }
        let mut c = scenario.client(WATCHER);
        for _ in 0..3 {
            if let Err(e) = c.sweep().await {
                scenario.complain()(format!("sweep: {e}"));
            }
            if let Err(e) = perform(&mut c, &Op::Maintain).await {
                scenario.complain()(format!("maintenance: {e}"));
            }
        }
        ep.sleep(500_000).await;
    });
    if let Some(what) = scenario.trouble() {
        return Err(what);
    }
    in_the_end(&scenario, &sure.borrow(), what == Move::Join && ended.get())?;
    Ok(died.get())
}

/// Every key has the value acknowledged last, every invariant holds, and nothing is lost.
fn in_the_end(
    scenario: &Scenario,
    sure: &BTreeMap<u64, Vec<u8>>,
    has_joined: bool,
) -> Result<(), String> {
    let mut c = scenario.client(WATCHER);
    let fail = |e: Error| format!("in the end: {e}");
    for (k, v) in sure {
        let seen = scenario.now(get(&mut c, *k)).map_err(fail)?;
        if seen.as_ref() != Some(v) {
            return Err(format!("in the end key {k} is {seen:?}, not {v:?}"));
        }
    }
    if has_joined && scenario.now(get(&mut c, 5)).map_err(fail)? != Some(value(5)) {
        return Err("what the node that joined has written is lost".into());
    }
    scenario.now(c.walk()).map_err(fail)?;
    one_holder(scenario, &mut c)
}

/// Each of the nodes involved dies at every `step`-th of its verbs.
fn at_every_verb(what: Move, step: u64) {
    let step = every(step);
    for victim in [MOVER, CLAIMANT, OTHER] {
        let (mut points, mut crashes) = (0, 0);
        for verb in (1..).step_by(step as usize) {
            let mut died = false;
            for (i, place) in PLACES.into_iter().enumerate() {
                let how = [How::Machine, How::Hung, How::Process][(verb as usize + i) % 3];
                let seed = verb * 7 + i as u64 + u64::from(victim) * 1000;
                let cut = Cut { victim, point: (verb, place), how, seed };
                let one = once(what, cut).unwrap_or_else(|e| panic!("{what:?}: {cut:?}: {e}"));
                died |= one;
                points += 1;
                crashes += u32::from(one);
            }
            if !died {
                break;
            }
        }
        eprintln!("{what:?}, cn{victim} dies: {points} points, {crashes} crashes");
        assert!(
            victim == OTHER || at_least(u64::from(crashes), 3),
            "{what:?}: cn{victim} has no part in it"
        );
    }
}

#[test]
fn joins() {
    at_every_verb(Move::Join, 7);
}

#[test]
fn leaves() {
    at_every_verb(Move::Leave, 7);
}
