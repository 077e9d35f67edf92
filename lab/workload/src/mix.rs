//! The shares of operation kinds, by name.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::dist::{Distribution, THETA};
use crate::error::{Error, Result};
use crate::rng::Rng;

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpKind {
    /// Search of a stored key.
    Read,
    /// Search of an absent key.
    ReadAbsent,
    /// Insert of a new key.
    Insert,
    /// Write to a stored key (an upsert in the published systems).
    Update,
    /// Removal of a stored key.
    Delete,
    /// Entries in ascending order from a stored key, without an upper bound.
    Scan,
    /// A search and then a write of the same key; it is not atomic.
    ReadModifyWrite,
    /// Search of a key that may be absent.
    Get,
    /// Write of a key that may be absent.
    Put,
    /// The next entries of a pass over all keys, ascending.
    Pass,
}

impl OpKind {
    /// Every kind, in the order in which [`Mix`] draws them.
    pub const ALL: [OpKind; 10] = [
        OpKind::Read,
        OpKind::ReadAbsent,
        OpKind::Insert,
        OpKind::Update,
        OpKind::Delete,
        OpKind::Scan,
        OpKind::ReadModifyWrite,
        OpKind::Get,
        OpKind::Put,
        OpKind::Pass,
    ];

    /// The name in files and results.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::ReadAbsent => "read-absent",
            OpKind::Insert => "insert",
            OpKind::Update => "update",
            OpKind::Delete => "delete",
            OpKind::Scan => "scan",
            OpKind::ReadModifyWrite => "read-modify-write",
            OpKind::Get => "get",
            OpKind::Put => "put",
            OpKind::Pass => "pass",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Weights of the operation kinds. Only their ratio counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[allow(missing_docs)] // the fields are the kinds
pub struct Mix {
    pub read: u32,
    pub read_absent: u32,
    pub insert: u32,
    pub update: u32,
    pub delete: u32,
    pub scan: u32,
    pub read_modify_write: u32,
    #[serde(skip_serializing_if = "is_none")]
    pub get: u32,
    #[serde(skip_serializing_if = "is_none")]
    pub put: u32,
    #[serde(skip_serializing_if = "is_none")]
    pub pass: u32,
}

fn is_none(weight: &u32) -> bool {
    *weight == 0
}

impl Mix {
    /// The weight of one kind.
    pub const fn weight(&self, kind: OpKind) -> u32 {
        match kind {
            OpKind::Read => self.read,
            OpKind::ReadAbsent => self.read_absent,
            OpKind::Insert => self.insert,
            OpKind::Update => self.update,
            OpKind::Delete => self.delete,
            OpKind::Scan => self.scan,
            OpKind::ReadModifyWrite => self.read_modify_write,
            OpKind::Get => self.get,
            OpKind::Put => self.put,
            OpKind::Pass => self.pass,
        }
    }

    /// The sum of the weights.
    pub fn total(&self) -> u64 {
        OpKind::ALL.iter().map(|&kind| u64::from(self.weight(kind))).sum()
    }

    /// Whether any operation needs a loaded record.
    pub fn needs_records(&self) -> bool {
        self.total() > u64::from(self.insert)
    }

    /// Draws a kind. A mix without weights gives reads; [`Workload`] refuses it before.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> OpKind {
        let mut at = rng.below(self.total().max(1));
        for kind in OpKind::ALL {
            let weight = u64::from(self.weight(kind));
            if at < weight {
                return kind;
            }
            at -= weight;
        }
        OpKind::Read
    }
}

/// A named mix, and the distribution of its own, if it has one.
///
/// In an experiment file: a name, or a table for a custom mix.
///
/// ```toml
/// workload = "ycsb-a"
/// ```
/// ```toml
/// workload = { name = "mostly-scans", mix = { scan = 80, insert = 20 } }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    name: String,
    /// The name in the published tables' `Workload` column: `search` is `ycsb-c` there, `insert`
    /// `insert-only`, and so on.
    pub csv_name: String,
    mix: Mix,
    /// The distribution that this workload always has, also if another one is requested: `latest`
    /// for YCSB D.
    pub distribution: Option<Distribution>,
    /// What it does to an index that begins empty, if it is a benchmark of db_bench.
    pub phase: Option<Phase>,
}

