//! Tells the crate the commit that it is built from. `DMTREE_COMMIT` in the
//! environment overrules what git says, for builds from an archive.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What of the repository is in a program.
const FOLDERS: [&str; 3] = ["crates", "systems", "lab"];
/// This crate.
const OWN: &str = "commit";

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let done = Command::new("git").arg("-C").arg(root).args(words).output().ok()?;
    let text = String::from_utf8(done.stdout).ok().filter(|_| done.status.success())?;
    Some(text.trim().to_owned())
}

/// The commit, with `+` behind it where sources differ from it.
fn commit(root: &Path) -> Option<String> {
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let mut words = vec!["status", "--porcelain", "--untracked-files=no", "--"];
    words.extend(FOLDERS);
    let is_clean = git(root, &words)?.is_empty();
    Some(if is_clean { commit } else { commit + "+" })
}

/// Folders that make another program when they change, and the log of checkouts.
fn watched(root: &Path) -> Vec<PathBuf> {
    let log = git(root, &["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]);
    let mut all: Vec<PathBuf> = log.map(PathBuf::from).into_iter().collect();
    let crates = FOLDERS.iter().filter_map(|f| root.join(f).read_dir().ok()).flatten().flatten();
    let others = crates.filter(|entry| entry.file_name() != OWN);
    all.extend(others.map(|entry| entry.path().join("src")));
    all.retain(|path| path.exists());
    all
}

#[expect(clippy::disallowed_macros, reason = "cargo reads what a build script prints")]
fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let given = std::env::var("DMTREE_COMMIT").ok();
    let commit = given.or_else(|| commit(&root)).unwrap_or_default();
    println!("cargo::rerun-if-env-changed=DMTREE_COMMIT");
    for path in watched(&root) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rustc-env=DMTREE_COMMIT={commit}");
}
