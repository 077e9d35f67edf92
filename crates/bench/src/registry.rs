//! The registry of systems that can be measured and used.

use dmtree_check::case::{Case, Draw, Drawn};
use dmtree_check::exhaustive::{Depth, Explored};
use dmtree_check::remote_client::{Pipe, RemoteClient};
use dmtree_check::verdict::Verdict;
use dmtree_engine::{DmTree, Options, Tables};
use dmtree_fabric::mark::Reached;
use dmtree_fabric::net::DataPath;
use dmtree_fptree::{FpTree, Options as FpOptions};
use dmtree_parts::{OpSet, RangeIndex};
use dmtree_pool::Cluster;
use dmtree_sherman::{Options as ShermanOptions, Sherman};
use dmtree_smart::{Options as SmartOptions, Smart};
use dmtree_workload::{KeyForm, ValueSize, Workload};
use serde_json::Value;

use crate::checked::{self, DrawOptions};
use crate::config::Config;
use crate::conform::{self, Extent};
use crate::facade::DynPool;
use crate::failure::{Failure, Result};
use crate::group::{Group, Host};
use crate::opened::PoolSpec;
use crate::sizing;

/// The fabric in this process's memory.
pub const LOCAL: &str = "local";
/// The simulated fabric.
pub const SIM: &str = "sim";
/// Nodes in several processes, over TCP.
pub const TCP: &str = "tcp";
/// Real RDMA.
pub const VERBS: &str = "verbs";
/// The fabrics that a system can run on here.
pub const FABRICS: [&str; 4] = [LOCAL, SIM, TCP, VERBS];

/// The data path of a fabric with several processes; `None` for the fabrics of one process.
pub fn data_path(fabric: &str) -> Option<DataPath> {
    [DataPath::Frames, DataPath::Rdma].into_iter().find(|c| c.name() == fabric)
}

/// Systems that experiments may name before they are built.
const PLANNED: [&str; 3] = ["rolex", "chime", "dlsm"];

/// A system: an index with its options.
#[derive(Clone, Debug)]
pub struct System {
    /// Its name, unique.
    pub name: &'static str,
    /// Its family; the first system of a family represents it.
    pub family: &'static str,
    /// Description, one line.
    pub description: &'static str,
    /// Whether it is "as published": layouts, verbs and unsoundness included.
    pub published: bool,
    /// Whether it recovers from crashes of nodes.
    pub recovers: bool,
    /// Its operations.
    pub ops: OpSet,
    /// Its creation options.
    pub options: Value,
    does: Does,
    draw: DrawOptions,
    marks: fn() -> Vec<Reached>,
    room: Room,
}

/// Bytes per key on memory nodes, for an index with these options and for these lengths of keys and
/// values; `None` for the usual number.
type Room = fn(&Value, u64, u64) -> Option<u64>;

/// Runs the conformance suite of an index with some options.
type Conform = fn(&str, &Value, (&Cluster, &RemoteClient), Extent) -> Result<()>;

/// The functions of an index type.
#[derive(Clone, Copy, Debug)]
struct Does {
    run: fn(&Group, &mut Host<'_>) -> Result<()>,
    open: fn(&str, &Value, &PoolSpec) -> Result<Box<dyn DynPool>>,
    check: fn(&Case) -> dmtree_fabric::Result<Verdict>,
    explore: fn(&Case, Depth, &dyn Fn() -> bool) -> dmtree_fabric::Result<Explored>,
    conform: Conform,
    second: fn(&Cluster, &str, &mut Pipe) -> Result<()>,
}

impl Does {
    #[cfg(not(test))]
    fn of<I: RangeIndex>() -> Self {
        Self {
            run: crate::group::run_group::<I>,
            open: crate::facade::open_pool::<I>,
            check: dmtree_check::run::<I>,
            explore: dmtree_check::exhaustive::explore::<I>,
            conform: conform::conform::<I>,
            second: conform::serve_index::<I>,
        }
    }

    /// Unit tests use the registry but run no system, because that would compile every index once
    /// more; `tests/suite` runs them.
    #[cfg(test)]
    #[expect(clippy::extra_unused_type_parameters, reason = "the same face")]
    fn of<I: RangeIndex>() -> Self {
        fn nothing<T>() -> Result<T> {
            Err(Failure::violation("unit tests of this crate run no system: tests/suite does"))
        }
        Self {
            run: |_, _| nothing(),
            open: |_, _, _| nothing(),
            check: |_| unreachable!("unit tests of this crate check no system: tests/suite does"),
            explore: |_, _, _| unreachable!("unit tests of this crate check no system"),
            conform: |_, _, _, _| nothing(),
            second: |_, _, _| nothing(),
        }
    }
}

impl System {
    /// A system of index type `I` with these options.
    pub fn of<I: RangeIndex>(
        name: &'static str,
        family: &'static str,
        description: &'static str,
        options: &I::Options,
    ) -> Self {
        Self {
            name,
            family,
            description,
            published: false,
            recovers: false,
            ops: I::OPS,
            options: serde_json::to_value(options).unwrap_or_default(),
            does: Does::of::<I>(),
            draw: checked::as_they_are,
            marks: Vec::new,
            room: |_, _, _| None,
        }
    }

