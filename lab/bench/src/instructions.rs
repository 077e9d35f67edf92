//! Counted CPU: an operation costs the instructions that it executes.
//!
//! `cargo xtask instructions` counts them on one node, verbs on memory included; its table is part
//! of this program. The profile says how many a thread executes in a nanosecond
//! (`cpu.instructions_per_ns`). That is charged when an operation begins, and the steps that the
//! index names are free. Lines that threads pass to each other are waited for and not executed:
//! they keep their price, as verbs, completions and data services do. A record of a log has a price
//! of its own, because updates may go past the log: what an update executes with a log and not
//! without.

use dmtree_workload::{Op, OpKind};

use crate::failure::{Failure, Result};
use crate::simulated::Profile;

const TABLE: &str = include_str!("../../../docs/instructions.md");

/// The systems that are counted, and what follows the name of an operation in their rows.
const COUNTED: [(&str, &str); 3] = [("dmtree", ""), ("dmtree-images", IMAGES), ("dmtree-log", LOG)];
const IMAGES: &str = " (images)";
const LOG: &str = " (log)";

/// Pairs of a scan that is counted.
const SCAN_PAIRS: u64 = 50;

/// Columns of the table.
#[derive(Clone, Copy)]
enum Column {
    /// 100 000 keys: a fifth more of them is inserted, so that leaves split all the time.
    Splitting = 1,
    /// 1 000 000 keys.
    Large = 2,
}

/// The instructions of each operation of a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instructions {
    get: u64,
    absent: u64,
    insert: u64,
    update: u64,
    delete: u64,
    scan: u64,
}

impl Instructions {
    /// Those of a system by name.
    ///
    /// # Errors
    /// A system that is not counted.
    pub fn of(system: &str) -> Result<Self> {
        let Some((_, kind)) = COUNTED.into_iter().find(|(name, _)| *name == system) else {
            let names = COUNTED.map(|(name, _)| name).join(",");
            return Err(Failure::input(format!(
                "the instructions of {system} are not counted, only those of {names}: give --cpu charged or measured, or --systems {names}"
            )));
        };
        let record = if kind == LOG { record()? } else { 0 };
        let counted = |name: &str, column| counted(&format!("{name}{kind}"), column);
        Ok(Self {
            get: counted("get", Column::Large)?,
            absent: counted("absent", Column::Large)?,
            insert: counted("insert", Column::Splitting)?.saturating_sub(record),
            update: counted("update", Column::Large)?.saturating_sub(record),
            delete: counted("delete", Column::Large)?.saturating_sub(record),
            scan: counted("scan", Column::Large)?,
        })
    }

    /// Those of an operation.
    pub fn executes(&self, op: &Op<'_>) -> u32 {
        let n = match op.kind {
            OpKind::Read | OpKind::Get => self.get,
            OpKind::ReadAbsent => self.absent,
            OpKind::Insert => self.insert,
            OpKind::Update | OpKind::Put => self.update,
            OpKind::Delete => self.delete,
            OpKind::ReadModifyWrite => self.get + self.update,
            OpKind::Scan | OpKind::Pass => self.scan * u64::from(op.len) / SCAN_PAIRS,
        };
        u32::try_from(n).unwrap_or(u32::MAX)
    }
}

/// Instructions of a record of a log.
fn record() -> Result<u64> {
    let update = |kind| counted(&format!("update{kind}"), Column::Large);
    Ok(update(LOG)?.saturating_sub(update(IMAGES)?))
}

/// A cell of the table.
fn counted(row: &str, column: Column) -> Result<u64> {
    let cells = |line: &str| -> Vec<String> {
        line.split('|').skip(1).map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = TABLE.lines().filter(|l| l.starts_with('|')).map(cells);
    let row_of = rows.find(|cells| cells.first().is_some_and(|name| name == row));
    row_of
        .and_then(|cells| cells.get(column as usize)?.parse().ok())
        .ok_or_else(|| Failure::input(format!("docs/instructions.md has no row {row:?}")))
}

/// A profile in which a unit of an operation's fixed cost is an instruction, and the steps of an
/// index cost nothing more, but for records of a log.
///
/// # Errors
/// None: the values are in their ranges, and the table has its rows.
pub fn counting(mut profile: Profile) -> Result<Profile> {
    let free = [
        "cache_lookup_ns",
        "fingerprint_scan_ns",
        "entry_check_ns",
        "node_image_slot_ns",
        "local_queue_ns",
        "cache_fill_ns",
        "scan_collect_pair_ns",
    ];
    for field in free {
        profile.set(&format!("cpu.{field}"), "0")?;
    }
    let instruction_ns = 1.0 / profile.cpu.instructions_per_ns;
    profile.set("cpu.operation_ns", &instruction_ns.to_string())?;
    profile.set("cpu.log_record_ns", &(record()? as f64 * instruction_ns).to_string())?;
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_of_a_counted_system_has_instructions() {
        let op = |kind, len| Op { kind, record: 0, key: &[], version: 0, value: &[], len };
        for (system, _) in COUNTED {
            let counts = Instructions::of(system).unwrap();
            for kind in OpKind::ALL {
                let n = counts.executes(&op(kind, 50));
                assert!((500..200_000).contains(&n), "{system} {kind} {n}");
            }
            let (one, many) = (op(OpKind::Scan, 1), op(OpKind::Scan, 100));
            assert!(counts.executes(&many) > 90 * counts.executes(&one));
            assert!(counts.get < counts.update && counts.update < counts.insert, "{counts:?}");
        }
        let update = |system| Instructions::of(system).unwrap().update;
        assert_eq!(update("dmtree-log"), update("dmtree-images"), "past the log");
    }

    #[test]
    fn other_systems_are_refused_by_name() {
        let e = Instructions::of("sherman").unwrap_err().to_string();
        assert!(e.contains("of sherman are not") && e.contains("--systems dmtree"), "{e}");
    }

    #[test]
    fn a_unit_is_an_instruction() {
        let mut profile = Profile::named("dmtree-artifact-100g").unwrap();
        profile.set("cpu.instructions_per_ns", "4").unwrap();
        let p = counting(profile.clone()).unwrap();
        assert_eq!((p.cpu.operation_ns, p.cpu.cache_lookup_ns), (0.25, 0.0));
        assert_eq!((p.cpu.post_ns, p.cpu.polled_line_ns), (100.0, 100.0));
        assert_eq!(p.cpu.log_record_ns, record().unwrap() as f64 / 4.0);
        assert_eq!(p.host, profile.host, "data services keep their prices");
    }
}
