//! Cases that `dmtree check` has found and minimized, one in each file of the folder `regressions`.
//! The name of a file says what holds now, and its field `about` what the case has shown.

use std::path::Path;

use dmtree_bench::registry::{check, find};
use dmtree_check::Case;
use dmtree_check::peer::{each, passes};

/// A lock of `dmtree-published` is lost when a failing compare-and-swap writes back the value that
/// it has read.
const LOST_LOCK: &str =
    include_str!("regressions/a_published_lock_is_lost_between_the_halves_of_an_atomic.json");

/// A case of a system as published shows its finding still; every other case shows none.
#[test]
fn every_case_of_the_folder_keeps_its_verdict() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/regressions");
    let files = folder.read_dir().expect("the folder").map(|file| file.expect("a file").path());
    let files: Vec<_> = files.collect();
    assert!(files.len() >= 40, "cases are missing");
    passes(&each(&files, |file| {
        let text = std::fs::read_to_string(file).expect("text");
        let case = Case::parse(&text).map_err(|e| format!("{file:?}: {e}"))?;
        let finding = check(&case).expect("a case that runs").finding;
        if finding.is_some() != find(&case.system).expect("a system").published {
            return Err(format!("{file:?}: {}: {finding:?}", case.about));
        }
        Ok(())
    }));
}

/// The fabric or the checker misses the defect if the finding is another one.
#[test]
fn a_published_lock_needs_atomics_that_do_not_write_back() {
    let finding_of = |text: &str| check(&Case::parse(text).unwrap()).unwrap().finding;
    let finding = finding_of(LOST_LOCK).expect("a lost lock");
    assert_eq!(finding.kind(), "failed");
    assert!(finding.to_string().contains("lock of a leaf"), "{finding}");
    let granted =
        LOST_LOCK.replace("\"cas_fail_is_readonly\":false", "\"cas_fail_is_readonly\":true");
    assert_eq!(finding_of(&granted), None);
}
