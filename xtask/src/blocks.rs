//! `blocks`: the commands of documents are executed as they stand, so that what a document tells a
//! reader to type works.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{root, run, succeeds};

/// Documents with commands that take no other tools than cargo and a shell; for one block, Python
/// and a way to PyPI.
const DOCUMENTS: [&str; 2] = ["docs/tutorial.md", "docs/write-an-index.md"];

/// Begins a block of commands; a word behind it says what the block needs beside cargo.
const FENCE: &str = "```sh";
/// A block that builds the wheel: it needs Python 3.11 and a way to PyPI.
const NEEDS_PYTHON: &str = "needs-python";

/// Executes the blocks of the documents that are named, or of [`DOCUMENTS`]: one after the other,
/// each from the root of the repository, with `WORK` as an empty folder of the document, outside of
/// the repository. The first command that fails ends it.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
#[expect(clippy::disallowed_methods, reason = "a developer's tool says how long commands take")]
pub fn check(names: &[String]) -> Result<()> {
    let all = DOCUMENTS.map(str::to_owned);
    for name in if names.is_empty() { &all[..] } else { names } {
        let text = std::fs::read_to_string(root().join(name)).context(name.clone())?;
        let blocks = blocks(&text);
        ensure!(!blocks.is_empty(), "{name} has no block of commands ({FENCE})");
        let work = Work::of(name)?;
        for (i, (needs, block)) in blocks.iter().enumerate() {
            if *needs == NEEDS_PYTHON && !has_python() {
                println!("SKIPPED: {name}, block {}: no Python 3.11 with a way to PyPI", i + 1);
                continue;
            }
            println!("--- {name}, block {} of {}\n{}", i + 1, blocks.len(), block.trim_end());
            let began = Instant::now();
            let mut shell = Command::new("bash");
            // Crates of others are built once for all documents and for the workspace.
            shell.env("WORK", &work.0).env("CARGO_TARGET_DIR", root().join("target"));
            // The wheel is built where `bindings` has built it.
            let wheel = format!("--target-dir {}", root().join("bindings/target").display());
            shell.env("MATURIN_PEP517_ARGS", wheel);
            run(shell.args(["-euo", "pipefail", "-c", block]))?;
            println!("--- {} s", began.elapsed().as_secs());
        }
    }
    Ok(())
}

/// The blocks of commands of a document, each with what it needs.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let fences = text.split(FENCE).skip(1);
    let blocks = fences.filter_map(|rest| rest.split_once('\n'));
    blocks.filter_map(|(needs, rest)| Some((needs.trim(), rest.split("\n```").next()?))).collect()
}

/// Whether a package of Python can be built here.
fn has_python() -> bool {
    let recent = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    let way = ["-m", "pip", "download", "-q", "--no-deps", "-d", "target/maturin", "maturin"];
    succeeds("python3", ["-c", recent]) && succeeds("python3", way)
}

/// An empty folder for the commands of a document, as long as they run. It is outside of the
/// repository: crates that are made there are in no workspace.
struct Work(PathBuf);

impl Work {
    fn of(name: &str) -> Result<Self> {
        let name = format!("dmtree-{}-{}", std::process::id(), name.replace(['/', '.'], "-"));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn only_commands_are_executed() {
        let text =
            "a\n```sh\necho 1\necho 2\n```\n```rust\nfn f() {}\n```\n```sh needs-python\nls\n```\n";
        assert_eq!(blocks(text), [("", "echo 1\necho 2"), ("needs-python", "ls")]);
        assert!(blocks("```\nls\n```\n").is_empty());
    }
}
