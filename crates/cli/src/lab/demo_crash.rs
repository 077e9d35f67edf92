//! The last stop of `demo`: a client dies with a lock in its hands, in virtual time.

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
/// The victim has taken the lock of the leaf by its first verb.
const CRASH: CrashPoint = CrashPoint { verb: 1, place: Place::After };
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
    let fabric = scenario.fabric.clone();
    let ended = Rc::new(Cell::new(false));
    let survived = ended.clone();
    scenario.worker(1, |mut c| async move {
        if fabric.crash_at(victim, CRASH, How::Hung).is_ok() {
            survived.set(c.write(&key(KEY), Write::Update(b"half an update")).await.is_ok());
        }
    });
    let seen = RefCell::new(Ok(Seen::default()));
    scenario.run(&mut Fifo, async {
        let c = scenario.client(0);
        while !scenario.fabric.is_down(victim) && !ended.get() {
            c.endpoint().sleep(LOOK_NS).await;
        }
        seen.replace(survive(c).await);
    });
    let seen = seen.into_inner().map_err(failed)?;
    if let Some(trouble) = scenario.trouble() {
        return Err(Failure::violation(trouble));
    }
    report(&seen, ended.get())
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

fn report(seen: &Seen, ended: bool) -> Result<()> {
    let lease_ns = LEASE_PARAMETERS.lease_ns;
    let loaded = value(KEY);
    if ended || seen.waited_ns < lease_ns / 2 {
        return Err(Failure::violation("the client that was to die held no lock"));
    }
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
        ms(lease_ns)
    ));
    output::line("   get                     whole");
    Ok(())
}
