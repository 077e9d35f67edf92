//! The last stop of `demo`: a compute node dies while it holds a lock, in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dmtree_bench::registry;
use dmtree_check::scenario::{LEASE_PARAMETERS, Scenario, Script, get, key, value};
use dmtree_command::{Failure, Result};
use dmtree_fabric::sim::{CrashPoint, How, Place};
use dmtree_fabric::{Error, Fifo, NodeId};
use dmtree_parts::{AnyIndex, Outcome, Write};

use crate::output;

const KEYS: u64 = 1_000;
/// The key of the update that is cut off.
const KEY: u64 = 500;
const SEED: u64 = 42;
/// The victim dies behind one of so many verbs of its update: the first behind which it holds the
/// lock.
const VERBS: u64 = 8;
/// The survivor looks this often whether the victim is down, ns.
const LOOK_NS: u64 = 20_000;

/// What the survivor saw, in virtual time.
#[derive(Default)]
struct Seen {
    /// The value after the crash, before any write.
    read: Option<Vec<u8>>,
    /// How long its write waited, ns.
    waited_ns: u64,
    /// The value after its write.
    written: Option<Vec<u8>>,
}

/// Runs it, and says what happened.
pub(super) fn run() -> Result<()> {
    for verb in 1..=VERBS {
        let seen = death(verb)?;
        if seen.waited_ns >= LEASE_PARAMETERS.lease_ns / 2 {
            return report(&seen);
        }
    }
    Err(Failure::violation("the client that was to die held no lock"))
}

/// A run in which the victim dies behind this verb of its update.
fn death(verb: u64) -> Result<Seen> {
    let system = registry::find("dmtree")?;
    let script = Script {
        load: ((0..KEYS).collect(), 0.7),
        compute_nodes: 2,
        ..Script::new("demo", system.options.clone())
    };
    let failed = |e: Error| Failure::violation(format!("a client dies: {e}"));
    let scenario = Scenario::new(&script, false, SEED);
    scenario.prepare(&script, 0).map_err(failed)?;
    scenario.membership_agents();
    let victim = NodeId::compute(1);
    let (fabric, ended) = (scenario.fabric.clone(), Rc::new(Cell::new(false)));
    let end = ended.clone();
    scenario.worker(1, |mut c| async move {
        // It knows the way to the leaf then.
        let warm = get(&mut c, KEY).await;
        let point = CrashPoint { verb, place: Place::After };
        if warm.is_ok() && fabric.crash_at(victim, point, How::Hung).is_ok() {
            let _ = c.write(&key(KEY), Write::Update(b"cut off")).await;
        }
        end.set(true);
    });
    let seen = RefCell::new(Ok(Seen::default()));
    scenario.run(&mut Fifo, async {
        let c = scenario.client(0);
        while !scenario.fabric.is_down(victim) && !ended.get() {
            c.endpoint().sleep(LOOK_NS).await;
        }
        let found = survive(c).await;
        *seen.borrow_mut() = found;
    });
    match scenario.trouble() {
        Some(trouble) => Err(Failure::violation(trouble)),
        None => seen.into_inner().map_err(failed),
    }
}

/// Reads the key of the victim, which takes no lock, and writes it, which does.
async fn survive(mut c: AnyIndex) -> std::result::Result<Seen, Error> {
    let ep = c.endpoint().clone();
    let read = get(&mut c, KEY).await?;
    let began = ep.now();
    match c.write(&key(KEY), Write::Update(b"whole")).await? {
        Outcome::Done => {}
        other => return Err(Error::corrupt(format!("an update gives {other:?}"))),
    }
    let waited_ns = ep.now() - began;
    Ok(Seen { read, waited_ns, written: get(&mut c, KEY).await? })
}

fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

fn report(seen: &Seen) -> Result<()> {
    let loaded = value(KEY);
    if (seen.read.as_ref(), seen.written.as_deref()) != (Some(&loaded), Some(&b"whole"[..])) {
        return Err(Failure::violation("what a client that died had locked is not what was put"));
    }
    output::line(&format!(
        "   get                     {} (acknowledged before; a read takes no lock)",
        String::from_utf8_lossy(&loaded)
    ));
    output::line(&format!(
        "   update                  done after {} of virtual time: the lease of {} ended, and the lock was recovered",
        ms(seen.waited_ns),
        ms(LEASE_PARAMETERS.lease_ns)
    ));
    output::line("   get                     whole");
    Ok(())
}
