//! The checked seeds of CI. A coverage mark that none of them reaches must be reached by a named
//! test; otherwise its branch never runs.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{listing, outside, root, run as execute};

/// A range of seeds, and the node faults.
type Seeds = (&'static str, &'static str);

/// Seeds of CI of the first system of the list. A single seed reaches a mark that the ranges do
/// not.
const OF_THE_FIRST: [Seeds; 5] = [
    ("none", "0..1000"),
    ("crash", "0..400"),
    ("all", "0..400"),
    ("all", "802..803"),
    ("restarts", "0..60"),
];
/// Of the first system of each other family, if it recovers from crashes.
const OF_FAMILIES: [Seeds; 4] =
    [("none", "0..400"), ("crash", "0..200"), ("all", "0..200"), ("restarts", "0..20")];
/// Of [`VARIANTS`].
const OF_VARIANTS: [Seeds; 4] =
    [("none", "0..400"), ("crash", "0..200"), ("all", "0..200"), ("restarts", "0..60")];
/// Systems with a protocol of their own beside the first of their family.
const VARIANTS: [&str; 2] = ["dmtree-images", "dmtree-log"];
/// Of sound systems that do not recover.
const OF_OTHERS: [Seeds; 1] = [("none", "0..100")];

/// The seeds of every system of a list.
fn plan(list: &Value) -> Vec<(&str, Seeds)> {
    let systems = list["systems"].as_array().map_or(&[][..], Vec::as_slice);
    let mut plan = Vec::new();
    for (i, s) in systems.iter().enumerate() {
        let leads = systems[..i].iter().all(|earlier| earlier["family"] != s["family"]);
        let seeds = match (i, s["recovers"] == true, s["sound"] == true) {
            (0, ..) => &OF_THE_FIRST[..],
            (_, true, _) if leads => &OF_FAMILIES,
            (_, true, _) if VARIANTS.iter().any(|v| s["name"] == **v) => &OF_VARIANTS,
            (_, false, true) => &OF_OTHERS,
            _ => &[],
        };
        plan.extend(seeds.iter().map(|of| (s["name"].as_str().unwrap_or_default(), *of)));
    }
    plan
}

/// Marks that seeds reach seldom or never, and the test that reaches each. `crash` is
/// crates/engine/tests/suite/crash, `digest`, `fair`, `tables` and `dropped_leader` are in the
/// suite beside it, `chime` is the suite of systems/chime, `regressions` are the cases in
/// lab/bench/tests/suite/regressions, and `rare` is the engine's module of that name.
const BY_TESTS: &[(&str, &str)] = &[
    ("get: a table is unbuilt, and maintenance will build it", "tables: any_reader_has_tables"),
    ("recovery: a table that a reader has met unbuilt is built", "tables: any_reader_has_tables"),
    (
        "recovery: a table that a late WRITE has overwritten is built anew",
        "rare: a_table_that_a_late_write",
    ),
    (
        "leaf lock: left to other nodes that have had it less often",
        "fair: two_nodes_add_to_counters",
    ),
    ("gc: a tombstone that no queue would unlink", "rare: a_tombstone_that_no_list_names"),
    ("merge: no neighbours under one parent", "rare: leaves_that_are_no_neighbours"),
    ("block: its entry has changed meanwhile", "rare: a_block_that_holds_something_else"),
    (
        "inner: an image sampled around a relocation of the first child is read again",
        "rare: a_node_without_its_first_record",
    ),
    ("publish: an inner node was merged away meanwhile", "rare: an_inner_node_that_was_merged"),
    (
        "recovery: a tombstone's table is closed when its successor is gone, too",
        "rare: a_tombstone_is_closed_when_its_fence_is_gone",
    ),
    ("relocate: the record is still missing", "rare: a_leaf_without_a_record_does_not_move"),
    ("relocate: unlinking is tried again", "rare: a_tombstone_without_its_sibling_record"),
    ("inner: a half-done relocation is read again", "crash: relocation"),
    ("recovery: a bulk load that did not commit is forgotten", "crash: bulk_load"),
    ("gc: a dead node's lock on a lost leaf is taken over", "crash: late::a_late_repair"),
    ("root: another client was faster", "crash: late::a_late_split"),
    ("relocate: the range is worn out", "digest: descending_keys_wear_out_ranges"),
    ("recovery: a tombstone's table is closed", "crash: merge"),
    (
        "recovery: a dead node's lock on a closed table is given back",
        "regressions: a_closed_leaf_is_retired_once",
    ),
    ("recovery: a half merge is finished", "crash: merge"),
    ("recovery: a half merge of inner nodes is finished", "crash: drops::moves_and_merges_dropped"),
    ("recovery: a half split is finished", "crash: split"),
    ("recovery: a half split of an inner node is finished", "crash: inner_split_and_new_root"),
    ("recovery: a reader repairs a torn inner node", "crash: relocation"),
    ("recovery: a relocation that had committed is finished", "crash: relocation"),
    ("recovery: a torn insert is dropped", "crash: insert_update_delete_set"),
    ("recovery: a torn record is dropped", "crash: split"),
    ("recovery: a torn update is restored from its shadow", "crash: values_in_blocks"),
    ("recovery: staged slots of a merge that did not commit are dropped", "crash: merge"),
    (
        "recovery: the leader of a group is dropped, its members go alone",
        "dropped_leader: the_members_of_a_group_go_alone",
    ),
    ("recovery: a staged copy is the only one of its entry", "chime: crash::one_move"),
    ("recovery: the record of a tombstone is replaced or dropped", "crash: relocation"),
    ("recovery: the root of a bulk load is swung", "crash: bulk_load"),
    (
        "recovery: a waiter for a lock finds that its repair needs lost memory",
        "regressions: a_wait_for_lost_memory_ends_in_an_error_that_names_it",
    ),
];

