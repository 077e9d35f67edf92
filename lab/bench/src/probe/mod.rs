//! Micro-benchmarks of a fabric between two nodes, and of this machine's cores, and a profile for
//! the simulated fabric from their results.

mod host;
mod measure;

pub use host::{REGION_BYTES as HOST_BYTES, Steps, measure as measure_host};
pub use measure::{Bench, Measured, Plan, Verb};

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::{Fabric, Nanos, NodeId};

use crate::fabrics::{LOCAL, VERBS};
use crate::failure::{Failure, Result};
use crate::simulated::Profile;
use crate::table::{Column, table_of};

/// Payloads of READs and WRITEs, bytes.
pub const SIZES: [u32; 5] = [8, 64, 512, 4096, 65_536];
/// Lists in flight when rates are measured.
const CLIENTS: u32 = 16;
/// Verbs of a list when doorbells are measured.
const LIST: u32 = 8;

/// The compute node of a measurement.
pub const FROM: NodeId = NodeId::compute(0);
/// The memory node of a measurement.
pub const TO: NodeId = NodeId::memory(0);
/// The target's memory, bytes.
const REGION_BYTES: u64 = 16 << 20;

/// A fabric with two nodes, and a line about the hardware it runs on. The error about one that this
/// binary or this machine lacks has advice.
pub fn open(fabric: &str, device: Option<&str>) -> Result<(Box<dyn Fabric>, String)> {
    match fabric {
        LOCAL => {
            let f = LocalFabric::new();
            f.add_node(FROM, 1 << 12)?;
            f.add_node(TO, REGION_BYTES)?;
            Ok((Box::new(f), "memory of this process".to_owned()))
        }
        VERBS => verbs(device),
        other => Err(Failure::input(format!("unknown fabric {other:?}: give {LOCAL} or {VERBS}"))),
    }
}

#[cfg(feature = "verbs")]
fn verbs(device: Option<&str>) -> Result<(Box<dyn Fabric>, String)> {
    use dmtree_fabric::verbs::{Config, VerbsFabric};
    let config = Config { device: device.map(str::to_owned), ..Config::default() };
    let f = VerbsFabric::new(&config)?;
    f.add_node(FROM, 1 << 12)?;
    f.add_node(TO, REGION_BYTES)?;
    let what = f.nic().to_string();
    Ok((Box::new(f), what))
}

#[cfg(not(feature = "verbs"))]
fn verbs(_device: Option<&str>) -> Result<(Box<dyn Fabric>, String)> {
    Err(Failure::input(
        "this binary was built without the fabric verbs: cargo build --release -p dmtree-cli --features verbs",
    ))
}

/// All measurements.
#[derive(Debug)]
pub struct Probed {
    rows: Vec<(Plan, Measured)>,
    /// Steps of data services on this machine, where they were measured.
    pub host: Option<Steps>,
}

/// Measures `to` as `from` sees it, each measurement for `for_ns`.
pub fn run(fabric: &dyn Fabric, from: NodeId, to: NodeId, for_ns: Nanos) -> Result<Probed> {
    let bench = Bench::new(fabric, from, to)?;
    let mut plans = Vec::new();
    for verb in [Verb::Read, Verb::Write] {
        for bytes in SIZES {
            plans.push(Plan { verb, bytes, clients: 1, list: 1, for_ns });
            plans.push(Plan { verb, bytes, clients: CLIENTS, list: 1, for_ns });
        }
        plans.push(Plan { verb, bytes: 64, clients: 1, list: LIST, for_ns });
        plans.push(Plan { verb, bytes: 64, clients: 1 + CLIENTS / LIST, list: LIST, for_ns });
    }
    for verb in [Verb::Cas, Verb::SameWord] {
        plans.push(Plan { verb, bytes: 8, clients: 1, list: 1, for_ns });
        plans.push(Plan { verb, bytes: 8, clients: CLIENTS, list: 1, for_ns });
    }
    let measured = |plan| Ok((plan, bench.run(plan)?));
    let rows = plans.into_iter().map(measured).collect::<Result<_>>()?;
    Ok(Probed { rows, host: None })
}

impl Probed {
    /// One of the measurements of `run`.
    fn get(&self, verb: Verb, bytes: u32, is_alone: bool) -> Option<&Measured> {
        let found = |(p, _): &&(Plan, Measured)| {
            p.verb == verb && p.bytes == bytes && p.list == 1 && (p.clients == 1) == is_alone
        };
        self.rows.iter().find(found).map(|(_, m)| m)
    }

    /// The measurements as a text table.
    pub fn table(&self) -> String {
        let columns: [Column<&(Plan, Measured)>; 8] = [
            ("verb", |(p, _)| p.verb.name().to_owned()),
            ("bytes", |(p, _)| p.bytes.to_string()),
            ("clients", |(p, _)| p.clients.to_string()),
            ("verbs per doorbell", |(p, _)| p.list.to_string()),
            ("median ns", |(_, m)| m.median_ns.to_string()),
            ("p99 ns", |(_, m)| m.p99_ns.to_string()),
            ("verbs/s", |(_, m)| format!("{:.0}", m.rate())),
            ("Gb/s", |(p, m)| format!("{:.3}", m.rate() * f64::from(p.bytes) * 8.0 / 1e9)),
        ];
        table_of((&columns, 1), &self.rows)
    }

