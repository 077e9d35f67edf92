//! The status of a node as Prometheus text. It is read when it is asked for.

use std::cell::RefCell;

#[cfg(feature = "tcp")]
use dmtree_fabric::net::{MembershipReport, NodeStatus};
use dmtree_fabric::{Error, Result};
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::latencies::{LATENCY_BUCKETS, Latencies};
use crate::reports::{ComputeReport, IndexReport, MemoryReport, NodeReport, SideReport};
#[cfg(feature = "tcp")]
use crate::status::members;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// What a node of a pool of several processes says of itself, as [`NetFabric::status_of`] has it.
///
/// [`NetFabric::status_of`]: dmtree_fabric::net::NetFabric::status_of
///
/// # Errors
/// `Corrupt` for a status that is none.
#[cfg(feature = "tcp")]
pub fn of_status(status: &NodeStatus) -> Result<String> {
    let Some(report) = NodeReport::of(status) else {
        let what = format!("{} sends a status that is none", status.member.node);
        return Err(Error::corrupt(what));
    };
    let all = Families::new();
    all.node(status)?;
    all.report(&report)?;
    if let Some(membership) = &status.membership {
        all.membership(membership)?;
    }
    all.text()
}

/// What the compute nodes of this process say of themselves.
///
/// # Errors
/// Names that Prometheus does not take.
pub fn of_report(report: &NodeReport) -> Result<String> {
    let all = Families::new();
    all.report(report)?;
    all.text()
}

fn failed(e: prometheus::Error) -> Error {
    Error::invalid(format!("metrics: {e}"))
}

/// The families of one scrape.
struct Families {
    registry: Registry,
    /// What was counted elsewhere, by buckets.
    histograms: RefCell<Vec<MetricFamily>>,
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

fn histogram(sampled: &Latencies) -> Histogram {
    let mut up_to = 0;
    let bucket = |(bound_ns, count): (u64, u64)| {
        up_to += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound_ns as f64 / 1e9);
        bucket.set_cumulative_count(up_to);
        bucket
    };
    // The last bucket has no bound: the number of samples says what is in it.
    let buckets = sampled.buckets().map(bucket).take(LATENCY_BUCKETS - 1).collect();
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets);
    histogram.set_sample_count(sampled.samples());
    histogram.set_sample_sum(sampled.sum_ns() as f64 / 1e9);
    histogram
}

