//! The status of a node as Prometheus text. It is read when it is asked for: nothing is counted for
//! it, and no operation is slower.

#[cfg(feature = "tcp")]
use dmtree_fabric::net::{MembershipReport, NodeStatus};
use dmtree_fabric::{Error, Result};
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

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
    let all = Families(Registry::new());
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
    let all = Families(Registry::new());
    all.report(report)?;
    all.text()
}

fn failed(e: prometheus::Error) -> Error {
    Error::invalid(format!("metrics: {e}"))
}

/// The families of one scrape.
struct Families(Registry);

/// The values of a family: labels, and a value.
type Rows<'r, const N: usize> = &'r [([&'r str; N], u64)];

impl Families {
    fn text(&self) -> Result<String> {
        TextEncoder::new().encode_to_string(&self.0.gather()).map_err(failed)
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
        self.0.register(Box::new(family)).map_err(failed)
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
        self.verbs(all)
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
            bytes.push(([&name[..], "budget"], cache.budget_bytes));
            lookups.push(([&name[..], "hit"], cache.hits));
            lookups.push(([&name[..], "miss"], cache.misses));
            evictions.push(([&name[..]], cache.evictions));
        }
        self.gauge(
            "dmtree_index_cache_bytes",
            "Bytes of the cache of inner nodes: in use, and at most.",
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