/// A benchmark of db_bench, LevelDB's tool: one of several that run one after the other on an index
/// that begins empty. Keys are uniform numbers below the number of records, which nothing loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// As many puts as there are records: `fillrandom`.
    Fill,
    /// Of a hundred operations of a client first so many gets, then puts:
    /// `readrandomwriterandom(R)`.
    Mixed(u32),
    /// Reads: `readrandom` (gets; missing keys count), `readseq` (a pass over all entries),
    /// `readrandomrange` (entries from a number on).
    Read,
}

impl Phase {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// The phase of these names, and its mix; `None` for other names.
    fn named(name: &str) -> Result<Option<(Self, Mix)>> {
        let none = Mix::default();
        let phase = match name {
            "fillrandom" => (Self::Fill, Mix { put: 100, ..none }),
            "readrandom" => (Self::Read, Mix { get: 100, ..none }),
            "readseq" => (Self::Read, Mix { pass: 100, ..none }),
            "readrandomrange" => (Self::Read, Mix { scan: 100, ..none }),
            _ => {
                let Some(reads) = name
                    .strip_prefix("readrandomwriterandom(")
                    .and_then(|rest| rest.strip_suffix(')'))
                else {
                    return Ok(None);
                };
                let get = reads.parse().ok().filter(|reads| *reads <= 100).ok_or_else(|| {
                    Error::new(format!(
                        "the readwritepercent of {name:?} is {reads}: give the gets of a hundred operations, 0 to 100"
                    ))
                })?;
                (Self::Mixed(get), Mix { get, put: 100 - get, ..none })
            }
        };
        Ok(Some(phase))
    }
}

/// The names of phases, with one of those that have a number.
const PHASES: [&str; 5] =
    ["fillrandom", "readrandom", "readrandomwriterandom(50)", "readseq", "readrandomrange"];

/// Name, name in the published tables, mix, own distribution.
type Builtin = (&'static str, &'static str, Mix, Option<Distribution>);

const LATEST: Option<Distribution> = Some(Distribution::Latest { theta: THETA });

/// All workloads, each once. The published artifact's table names of the micro workloads (`ycsb-c`
/// for search, `insert-only`, `update-only`, `scan-only`) are accepted as names, too.
static BUILTIN: LazyLock<[Builtin; 12]> = LazyLock::new(|| {
    [
        ("search", "ycsb-c", Mix { read: 100, ..Mix::default() }, None),
        ("search-absent", "search-absent", Mix { read_absent: 100, ..Mix::default() }, None),
        ("insert", "insert-only", Mix { insert: 100, ..Mix::default() }, None),
        ("update", "update-only", Mix { update: 100, ..Mix::default() }, None),
        ("delete", "delete", Mix { delete: 100, ..Mix::default() }, None),
        ("scan", "scan-only", Mix { scan: 100, ..Mix::default() }, None),
        ("ycsb-a", "ycsb-a", Mix { read: 50, update: 50, ..Mix::default() }, None),
        ("ycsb-b", "ycsb-b", Mix { read: 95, update: 5, ..Mix::default() }, None),
        ("ycsb-c", "ycsb-c", Mix { read: 100, ..Mix::default() }, None),
        ("ycsb-d", "ycsb-d", Mix { read: 95, insert: 5, ..Mix::default() }, LATEST),
        ("ycsb-e", "ycsb-e", Mix { scan: 95, insert: 5, ..Mix::default() }, None),
        ("ycsb-f", "ycsb-f", Mix { read: 50, read_modify_write: 50, ..Mix::default() }, None),
    ]
});

