//! `cargo xtask tidy`: what a review would otherwise have to look for.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{metadata, output, root, run as execute, tracked};

/// Most lines of a source file.
const MOST_LINES: usize = 800;
/// Most third-party crates of a build without dev-dependencies. 21 of them are TLS and the making
/// of certificates (rustls with ring, and rcgen), 9 are HTTP for etcd's gateway (ureq), 8 are logs
/// (tracing and tracing-subscriber).
const MOST_CRATES: usize = 120;
/// Most third-party crates of the library's default build, build scripts and macros included. What
/// a feature adds (sockets by `tcp`, certificates by `tls`, JSON, Parquet, RDMA) must not come back
/// by default.
const MOST_DEFAULT_CRATES: usize = 22;
/// The one package of `crates/` that may depend on packages of `systems/` and `lab/`, optionally.
const BINARY: &str = "dmtree-cli";

/// Runs every check; fails with a line for each problem.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn run() -> Result<()> {
    let listed = tracked()?;
    let mut problems = Vec::new();
    for file in listed.lines().filter(|f| f.ends_with(".rs")) {
        let Ok(text) = std::fs::read_to_string(root().join(file)) else { continue };
        problems.extend(source_file(file, &text));
    }
    problems.extend(imports(&metadata()?)?);
    let default = locked_crates(&["-p", "dmtree-index"])?;
    if default > MOST_DEFAULT_CRATES {
        problems.push(format!(
            "{default} crates in the default build of dmtree-index; the limit is {MOST_DEFAULT_CRATES}"
        ));
    }
    let crates = locked_crates(&["--workspace"])?;
    if crates > MOST_CRATES {
        problems.push(format!(
            "{crates} locked crates without dev-dependencies; the limit is {MOST_CRATES}"
        ));
    }
    problems.extend(rust_version()?);
    if problems.is_empty() {
        println!(
            "tidy: {} files, {crates} locked crates without dev-dependencies, {default} of them in the library by default",
            listed.lines().count()
        );
        return Ok(());
    }
    bail!("{}", problems.join("\n"));
}

/// Its size, and what was left open in it.
fn source_file(file: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > MOST_LINES {
        problems.push(format!("{file}: {lines} lines; split it by role"));
    }
    let leftovers = [["TO", "DO"].concat(), ["FIX", "ME"].concat()];
    for (n, line) in text.lines().enumerate() {
        if leftovers.iter().any(|word| line.contains(word)) {
            problems.push(format!("{file}:{}: left open: {}", n + 1, line.trim()));
        }
    }
    problems
}

/// Dependencies that point upwards between the folders of the workspace, from what `cargo metadata`
/// says: only tests, and the binary by a feature, may use what measures, checks or is compared.
fn imports(metadata: &Value) -> Result<Vec<String>> {
    let root = metadata["workspace_root"].as_str().context("no workspace_root")?;
    let folder = |path: &Value| {
        let inside = Path::new(path.as_str()?).strip_prefix(root).ok()?;
        inside.iter().next()?.to_str().map(str::to_owned)
    };
    let mut problems = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().context("a package without a name")?;
        let forbidden: &[&str] = match folder(&package["manifest_path"]).as_deref() {
            Some("crates") => &["systems", "lab"],
            Some("systems") => &["lab"],
            _ => &[],
        };
        for dependency in package["dependencies"].as_array().context("no dependencies")? {
            let Some(folder) = folder(&dependency["path"]) else { continue };
            let allowed = dependency["kind"] == "dev"
                || (name == BINARY && dependency["optional"] == Value::Bool(true));
            if !allowed && forbidden.contains(&folder.as_str()) {
                let of = dependency["name"].as_str().unwrap_or_default();
                problems.push(format!(
                    "{name} depends on {of} of {folder}/: only tests may, and {BINARY} by a feature (ARCHITECTURE.md, The folders)"
                ));
            }
        }
    }
    Ok(problems)
}

/// Third-party crates that a build of some packages without dev-dependencies needs.
fn locked_crates(packages: &[&str]) -> Result<usize> {
    let words = ["tree", "-e", "no-dev", "--prefix", "none", "--format", "{p}"];
    let text = output(Command::new("cargo").args(words).args(packages).current_dir(root()))?;
    let names: BTreeSet<&str> = text
        .lines()
        .map(|l| l.trim_end_matches(" (*)").trim_end_matches(" (proc-macro)"))
        .filter(|l| !l.is_empty() && !l.contains('('))
        .collect();
    Ok(names.len())
}

/// The workspace says which compiler it needs; this one must be that one, or CI proves nothing
/// about it.
fn rust_version() -> Result<Option<String>> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml"))?;
    let wanted = manifest
        .lines()
        .find_map(|l| l.strip_prefix("rust-version = "))
        .context("the root manifest has no rust-version")?
        .trim_matches('"')
        .to_owned();
    let version = output(Command::new("rustc").arg("--version"))?;
    let found = version.split_whitespace().nth(1).unwrap_or("").to_owned();
    if found.starts_with(&wanted) {
        return Ok(None);
    }
    let pinned = format!("+{wanted}.0");
    let checked = execute(Command::new("cargo").args([&pinned, "check", "--workspace"]));
    Ok(checked.is_err().then(|| {
        format!(
            "rust-version {wanted} is not proved: rustc is {found}, and `cargo {pinned}` failed"
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What `imports` says of a package with one dependency.
    fn said(package: &str, dependency: &str, kind: Option<&str>, optional: bool) -> Vec<String> {
        let name = |path: &str| format!("dmtree-{}", path.rsplit('/').next().unwrap_or_default());
        let found = imports(&json!({
            "workspace_root": "/w",
            "packages": [{
                "name": name(package),
                "manifest_path": format!("/w/{package}/Cargo.toml"),
                "dependencies": [
                    {
                        "name": name(dependency),
                        "kind": kind,
                        "optional": optional,
                        "path": format!("/w/{dependency}"),
                    },
                    { "name": "serde", "kind": null, "optional": false },
                ],
            }],
        }));
        found.expect("the form of cargo metadata")
    }

    #[test]
    fn what_points_upwards_is_named() {
        for (package, dependency) in [
            ("crates/engine", "lab/check"),
            ("crates/dmtree", "systems/smart"),
            ("systems/fptree", "lab/workload"),
        ] {
            for kind in [None, Some("build")] {
                let said = said(package, dependency, kind, true);
                assert_eq!(said.len(), 1, "{package} {dependency}: {said:?}");
            }
            let tests = said(package, dependency, Some("dev"), false);
            assert!(tests.is_empty(), "{package} {dependency}");
        }
        let said = said("crates/engine", "lab/check", None, false);
        assert!(said[0].starts_with("dmtree-engine depends on dmtree-check of lab/"), "{said:?}");
    }

    #[test]
    fn the_binary_may_by_a_feature() {
        assert!(said("crates/cli", "lab/bench", None, true).is_empty());
        assert_eq!(said("crates/cli", "lab/bench", None, false).len(), 1);
    }

    #[test]
    fn what_points_downwards_is_fine() {
        for (package, dependency) in [
            ("crates/dmtree", "crates/engine"),
            ("systems/chime", "crates/engine"),
            ("systems/rolex", "crates/engine"),
            ("systems/sherman", "crates/engine"),
            ("lab/bench", "systems/smart"),
            ("xtask", "lab/check"),
        ] {
            assert!(said(package, dependency, None, false).is_empty(), "{package} {dependency}");
        }
    }
}