    /// The same, marked "as published".
    #[must_use]
    pub fn as_published(self) -> Self {
        Self { published: true, ..self }
    }

    /// The rare branches of its code, with the number of times that any system of this process took
    /// each.
    pub fn marks(&self) -> Vec<Reached> {
        (self.marks)()
    }

    /// Measures the cells of a group, which share one loaded pool.
    ///
    /// # Errors
    /// Those of [`crate::group::run_group`].
    pub fn run(&self, group: &Group, host: &mut Host<'_>) -> Result<()> {
        (self.does.run)(group, host)
    }

    /// Runs a case with this system.
    ///
    /// # Errors
    /// A case that cannot run. Findings of a run are in the verdict.
    pub fn check(&self, case: &Case) -> Result<Verdict> {
        Ok((self.does.check)(case)?)
    }

    /// Explores the orders of a small case with this system.
    ///
    /// # Errors
    /// A case that cannot run.
    pub fn explore(&self, case: &Case, depth: Depth, go_on: &dyn Fn() -> bool) -> Result<Explored> {
        Ok((self.does.explore)(case, depth, go_on)?)
    }

    /// Runs the conformance suite on compute nodes of two processes: this one's, and the one behind
    /// the pipe. A system as published executes one operation at a time.
    ///
    /// # Errors
    /// A result that does not conform.
    pub fn conform(&self, cluster: &Cluster, other: &RemoteClient, extent: Extent) -> Result<()> {
        let extent = Extent { together: extent.together && !self.published, ..extent };
        (self.does.conform)(self.name, &conform::small(&self.options), (cluster, other), extent)
    }

    /// Runs the second of these processes, for one index.
    ///
    /// # Errors
    /// The first process has ended in the middle of a request.
    pub fn second(&self, cluster: &Cluster, index: &str, pipe: &mut Pipe) -> Result<()> {
        (self.does.second)(cluster, index, pipe)
    }

    /// Options for a checked run.
    pub fn draw(&self, d: &mut Draw) -> Drawn {
        (self.draw)(self.name, &self.options, d)
    }

    /// Its options, with inline sizes that fit keys and values of these lengths where there is a
    /// choice, or with exactly these lengths where keys and values have one length.
    pub fn fitted(&self, key: u64, value: u64) -> Value {
        let mut options = self.options.clone();
        let (k, v) = sizing::inline(key, value);
        set(&mut options, "key_inline_bytes", k);
        set(&mut options, "value_inline_bytes", v);
        set(&mut options, "key_bytes", key);
        set(&mut options, "value_bytes", value);
        options
    }

    /// Its options for the settings of a cell: fitted to the lengths of keys and values, and to the
    /// number of keys.
    pub fn options_for(&self, c: &Config) -> Value {
        let (key, value) = (sizing::longest_key(&c.key_form), u64::from(c.value_size.max()));
        let mut options = self.fitted(key, value);
        if let Some(at_billion) = c.table_chunk_at_billion {
            let bytes = sizing::scaled(at_billion, c.keys, sizing::LEAST_TABLE_CHUNK);
            set(&mut options, "table_chunk_bytes", bytes.next_multiple_of(64));
        }
        if c.key_form == KeyForm::Hashed24 {
            // There are ten decimal digits.
            set(&mut options, "largest_node", 16);
        }
        if let Some(page) = c.page_bytes {
            set(&mut options, "page_bytes", page.0);
            // Without tables a leaf is a page, too.
            if options.get("tables").is_some_and(|tables| tables == "none") {
                let (k, v) = sizing::inline(key, value);
                options["leaf_capacity"] = sizing::slots_of_page(page.0, k, v).into();
            }
        }
        options
    }

    /// Bytes of each memory node for a cell: as given, or computed.
    pub fn memory(&self, c: &Config, w: &Workload) -> u64 {
        sizing::memory(c, w, self.bytes_per_key(c))
    }

    /// Bytes of memory nodes that one key may take under these settings.
    pub fn bytes_per_key(&self, c: &Config) -> u64 {
        let (key, value) = (sizing::longest_key(&c.key_form), u64::from(c.value_size.max()));
        let room = (self.room)(&self.options_for(c), key, value).unwrap_or(0);
        room.max(sizing::bytes_per_key(key, value))
    }