impl Workload {
    /// A workload by its name, or by its name in the published tables.
    ///
    /// # Errors
    /// A name that is neither; the message lists the valid ones.
    pub fn named(name: &str) -> Result<Self> {
        if let Some((phase, mix)) = Phase::named(name)? {
            return Ok(Workload {
                name: name.to_owned(),
                csv_name: name.to_owned(),
                mix,
                distribution: Some(Distribution::Uniform),
                phase: Some(phase),
            });
        }
        let by = |pick: fn(&Builtin) -> &'static str| BUILTIN.iter().find(|b| pick(b) == name);
        let Some(&(name, csv_name, mix, distribution)) = by(|b| b.0).or_else(|| by(|b| b.1)) else {
            return Err(Error::unknown(
                "workload",
                name,
                &Self::names().collect::<Vec<_>>().join(", "),
            ));
        };
        Ok(Workload {
            name: name.to_owned(),
            csv_name: csv_name.to_owned(),
            mix,
            distribution,
            phase: None,
        })
    }

    /// A custom mix; `name` is its name in results.
    ///
    /// # Errors
    /// An empty name, a name with characters other than letters, digits, `-`, `_` and `.`, or a
    /// built-in name; weights that are all 0.
    pub fn custom(name: &str, mix: Mix, distribution: Option<Distribution>) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(Error::new(format!(
                "{name:?} cannot name a workload: give 1 to 64 letters, digits, '-', '_' and '.'"
            )));
        }
        if Self::named(name).is_ok() {
            return Err(Error::new(format!(
                "workload {name:?} is built in: give your own mix another name"
            )));
        }
        if mix.pass > 0 {
            return Err(Error::new(format!(
                "workload {name:?} has a pass over all keys: only readseq has one"
            )));
        }
        if mix.total() == 0 {
            return Err(Error::new(format!(
                "workload {name:?} has no operations: give at least one kind a weight above 0"
            )));
        }
        Ok(Workload {
            name: name.to_owned(),
            csv_name: name.to_owned(),
            mix,
            distribution,
            phase: None,
        })
    }

    /// The names of the built-in workloads, those of phases, and then their other names in the
    /// published tables.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let published = BUILTIN.iter().map(|b| b.1).filter(|n| BUILTIN.iter().all(|b| b.0 != *n));
        BUILTIN.iter().map(|b| b.0).chain(PHASES).chain(published)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shares of the operations.
    pub fn mix(&self) -> &Mix {
        &self.mix
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Workload::named(text.trim())
    }
}