/// Refuses marks that no seed reaches and `BY_TESTS` lacks, and entries of `BY_TESTS` without a
/// mark.
fn judge(reached: &BTreeMap<String, u64>) -> Result<()> {
    let listed = |mark: &str| BY_TESTS.iter().any(|(m, _)| *m == mark);
    let mut wrong = Vec::new();
    for (mark, n) in reached {
        if *n == 0 && !listed(mark) {
            wrong.push(format!("no seed reaches the mark \"{mark}\""));
        }
    }
    for (mark, _) in BY_TESTS {
        if !reached.contains_key(*mark) {
            wrong.push(format!("there is no mark \"{mark}\""));
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

/// Seeds of CI of the simulated network.
const NETWORK_SEEDS: &str = "0..512";
/// Small cases of CI, and how many orders of each.
const SMALL_CASES: [&str; 4] = ["--seeds", "0..9", "--orders", "3000"];

fn checker() -> Command {
    let mut c = Command::new("cargo");
    c.args(["run", "--release", "--", "check", "-q"]).current_dir(root());
    c
}

/// Runs the seeds, or as many of each range as fit into half an hour.
pub fn run(long: bool) -> Result<()> {
    execute(checker().args(["--network", "--seeds", NETWORK_SEEDS]))?;
    for system in ["dmtree"].iter().chain(&VARIANTS) {
        execute(checker().args(["--exhaustive", "--system", system]).args(SMALL_CASES))?;
    }
    let mut reached = BTreeMap::new();
    let list = listing()?;
    for (system, (faults, seeds)) in plan(&list) {
        if long && !seeds.starts_with("0..") {
            continue;
        }
        let mut c = checker();
        c.args(["--system", system, "--node-faults", faults, "--json"]);
        if faults == "restarts" {
            c.arg("--verify-determinism");
        }
        match long {
            true => c.args(["--minutes", "30"]),
            false => c.args(["--seeds", seeds]),
        };
        let out = outside(&mut c).stderr(std::process::Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() {
            bail!("checked seeds of {system}, faults {faults}: {}\n{text}", out.status);
        }
        let tally: Value = serde_json::from_str(&text).context("the report of the seeds")?;
        // A system as published has no marks.
        for (mark, hits) in tally["marks"].as_object().into_iter().flatten() {
            *reached.entry(mark.clone()).or_insert(0) += hits.as_u64().unwrap_or(0);
        }
    }
    // A run limited by time covers other seeds each time, so its marks are not judged.
    if long { Ok(()) } else { judge(&reached) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> BTreeMap<String, u64> {
        BY_TESTS.iter().map(|(m, _)| ((*m).to_owned(), 0)).collect()
    }

    #[test]
    fn every_family_and_every_sound_system_is_checked() {
        let system = |name, family, sound, recovers| serde_json::json!({"name": name, "family": family, "sound": sound, "recovers": recovers});
        let list = serde_json::json!({"systems": [
            system("a", "a", true, true), system("a-without", "a", true, true),
            system("dmtree-images", "a", true, true), system("dmtree-log", "a", true, true),
            system("b", "b", true, true), system("b-published", "b", false, false),
            system("c", "b", true, false),
        ]});
        let plan = plan(&list);
        let of = |name| plan.iter().filter(|(n, _)| *n == name).count();
        let names = ["a", "a-without", "dmtree-images", "dmtree-log", "b", "b-published", "c"];
        assert_eq!(names.map(of), [5, 0, 4, 4, 4, 0, 1]);
    }

    #[test]
    fn a_mark_that_nothing_reaches_is_named() {
        judge(&all()).expect("all are listed");
        let mut one = all();
        one.insert("a new branch".to_owned(), 0);
        assert!(judge(&one).expect_err("reached by no seed").to_string().contains("a new branch"));
        one.insert("a new branch".to_owned(), 1);
        judge(&one).expect("reached");
        assert!(judge(&BTreeMap::new()).is_err(), "the list names marks that are gone");
    }
}
