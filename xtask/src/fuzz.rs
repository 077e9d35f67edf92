//! Fuzz targets, each for a while. They are built as cargo-fuzz builds them, by a nightly compiler:
//! failing inputs are in `fuzz/artifacts`, and the binary with such a file as its argument (and
//! `FUZZ_TARGET` as here) repeats the failure.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::{output, root, run};

/// The compiler flags of cargo-fuzz, without a sanitizer where none is available.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address";

/// Targets, and where there are more inputs to begin with than in `fuzz/corpus`.
const TARGETS: [(&str, Option<&str>); 12] = [
    ("handshake", None),
    ("frames", None),
    ("messages", None),
    ("etcd", None),
    ("names", None),
    ("heads", None),
    ("pool_config", None),
    ("config", Some("lab/experiments")),
    ("profile", Some("crates/fabric/profiles")),
    ("dump", None),
    ("trace", None),
    ("keys", None),
];

/// `--seconds N` of each target, 120 by default; the names of targets: these alone.
#[expect(clippy::disallowed_macros, reason = "a skip is loud")]
pub fn run_all(args: &[String]) -> Result<()> {
    let (mut seconds, mut only) = (120u32, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let n = args.next().context("--seconds N")?;
                seconds = n.parse().context("a number of seconds")?;
            }
            name if TARGETS.iter().any(|(t, _)| *t == name) => only.push(name.to_owned()),
            other => bail!("unknown target {other:?}: {:?}", TARGETS.map(|(t, _)| t)),
        }
    }
    let Ok(version) = output(Command::new("rustc").args(["+nightly", "-vV"])) else {
        println!("SKIPPED: fuzzing needs a nightly compiler: rustup toolchain install nightly");
        return Ok(());
    };
    let host = version.lines().find_map(|l| l.strip_prefix("host: ")).context("no host")?;
    // With a target named, build scripts and macros are not instrumented.
    run(Command::new("cargo")
        .env("RUSTFLAGS", FLAGS)
        .args(["+nightly", "build", "--profile", "fuzz", "--package", "dmtree-fuzz"])
        .args(["--features", "libfuzzer,bench", "--target-dir", "fuzz/target", "--target", host]))?;
    let binaries = root().join("fuzz/target").join(host).join("fuzz");
    let chosen = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    let targets: Vec<_> = TARGETS.iter().filter(|(name, _)| chosen(name)).collect();
    let failed = fuzz_each(&binaries, &targets, seconds);
    if !failed.is_empty() {
        bail!("{failed:?} found something: see fuzz/artifacts");
    }
    Ok(())
}

/// Fuzzes one target per core at a time. Returns those that found something.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
fn fuzz_each(
    binaries: &Path,
    targets: &[&(&'static str, Option<&'static str>)],
    seconds: u32,
) -> Vec<&'static str> {
    let failed = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some((name, more)) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    println!("fuzz {name}: {seconds} s");
                    // The one target that takes long to build is a program of its own.
                    let program = if *name == "config" { name } else { "decoders" };
                    if let Err(e) = fuzz(&binaries.join(program), name, *more, seconds) {
                        println!("{e:#}");
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(*name);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn fuzz(binary: &Path, name: &str, more: Option<&str>, seconds: u32) -> Result<()> {
    // New inputs go to the first corpus; the committed one is only read.
    let found = root().join("fuzz/target/corpus").join(name);
    let artifacts = root().join("fuzz/artifacts").join(name);
    for folder in [&found, &artifacts] {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    let mut command = Command::new(binary);
    command.env("FUZZ_TARGET", name);
    command.args(["-timeout=10", "-rss_limit_mb=1024", "-malloc_limit_mb=128", "-verbosity=0"]);
    command.args(["-print_final_stats=1", "-max_len=4096"]);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", artifacts.display())).arg(found);
    let committed = root().join("fuzz/corpus").join(name);
    command.args([committed].iter().filter(|c| c.exists()));
    command.args(more.map(|m| root().join(m)));
    run(&mut command)
}