    /// A profile for the simulated fabric: measured values replace those of `base`; the rest is
    /// unchanged.
    ///
    /// A round trip is divided into service time and the rest. The time per verb of 16 clients is
    /// taken as that of the slowest server of the path, and assigned to the responder.
    pub fn profile(&self, base: &Profile, name: &str, description: &str) -> Profile {
        let mut p = base.clone();
        name.clone_into(&mut p.name);
        description.clone_into(&mut p.description);
        p.trust = "A for round trips, rates and bandwidth measured between two nodes, and for the cores of this machine; the rest as in the profile it is based on".to_owned();
        // The time per verb when verbs follow each other without a gap, ns.
        let each = |verb, bytes| {
            let m = self.get(verb, bytes, false);
            m.map_or(0.0, |m| m.took_ns as f64 / m.verbs.max(1) as f64)
        };
        let alone = |verb, bytes| self.get(verb, bytes, true).map_or(0.0, |m| m.median_ns as f64);
        p.responder_ns.read = each(Verb::Read, 64).min(1e7);
        p.responder_ns.write = each(Verb::Write, 64).min(1e7);
        p.responder_ns.atomic = each(Verb::Cas, 8).min(1e7);
        p.responder_ns.write_cold = 0.0;
        p.same_word_ns.dram = each(Verb::SameWord, 8).min(1e6);
        p.initiator_ns.read = 0.0;
        p.initiator_ns.write = 0.0;
        p.initiator_ns.atomic = 0.0;
        let rest = alone(Verb::Read, 64) - p.responder_ns.read - p.cpu.post_ns - p.cpu.round_ns;
        p.latency.completion_ns = 0.0;
        p.latency.propagation_ns = (rest / 2.0).clamp(0.0, 1e6);
        p.latency.loopback_ns = p.latency.propagation_ns;
        let largest = SIZES[SIZES.len() - 1];
        let gbps = |verb| {
            let m = self.get(verb, largest, false);
            m.map_or(0.0, |m| m.rate() * f64::from(largest) * 8.0 / 1e9)
        };
        p.link.gbps = gbps(Verb::Read).max(gbps(Verb::Write)).clamp(0.1, 3200.0);
        p.link.efficiency = 1.0;
        self.host.iter().for_each(|host| host.apply(&mut p));
        p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_measures_something_and_the_profile_is_sound() {
        let (fabric, _) = open(LOCAL, None).expect("memory");
        let probed = run(&*fabric, FROM, TO, 200_000).expect("verbs work");
        assert!(probed.rows.iter().all(|(_, m)| m.verbs > 0 && m.took_ns >= 200_000));
        // On `local` one client is as fast as many, because they run one after another.
        for (plan, many) in probed.rows.iter().filter(|(p, _)| p.clients == CLIENTS) {
            assert!(many.took_ns >= u64::from(CLIENTS) * 200_000, "{plan:?} {many:?}");
        }
        assert_eq!(probed.table().lines().count(), probed.rows.len() + 2);
        let base = Profile::named("ideal").expect("shipped");
        let made = probed.profile(&base, "mine", "what was measured here");
        let back = Profile::parse("mine.toml", &made.to_toml()).expect("the simulator takes it");
        assert_eq!(back, made);
        assert!(back.responder_ns.read > 0.0 && back.name == "mine");
    }

    #[test]
    fn a_profile_holds_what_was_measured() {
        let row = |verb, bytes, clients, verbs, median_ns| {
            let plan = Plan { verb, bytes, clients, list: 1, for_ns: 1 };
            (plan, Measured { verbs, took_ns: 1_000_000, median_ns, p99_ns: median_ns })
        };
        let rows = vec![
            row(Verb::Read, 64, 1, 200, 5_000),
            row(Verb::Read, 64, CLIENTS, 1_000, 16_000),
            row(Verb::Write, 64, CLIENTS, 2_000, 8_000),
            row(Verb::Read, 65_536, CLIENTS, 100, 1),
            row(Verb::Cas, 8, CLIENTS, 500, 1),
            row(Verb::SameWord, 8, CLIENTS, 250, 1),
        ];
        let mut base = Profile::named("ideal").expect("shipped");
        (base.cpu.post_ns, base.cpu.round_ns) = (100.0, 400.0);
        let host = Steps { call_ns: 80.04, node_ns: 300.0, entry_ns: 9.0, copy_ns: 2e6 };
        let p = Probed { rows, host: Some(host) }.profile(&base, "p", "d");
        let [call, copy] = [p.host.call_ns, p.host.copy_ns];
        assert_eq!((call, p.host.node_ns, copy), (80.0, 300.0, 1e6));
        let got =
            [p.responder_ns.read, p.responder_ns.write, p.responder_ns.atomic, p.same_word_ns.dram];
        assert_eq!(got, [1_000.0, 500.0, 2_000.0, 4_000.0]);
        assert_eq!(p.latency.propagation_ns, 1_750.0, "half of what nothing else explains");
        assert!((p.link.gbps - 52.4288).abs() < 1e-6, "{}", p.link.gbps);
    }
}
