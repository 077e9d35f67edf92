//! `bindings`: the C libraries with their example, and the Python package from an empty
//! environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{root, run, succeeds};

/// What the tests of the package use, beside the package. The package itself needs none of it.
const PACKAGES: [&str; 4] = ["maturin>=1.9,<2", "numpy", "pandas", "matplotlib"];

#[expect(clippy::disallowed_macros, reason = "a skip is loud")]
pub fn check(_: &[String]) -> Result<()> {
    let cargo = |words: &[&str]| {
        let manifest = root().join("bindings/Cargo.toml");
        let mut command = Command::new("cargo");
        command.args(&words[..1]).arg("--manifest-path").arg(manifest).args(&words[1..]);
        run(&mut command)
    };
    cargo(&["fmt", "--all", "--check"])?;
    // A release is built with `--locked`: a lock file that is behind the manifests shows here.
    cargo(&["clippy", "--locked", "--release", "--all-targets", "--", "-D", "warnings"])?;
    cargo(&["test", "--release", "-p", "dmtree-c"])?;
    let Some(python) = environment()? else { return Ok(()) };
    let wheel = wheel(&python)?;
    let pip = ["-m", "pip", "install", "-q", "--force-reinstall", "--no-deps"];
    run(Command::new(&python).args(pip).arg(&wheel))?;
    // The frames of the package are compared with what the program writes.
    run(Command::new("cargo").args(["build", "--release", "-p", "dmtree-cli"]))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = [root().join("target/release")];
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&path)))?;
    let tests = ["-m", "unittest", "discover", "-v", "-s", "bindings/python/tests"];
    run(Command::new(&python).args(tests).env("PATH", path))?;
    println!("bindings: {}", wheel.display());
    Ok(())
}

/// An environment of Python with nothing but the packages of the tests; none where there is no
/// Python, or no way to the packages.
#[expect(clippy::disallowed_macros, reason = "a skip is loud")]
fn environment() -> Result<Option<PathBuf>> {
    let recent = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    if !succeeds("python3", ["-c", recent]) {
        println!("SKIPPED: no Python 3.11 with venv is installed: the package was not tried");
        return Ok(None);
    }
    let place = root().join("target/python");
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
    let python = place.join("bin/python");
    let pip = ["-m", "pip", "install", "-q", "--timeout", "30"];
    let installed = run(Command::new(&python).args(pip).args(PACKAGES));
    if let Err(e) = installed {
        println!("SKIPPED: the package was not tried: {e:#}");
        return Ok(None);
    }
    Ok(Some(python))
}

/// Builds the wheel.
fn wheel(python: &Path) -> Result<PathBuf> {
    let place = root().join("target/wheels");
    let _ = std::fs::remove_dir_all(&place);
    let build = ["-m", "maturin", "build", "--release", "--quiet", "--interpreter"];
    let manifest = ["-m", "bindings/python/Cargo.toml", "--out"];
    run(Command::new(python).args(build).arg(python).args(manifest).arg(&place))?;
    let made = std::fs::read_dir(&place).with_context(|| place.display().to_string())?;
    let wheels: Vec<PathBuf> = made.filter_map(|file| Some(file.ok()?.path())).collect();
    match &wheels[..] {
        [wheel] => Ok(wheel.clone()),
        other => bail!("{} wheels in {}", other.len(), place.display()),
    }
}