/// The values of a family: labels, and a value.
type Rows<'r, const N: usize> = &'r [([&'r str; N], u64)];

impl Families {
    fn new() -> Self {
        Self { registry: Registry::new(), histograms: RefCell::default() }
    }

    fn text(&self) -> Result<String> {
        let mut all = self.registry.gather();
        all.append(&mut self.histograms.borrow_mut());
        TextEncoder::new().encode_to_string(&all).map_err(failed)
    }

    /// A family with these values.
    fn family<T: MetricVecBuilder + 'static, const N: usize>(
        &self,
        made: prometheus::Result<MetricVec<T>>,
        rows: Rows<'_, N>,
        set: impl Fn(T::M, u64),
    ) -> Result<()> {
        let family = made.map_err(failed)?;
        for (labels, value) in rows {
            set(family.with_label_values(labels), *value);
        }
        self.registry.register(Box::new(family)).map_err(failed)
    }

    /// Values that go up and down.
    fn gauge<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        rows: Rows<'_, N>,
    ) -> Result<()> {
        let made = IntGaugeVec::new(Opts::new(name, help), &labels);
        self.family(made, rows, |gauge, value| gauge.set(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    /// Values that go up.
    fn counter<const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: [&str; N],
        rows: Rows<'_, N>,
    ) -> Result<()> {
        let made = IntCounterVec::new(Opts::new(name, help), &labels);
        self.family(made, rows, |counter, value| counter.inc_by(value))
    }

    #[cfg(feature = "tcp")]
    fn node(&self, status: &NodeStatus) -> Result<()> {
        let (node, pool) = (status.member.node.to_string(), format!("{:016x}", status.pool.0));
        let version = env!("CARGO_PKG_VERSION");
        let labels = [&node[..], &pool[..], &status.data_path[..], version];
        let names = ["node", "pool", "fabric", "version"];
        self.gauge("dmtree_node_info", "Which node this is.", names, &[(labels, 1)])?;
        let incarnation = u64::from(status.member.incarnation);
        self.gauge(
            "dmtree_node_incarnation",
            "How often the number of this node was given.",
            [],
            &[([], incarnation)],
        )?;
        self.gauge(
            "dmtree_node_region_bytes",
            "Bytes of the region that this node serves.",
            [],
            &[([], status.region_bytes)],
        )?;
        self.gauge(
            "dmtree_node_links",
            "Links of client threads of other processes.",
            [],
            &[([], status.links)],
        )?;
        let made = prometheus::GaugeVec::new(
            Opts::new(
                "dmtree_membership_silent_seconds",
                "For how long the membership has not answered this node.",
            ),
            &["at"],
        );
        let silent = [([&status.membership_at[..]], status.membership_silent_ns)];
        self.family(made, &silent, |gauge, ns| gauge.set(ns as f64 / 1e9))
    }

    fn report(&self, report: &NodeReport) -> Result<()> {
        if let Some(memory) = &report.memory {
            self.memory(memory)?;
        }
        self.gauge(
            "dmtree_node_partitions",
            "Partitions of fingerprint tables that this node serves.",
            [],
            &[([], report.partitions)],
        )?;
        if let Some(compute) = &report.compute {
            self.compute(compute)?;
            self.indexes(&report.indexes)?;
        }
        Ok(())
    }

    fn memory(&self, r: &MemoryReport) -> Result<()> {
        self.gauge(
            "dmtree_memory_bytes",
            "Bytes of the chunks of this memory node, by state.",
            ["state"],
            &[(["used"], r.used_bytes), (["free"], r.total_bytes - r.used_bytes)],
        )
    }

    fn compute(&self, r: &ComputeReport) -> Result<()> {
        self.gauge(
            "dmtree_compute_epoch",
            "The newest membership epoch that this compute node knows.",
            [],
            &[([], r.epoch)],
        )?;
        self.gauge(
            "dmtree_compute_serves_tables",
            "Whether this compute node serves fingerprint tables and locks: 0 or 1.",
            [],
            &[([], u64::from(r.serves_tables))],
        )?;
        self.gauge(
            "dmtree_compute_free_block_bytes",
            "Bytes on memory nodes that this compute node has for later writes.",
            [],
            &[([], r.free_block_bytes)],
        )?;
        self.gauge(
            "dmtree_compute_retired_objects",
            "Unlinked objects that wait until no operation can read them.",
            [],
            &[([], r.retired)],
        )?;
        self.gauge(
            "dmtree_compute_retired_bytes",
            "Bytes of unlinked objects that wait until no operation can read them.",
            [],
            &[([], r.retired_bytes)],
        )
    }

    fn indexes(&self, all: &[IndexReport]) -> Result<()> {
        let of = |value: fn(&IndexReport) -> u64| -> Vec<([&str; 1], u64)> {
            all.iter().map(|r| ([&r.name[..]], value(r))).collect()
        };
        self.gauge(
            "dmtree_index_sessions",
            "Open sessions and coroutines.",
            ["index"],
            &of(|r| r.sessions),
        )?;
        self.operations(all)?;
        self.counter(
            "dmtree_index_maintenance_errors_total",
            "Pieces of maintenance that failed and are tried again.",
            ["index"],
            &of(|r| r.maintenance_errors),
        )?;
        self.counter(
            "dmtree_index_round_trips_total",
            "Dependent round trips of operations.",
            ["index"],
            &of(|r| r.round_trips),
        )?;
        self.caches(all)?;
        self.waits(all)?;
        self.due(all)?;
        self.latencies(all);
        self.verbs(all)
    }

    fn waits(&self, all: &[IndexReport]) -> Result<()> {
        let (mut repeated, mut waits, mut times) = (Vec::new(), Vec::new(), Vec::new());
        for r in all {
            repeated.extend(r.repeated.iter().map(|(kind, n)| ([&r.name[..], &kind[..]], *n)));
            waits.extend(r.waits.iter().map(|(what, w)| ([&r.name[..], &what[..]], w.waits)));
            times.extend(r.waits.iter().map(|(what, w)| ([&r.name[..], &what[..]], w.ns)));
        }
        self.counter(
            "dmtree_index_repeated_operations_total",
            "Operations that repeated a step.",
            ["index", "operation"],
            &repeated,
        )?;
        self.counter(
            "dmtree_index_waits_total",
            "Waits and repeated steps of operations, by what they waited for.",
            ["index", "what"],
            &waits,
        )?;
        let made = prometheus::CounterVec::new(
            Opts::new("dmtree_index_wait_seconds_total", "The time of these waits."),
            &["index", "what"],
        );
        self.family(made, &times, |counter, ns| counter.inc_by(ns as f64 / 1e9))
    }

    fn due(&self, all: &[IndexReport]) -> Result<()> {
        let mut due = Vec::new();
        for r in all {
            due.extend(r.due.iter().map(|(what, n)| ([&r.name[..], &what[..]], *n)));
        }
        self.gauge(
            "dmtree_index_due",
            "Pieces of maintenance and recovery that are due, by what they do.",
            ["index", "what"],
            &due,
        )
    }

    fn latencies(&self, all: &[IndexReport]) {
        let of_index = |r: &IndexReport| -> Vec<Metric> {
            let of_kind = |(kind, sampled): (&String, &Latencies)| {
                let mut metric =
                    Metric::from_label(vec![label("index", &r.name), label("operation", kind)]);
                metric.set_histogram(histogram(sampled));
                metric
            };
            r.latencies.iter().map(of_kind).collect()
        };
        let metrics: Vec<_> = all.iter().flat_map(of_index).collect();
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name("dmtree_index_operation_seconds".to_owned());
        family.set_help("Latencies of one operation in 64 of each session.".to_owned());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(metrics);
        self.histograms.borrow_mut().push(family);
    }

    fn operations(&self, all: &[IndexReport]) -> Result<()> {
        let mut rows = Vec::new();
        for r in all {
            for (operation, outcomes) in &r.operations {
                for (outcome, count) in outcomes {
                    rows.push(([&r.name[..], &operation[..], &outcome[..]], *count));
                }
            }
        }
        self.counter(
            "dmtree_index_operations_total",
            "Operations by kind and outcome.",
            ["index", "operation", "outcome"],
            &rows,
        )
    }

    fn caches(&self, all: &[IndexReport]) -> Result<()> {
        let (mut bytes, mut lookups, mut evictions) = (Vec::new(), Vec::new(), Vec::new());
        for IndexReport { name, cache, .. } in all {
            bytes.push(([&name[..], "used"], cache.used_bytes));
            bytes.push(([&name[..], "images"], cache.image_bytes));
            bytes.push(([&name[..], "budget"], cache.budget_bytes));
            lookups.push(([&name[..], "hit"], cache.hits));
            lookups.push(([&name[..], "miss"], cache.misses));
            evictions.push(([&name[..]], cache.evictions));
        }
        self.gauge(
            "dmtree_index_cache_bytes",
            "Bytes of the cache: inner nodes in use, images of leaves, and both at most.",
            ["index", "what"],
            &bytes,
        )?;
        self.counter(
            "dmtree_index_cache_lookups_total",
            "Look-ups in the cache, by whether they found their bottom node.",
            ["index", "result"],
            &lookups,
        )?;
        self.counter(
            "dmtree_index_cache_evictions_total",
            "Cached nodes that were dropped for room.",
            ["index"],
            &evictions,
        )
    }

    fn verbs(&self, all: &[IndexReport]) -> Result<()> {
        let (mut verbs, mut bytes) = (Vec::new(), Vec::new());
        for r in all {
            for (side, s) in [("memory", &r.memory_side), ("compute", &r.compute_side)] {
                let SideReport { reads, writes, atomics, calls, read_bytes, written_bytes } = *s;
                let counts =
                    [("read", reads), ("write", writes), ("atomic", atomics), ("call", calls)];
                verbs.extend(counts.map(|(verb, n)| ([&r.name[..], side, verb], n)));
                let payload = [("read", read_bytes), ("written", written_bytes)];
                bytes.extend(payload.map(|(way, n)| ([&r.name[..], side, way], n)));
            }
        }
        self.counter(
            "dmtree_index_verbs_total",
            "Verbs and remote calls of operations, by the kind of their target. A session adds its \
             own every 512 operations.",
            ["index", "side", "verb"],
            &verbs,
        )?;
        self.counter(
            "dmtree_index_payload_bytes_total",
            "Payload of READs and WRITEs, by the kind of their target.",
            ["index", "side", "direction"],
            &bytes,
        )
    }

    #[cfg(feature = "tcp")]
    fn membership(&self, m: &MembershipReport) -> Result<()> {
        self.gauge("dmtree_pool_epoch", "The membership epoch.", [], &[([], m.state.epoch)])?;
        self.counter(
            "dmtree_pool_departures_total",
            "Compute nodes that have died or left.",
            [],
            &[([], m.state.deaths)],
        )?;
        self.gauge(
            "dmtree_pool_moves_tables",
            "Whether tables are being moved to other nodes: 0 or 1.",
            [],
            &[([], u64::from(m.state.planned.is_some()))],
        )?;
        let ready = [(["ready"], u64::from(m.ready)), (["wanted"], u64::from(m.memory_nodes))];
        self.gauge(
            "dmtree_pool_memory_nodes",
            "Memory nodes of the pool: those that are ready or have been, and all it has.",
            ["what"],
            &ready,
        )?;
        let nodes: Vec<_> = members(m).collect();
        let names: Vec<_> = nodes.iter().map(|(member, _)| member.node.to_string()).collect();
        let standing = names.iter().zip(&nodes).map(|(name, (_, is))| ([&name[..], *is], 1));
        self.gauge(
            "dmtree_pool_member",
            "The nodes of the pool, and what the membership holds of them.",
            ["node", "standing"],
            &standing.collect::<Vec<_>>(),
        )?;
        let made = prometheus::GaugeVec::new(
            Opts::new("dmtree_pool_lease_seconds", "How long the leases of members last."),
            &["node"],
        );
        let names: Vec<_> = m.leases.iter().map(|(member, _)| member.node.to_string()).collect();
        let leases = names.iter().zip(&m.leases).map(|(name, (_, ns))| ([&name[..]], *ns));
        let leases: Vec<_> = leases.collect();
        self.family(made, &leases, |gauge, ns| gauge.set(ns as f64 / 1e9))
    }
}
