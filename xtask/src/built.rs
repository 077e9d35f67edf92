//! What a build of cargo has made.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;
use serde_json::Value;

use crate::{output, root};

/// An executable of a build.
pub struct Executable {
    /// The folder of its package, from the root of the repository.
    pub folder: PathBuf,
    pub name: String,
    pub is_test: bool,
    pub path: PathBuf,
}

impl Executable {
    fn of(message: &Value) -> Option<Self> {
        let path = message["executable"].as_str()?.into();
        let name = message["target"]["name"].as_str()?.to_owned();
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let folder = folder.strip_prefix(root()).ok()?.into();
        Some(Self { folder, name, is_test: message["profile"]["test"] == true, path })
    }

    /// To be run in the folder of its package, as `cargo test` does.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(root().join(&self.folder));
        command
    }
}

/// The executables that a command of cargo builds. It runs none of them.
pub fn executables(build: &mut Command) -> Result<Vec<Executable>> {
    build.arg("--message-format=json-render-diagnostics").current_dir(root());
    let text = output(build.stderr(Stdio::inherit()))?;
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter_map(|message| Executable::of(&message))
        .collect())
}
