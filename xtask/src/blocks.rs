//! `blocks`: the commands of documents are executed as they stand, so that what a document tells a
//! reader to type works.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{root, run};

/// Documents with commands that take no other tools than cargo and a shell.
const DOCUMENTS: [&str; 1] = ["docs/write-an-index.md"];

/// Begins a block of commands.
const FENCE: &str = "```sh\n";

/// Executes the blocks of the documents that are named, or of [`DOCUMENTS`]: one after the other,
/// each from the root of the repository, with `WORK` as an empty folder of the document. The first
/// command that fails ends it.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
#[expect(clippy::disallowed_methods, reason = "a developer's tool says how long commands take")]
pub fn check(names: &[String]) -> Result<()> {
    let all = DOCUMENTS.map(str::to_owned);
    for name in if names.is_empty() { &all[..] } else { names } {
        let text = std::fs::read_to_string(root().join(name)).context(name.clone())?;
        let blocks = blocks(&text);
        ensure!(!blocks.is_empty(), "{name} has no block of commands ({})", FENCE.trim_end());
        let work = work(name)?;
        for (i, block) in blocks.iter().enumerate() {
            println!("--- {name}, block {} of {}\n{}", i + 1, blocks.len(), block.trim_end());
            let began = Instant::now();
            let mut shell = Command::new("bash");
            // Crates of others are built once for all documents and for the workspace.
            shell.env("WORK", &work).env("CARGO_TARGET_DIR", root().join("target"));
            run(shell.args(["-euo", "pipefail", "-c", block]))?;
            println!("--- {} s", began.elapsed().as_secs());
        }
    }
    Ok(())
}

/// The blocks of commands of a document.
fn blocks(text: &str) -> Vec<&str> {
    let behind = text.split(FENCE).skip(1);
    behind.filter_map(|rest| rest.split("\n```").next()).collect()
}

/// An empty folder for the commands of a document.
fn work(name: &str) -> Result<PathBuf> {
    let folder = root().join("target/blocks").join(name.replace(['/', '.'], "-"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn only_commands_are_executed() {
        let text = "a\n```sh\necho 1\necho 2\n```\n```rust\nfn f() {}\n```\n```sh\nls\n```\n";
        assert_eq!(blocks(text), ["echo 1\necho 2", "ls"]);
        assert!(blocks("```\nls\n```\n").is_empty());
    }
}