    /// The feature that it lacks for a workload over these keys and values, as text.
    pub fn lacks(&self, c: &Config, w: &Workload) -> Option<String> {
        let one_key = match &c.key_form {
            KeyForm::Hashed24 | KeyForm::U64 | KeyForm::Sequential => true,
            KeyForm::Random { min, max } => min == max,
            _ => false,
        };
        let what = if !self.ops.delete && w.mix().delete > 0 {
            "delete"
        } else if !self.ops.any_length && !one_key {
            "keys of different lengths"
        } else if !self.ops.any_length && !matches!(c.value_size, ValueSize::Fixed(_)) {
            "values of different lengths"
        } else {
            return None;
        };
        Some(format!("{} has no {what}: leave it out, or the workload {w}", self.name))
    }

    /// An empty index on an embedded pool, for tools. `key` and `value` are typical lengths.
    ///
    /// # Errors
    /// Impossible sizes.
    pub fn open(&self, spec: &PoolSpec, key: u64, value: u64) -> Result<Box<dyn DynPool>> {
        (self.does.open)(self.name, &self.fitted(key, value), spec)
    }
}

/// Sets an option of systems that have it.
fn set(options: &mut Value, name: &str, to: u64) {
    if let Some(old) = options.get_mut(name) {
        *old = to.into();
    }
}

/// Every system; one line each.
pub fn systems() -> Vec<System> {
    let o = Options::default;
    vec![
        ours("dmtree", "DMTree with every technique on", &o()),
        ours(
            "dmtree-no-mirrors",
            "without copies of fingerprint tables in the cache",
            &Options { mirrors: false, ..o() },
        ),
        ours(
            "dmtree-tables-on-mn",
            "fingerprint tables and locks on memory nodes",
            &Options { tables: Tables::Memory, ..o() },
        ),
        ours(
            "dmtree-no-delegation",
            "readers of one key do not share a READ",
            &Options { delegation: false, ..o() },
        ),
        ours(
            "dmtree-no-combining",
            "writers of one key do not share a WRITE",
            &Options { combining: false, ..o() },
        ),
        ours(
            "dmtree-fixed-capacity",
            "leaves never grow, whatever the cache has room for",
            &Options { adaptive_capacity: false, ..o() },
        ),
        ours(
            "dmtree-no-rtc",
            "lock, table and unlock in round trips of their own",
            &Options { round_trip_combining: false, ..o() },
        ),
        published(
            "fptree",
            "fptree",
            "FPTree: fingerprint tables and locks on memory nodes",
            &FpOptions::fptree(),
        ),
        published(
            "fptree-rtc",
            "fptree",
            "FPTree with round trips combined",
            &FpOptions::fptree_rtc(),
        ),
        published(
            "fptree-cache",
            "fptree",
            "and tables on compute nodes with mirrors",
            &FpOptions::fptree_cache(),
        ),
        published(
            "fptree-locking",
            "fptree",
            "and locks on compute nodes: every published technique",
            &FpOptions::fptree_locking(),
        ),
        published(
            "dmtree-published",
            "dmtree-published",
            "DMTree as its artifact does it: every verb awaited",
            &FpOptions::dmtree_published(),
        ),
        System {
            family: "sherman",
            ..ours(
                "sherman",
                "Sherman made sound: every operation, crash recovery",
                &dmtree_sherman::sound::options(),
            )
        },
        sherman(
            "sherman-published",
            "Sherman with every published technique",
            &ShermanOptions::published(),
        ),
        sherman("fg", "FG with Sherman's cache: every verb awaited", &ShermanOptions::fg()),
        sherman("fg-combine", "FG with a page and its unlock together", &ShermanOptions::combine()),
        sherman("fg-on-chip", "and locks in the NIC's memory", &ShermanOptions::on_chip()),
        sherman(
            "fg-hierarchical",
            "and local locks with hand-over",
            &ShermanOptions::hierarchical(),
        ),
        System {
            recovers: true,
            draw: checked::smart_sound,
            room: |_, key, value| Some(sizing::sound_radix_bytes_per_key(key, value)),
            ..System::of::<dmtree_smart::sound::Smart>(
                "smart",
                "smart",
                "SMART made sound: every operation, crash recovery",
                &dmtree_smart::sound::Options::default(),
            )
        },
        smart(
            "smart-published",
            "SMART with every published technique",
            &SmartOptions::published(),
        )
        .as_published(),
        smart("art", "the radix tree that SMART starts from, sound", &SmartOptions::art()),
        smart(
            "smart-lock-free",
            "ART with homogeneous nodes without locks, as published",
            &SmartOptions::lock_free(),
        )
        .as_published(),
        smart("smart-in-place", "and leaves updated in place", &SmartOptions::in_place())
            .as_published(),
        smart("smart-rear-lock", "and locks at the end of leaves", &SmartOptions::rear_lock())
            .as_published(),
        smart("smart-delegation", "and readers that share a READ", &SmartOptions::delegation())
            .as_published(),
    ]
}

/// DMTree with some options.
fn ours(name: &'static str, description: &'static str, options: &Options) -> System {
    System {
        recovers: true,
        draw: checked::dmtree,
        marks: checked::dmtree_marks,
        ..System::of::<DmTree>(name, "dmtree", description, options)
    }
}

/// A preset of the published index.
fn published(
    name: &'static str,
    family: &'static str,
    description: &'static str,
    options: &FpOptions,
) -> System {
    let plain = System::of::<FpTree>(name, family, description, options);
    System { draw: checked::fptree, ..plain }.as_published()
}

/// A step from FG to Sherman.
fn sherman(name: &'static str, description: &'static str, options: &ShermanOptions) -> System {
    let plain = System::of::<Sherman>(name, "sherman", description, options);
    System { draw: checked::sherman, ..plain }.as_published()
}

/// A step from ART to SMART.
fn smart(name: &'static str, description: &'static str, options: &SmartOptions) -> System {
    System {
        draw: checked::smart,
        room: |options, key, value| {
            let (step, slots) = (options["leaf_step"].as_u64()?, options["largest_node"].as_u64()?);
            Some(sizing::radix_bytes_per_key(key, value, step, slots))
        },
        ..System::of::<Smart>(name, "smart", description, options)
    }
}

/// A system by name.
///
/// # Errors
/// An unknown name; the message lists the valid ones.
pub fn find(name: &str) -> Result<System> {
    let all = systems();
    let names: Vec<&str> = all.iter().map(|s| s.name).collect();
    all.iter().find(|s| s.name == name).cloned().ok_or_else(|| {
        Failure::input(format!("unknown system {name:?}: give one of {}", names.join(", ")))
    })
}

/// Systems by names, in this order, each once. `families` is the first of each family, `all` is
/// all.
///
/// # Errors
/// An unknown name.
pub fn select(names: &[String]) -> Result<Vec<System>> {
    let all = systems();
    let mut out: Vec<System> = Vec::new();
    let mut add = |s: System| {
        if out.iter().all(|have| have.name != s.name) {
            out.push(s);
        }
    };
    for name in names {
        match name.as_str() {
            "all" => all.iter().cloned().for_each(&mut add),
            "families" => {
                for (i, s) in all.iter().enumerate() {
                    if all[..i].iter().all(|earlier| earlier.family != s.family) {
                        add(s.clone());
                    }
                }
            }
            name => add(find(name).map_err(|e| match e {
                Failure::Input(m) => Failure::Input(format!("{m}; or families, or all")),
                other => other,
            })?),
        }
    }
    Ok(out)
}

/// Whether a name is that of a built or planned system.
pub fn known(name: &str) -> bool {
    PLANNED.contains(&name) || systems().iter().any(|s| s.name == name)
}

/// Systems by names, as [`select`], and the names of those that are not built yet. An experiment
/// may name such systems; an interactive user may not (`strict`).
///
/// # Errors
/// An unknown name.
pub fn split_built(names: &[String], strict: bool) -> Result<(Vec<System>, Vec<String>)> {
    let planned = |name: &String| PLANNED.contains(&name.as_str());
    let (missing, rest): (Vec<String>, Vec<String>) = names.iter().cloned().partition(planned);
    if let (true, Some(name)) = (strict, missing.first()) {
        return Err(Failure::input(format!("system {name} is not built yet")));
    }
    Ok((select(&rest)?, missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_selectable() {
        let all = systems();
        for (i, s) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|t| t.name != s.name), "{}", s.name);
            assert_eq!(find(s.name).unwrap().name, s.name);
        }
        let names = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|s| (*s).to_owned()).collect();
            select(&list).unwrap().iter().map(|s| s.name).collect::<Vec<_>>()
        };
        let families = ["dmtree", "fptree", "dmtree-published", "sherman", "smart"];
        assert_eq!(names(&["families"]), families);
        assert_eq!(names(&["all"]).len(), all.len());
        assert_eq!(names(&["dmtree-no-rtc", "dmtree", "dmtree"]), ["dmtree-no-rtc", "dmtree"]);
        assert!(find("x").unwrap_err().to_string().contains("dmtree-no-rtc"));
    }

    #[test]
    fn inline_sizes_are_fitted() {
        let fitted = find("dmtree").unwrap().fitted(8, 100);
        assert_eq!(
            (&fitted["key_inline_bytes"], &fitted["value_inline_bytes"]),
            (&8.into(), &104.into())
        );
        let fitted = find("fptree").unwrap().fitted(20, 100);
        assert_eq!((&fitted["key_bytes"], &fitted["value_bytes"]), (&20.into(), &100.into()));
    }
}