/// The table form of a workload.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Custom {
    /// Its name.
    name: String,
    /// Weights of operations, of which only the ratio counts: read, read-absent, insert, update,
    /// delete, scan, read-modify-write, get, put (of keys that may be absent).
    mix: Mix,
    /// The distribution of keys that it always has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    distribution: Option<Distribution>,
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        if Workload::named(&self.name).is_ok() {
            serializer.serialize_str(&self.name)
        } else {
            let Workload { name, mix, distribution, .. } = self.clone();
            Custom { name, mix, distribution }.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct NameOrTable;
        impl<'de> serde::de::Visitor<'de> for NameOrTable {
            type Value = Workload;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a workload's name, or a table with name and mix")
            }
            fn visit_str<E: serde::de::Error>(
                self,
                text: &str,
            ) -> std::result::Result<Workload, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> std::result::Result<Workload, A::Error> {
                let custom = Custom::deserialize(MapAccessDeserializer::new(map))?;
                Workload::custom(&custom.name, custom.mix, custom.distribution)
                    .map_err(serde::de::Error::custom)
            }
        }
        deserializer.deserialize_any(NameOrTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Seed;

    #[test]
    fn the_mixes_are_ycsbs() {
        let mix = |name| *Workload::named(name).unwrap().mix();
        let share = |name, kind| mix(name).weight(kind) as f64 / mix(name).total() as f64;
        for (name, shares) in [
            ("ycsb-a", [(OpKind::Read, 0.5), (OpKind::Update, 0.5)]),
            ("ycsb-b", [(OpKind::Read, 0.95), (OpKind::Update, 0.05)]),
            ("ycsb-d", [(OpKind::Read, 0.95), (OpKind::Insert, 0.05)]),
            ("ycsb-e", [(OpKind::Scan, 0.95), (OpKind::Insert, 0.05)]),
            ("ycsb-f", [(OpKind::Read, 0.5), (OpKind::ReadModifyWrite, 0.5)]),
        ] {
            for (kind, due) in shares {
                assert!((share(name, kind) - due).abs() < 1e-9, "{name} {kind}");
            }
        }
        for (name, kind) in [
            ("ycsb-c", OpKind::Read),
            ("search", OpKind::Read),
            ("search-absent", OpKind::ReadAbsent),
            ("insert", OpKind::Insert),
            ("update", OpKind::Update),
            ("delete", OpKind::Delete),
            ("scan", OpKind::Scan),
        ] {
            assert!((share(name, kind) - 1.0).abs() < 1e-9, "{name}");
        }
        assert_eq!(Workload::named("ycsb-d").unwrap().distribution.unwrap().to_string(), "latest");
    }

    #[test]
    fn drawn_kinds_have_their_share() {
        let mix = Mix { read: 50, insert: 10, delete: 5, scan: 35, ..Mix::default() };
        let mut rng = Seed(1).rng();
        let mut hits = [0.0f64; OpKind::ALL.len()];
        for _ in 0..100_000 {
            hits[mix.draw(&mut rng) as usize] += 1.0;
        }
        for kind in OpKind::ALL {
            let due = f64::from(mix.weight(kind)) * 1000.0;
            assert!((hits[kind as usize] - due).abs() <= 5.0 * due.sqrt(), "{kind}: {hits:?}");
        }
    }

    #[test]
    fn published_names_go_both_ways() {
        for (ours, theirs) in [
            ("search", "ycsb-c"),
            ("insert", "insert-only"),
            ("update", "update-only"),
            ("scan", "scan-only"),
        ] {
            assert_eq!(Workload::named(ours).unwrap().csv_name, theirs);
            assert_eq!(Workload::named(theirs).unwrap().csv_name, theirs);
        }
        assert_eq!(Workload::named("insert-only").unwrap().name(), "insert");
        let message = Workload::named("ycsb-g").unwrap_err().to_string();
        for name in Workload::names() {
            assert!(message.contains(name) && Workload::named(name).is_ok(), "{message}");
        }
    }

    #[test]
    fn phases_are_those_of_db_bench() {
        let of = |name| Workload::named(name).unwrap();
        assert_eq!(of("fillrandom").phase, Some(Phase::Fill));
        assert_eq!(of("readrandomwriterandom(95)").phase, Some(Phase::Mixed(95)));
        assert_eq!(
            *of("readrandomwriterandom(95)").mix(),
            Mix { get: 95, put: 5, ..Mix::default() }
        );
        assert!(of("readrandomwriterandom(0)").phase.unwrap().writes());
        assert!(!of("readseq").phase.unwrap().writes() && of("scan").phase.is_none());
        for bad in ["101", "-1", "", "x"] {
            let e = Workload::named(&format!("readrandomwriterandom({bad})")).unwrap_err();
            assert!(e.to_string().contains("0 to 100") && !e.to_string().contains('\n'), "{e}");
        }
        let json = serde_json::to_string(&of("readrandomwriterandom(5)")).unwrap();
        assert_eq!(json, "\"readrandomwriterandom(5)\"");
        assert!(Workload::custom("mine", Mix { pass: 1, ..Mix::default() }, None).is_err());
    }

    #[test]
    fn own_mixes_are_checked() {
        let mix = Mix { scan: 1, ..Mix::default() };
        assert!(Workload::custom("mine", mix, None).is_ok());
        for bad in ["", "a,b", "a\nb", "search", "insert-only"] {
            assert!(Workload::custom(bad, mix, None).is_err(), "{bad}");
        }
        assert!(Workload::custom("mine", Mix::default(), None).is_err());
    }
}
