//! The developer's commands: `cargo xtask VERB`. Each verb is also a step of CI.
#![forbid(unsafe_code)]

mod bindings;
mod blocks;
mod book;
mod built;
mod check;
mod fields;
mod fuzz;
mod instructions;
mod machine;
mod power_fail;
mod prose;
mod report;
mod soak;
mod soft_roce;
mod suites;
mod tidy;
mod ycsb;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A verb with its arguments, what it does, and its code.
type Verb = (&'static str, &'static str, fn(&[String]) -> Result<()>);

const VERBS: &[Verb] = &[
    (
        "tidy",
        "file sizes, leftovers, imports between folders, number of locked crates, rust-version",
        |_| tidy::run(),
    ),
    (
        "prose",
        "the language of comments, documents and names: words per crate that depart from it",
        |_| prose::run(),
    ),
    ("loom", "every interleaving of the shared kernels (about a minute)", |_| loom()),
    (
        "miri",
        "undefined behaviour in the fabric, the cache and the formats (needs the nightly component `miri`)",
        |_| miri(),
    ),
    (
        "fuzz [--seconds N] [TARGET...]",
        "decoders of hostile bytes, two minutes each (needs a nightly compiler, and a C++ compiler)",
        fuzz::run_all,
    ),
    (
        "hostile",
        "a million hostile inputs and 3000 hostile connections against a memory node, with and without the key, while a client works",
        |_| hostile(),
    ),
    (
        "report-check [DIR]",
        "a browser renders the report of small runs (or of DIR), and its numbers are those of results.json",
        report::check,
    ),
    (
        "bindings",
        "the C libraries and their example, the Python package from an empty environment, their tests (Python 3.11 and a way to PyPI, else the package is skipped)",
        bindings::check,
    ),
    (
        "blocks [DOCUMENT...]",
        "executes the commands of documents as they stand: those of docs/write-an-index.md build an index outside of the workspace",
        blocks::check,
    ),
    (
        "book",
        "every page is in the summary and every link of a document resolves; the book in target/book (needs mdbook; says so when it skips)",
        book::build,
    ),
    (
        "check [--long]",
        "checked seeds without faults, with crashes, with all faults: those of CI, or half an hour of each range; marks that none of them reaches",
        |args| check::run(args.first().is_some_and(|a| a == "--long")),
    ),
    (
        "fields [--update]",
        "the tables of docs/experiments.md, made of the code that reads experiments and profiles",
        fields::compare,
    ),
    (
        "instructions [--update]",
        "instructions of each operation of a session, compared with docs/instructions.md (needs valgrind)",
        instructions::compare,
    ),
    (
        "features",
        "the library with each of its features alone, and with none (all but `verbs`, whose build needs more than Rust)",
        |_| features(),
    ),
    (
        "soak [--minutes N] [--seed S]",
        "real processes that start, leave, hang and are killed; acknowledged writes verified, nothing grows",
        soak::run,
    ),
    (
        "seeds [N] [--whole]",
        "all suites, with N seeds (default 300) of the interleaved and adversarial ones; --whole: every crash point",
        suites::seeds,
    ),
    (
        "peers",
        "the test programs of the workspace that `cargo test` leaves out, of compared systems, benchmark and tools; the suites that `seeds` runs are left to it",
        |_| suites::peers(),
    ),
    (
        "power-fail [N]",
        "N losses of power (default 20) of a throwaway virtual machine that writes to a journal (installs what it needs, as root)",
        power_fail::run,
    ),
    (
        "packages",
        "the crates that are published, as they would be: packed, and built from that (a way to the registry)",
        |_| packages(),
    ),
    (
        "ycsb",
        "YCSB's own client, workloads A to F, against a memory node (needs a JDK and Maven; says so when it skips)",
        ycsb::check,
    ),
    (
        "soft-roce [--only WORD | COMMAND]",
        "the verbs backend in a throwaway virtual machine with Soft-RoCE (installs what it needs, as root)",
        soft_roce::run,
    ),
];

#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let asked = args.first().map_or("", String::as_str);
    let verb = VERBS.iter().find(|(verb, ..)| verb.split(' ').next() == Some(asked));
    let Some((_, _, run)) = verb else {
        println!("cargo xtask VERB");
        VERBS.iter().for_each(|(verb, what, _)| println!("  {verb:10} {what}"));
        return ExitCode::from(2);
    };
    match run(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").into()
}

/// Without the variables by which cargo describes this package to its programs. Build scripts of
/// dependencies run again when some of them differ from run to run, and whatever depends on those
/// is built again.
fn outside(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if of_package.iter().any(|p| name.to_string_lossy().starts_with(p)) {
            command.env_remove(name);
        }
    }
    command
}

fn run(command: &mut Command) -> Result<()> {
    execute(command.current_dir(root()))
}

/// Runs a command in the folder that it names.
fn execute(command: &mut Command) -> Result<()> {
    let status = outside(command).status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}

/// Standard output of a command that succeeds.
fn output(command: &mut Command) -> Result<String> {
    let out = outside(command).output().with_context(|| format!("{command:?}"))?;
    if !out.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Whether a command is there and succeeds.
fn succeeds<const N: usize>(program: &str, args: [&str; N]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|out| out.status.success())
}

/// The files that git tracks, a line each.
fn tracked() -> Result<String> {
    output(Command::new("git").arg("ls-files").current_dir(root()))
}

/// What cargo says of the workspace.
fn metadata() -> Result<Value> {
    let words = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata = output(Command::new("cargo").args(words).current_dir(root()))?;
    Ok(serde_json::from_str(&metadata)?)
}

/// A build of the workspace turns on what any package asks for: here each feature must do with what
/// it brings itself.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
fn features() -> Result<()> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let library = packages.iter().find(|package| package["name"] == "dmtree-index");
    let features = library.and_then(|library| library["features"].as_object());
    let features = features.context("the library has no features")?.keys();
    for feature in features.map(String::as_str).filter(|name| *name != "verbs").chain([""]) {
        println!("dmtree-index with {}", if feature.is_empty() { "no feature" } else { feature });
        let words = ["clippy", "--quiet", "-p", "dmtree-index", "--no-default-features"];
        let mut command = Command::new("cargo");
        run(command.args(words).args(["--features", feature, "--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// The crates that say `publish = true`.
fn packages() -> Result<()> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let mut command = Command::new("cargo");
    command.args(["publish", "--dry-run", "--allow-dirty", "--locked"]);
    for package in packages.iter().filter(|package| package["publish"].is_null()) {
        let name = package["name"].as_str().context("a package without a name")?;
        let manifest = package["manifest_path"].as_str().context("a package without a place")?;
        // A package has files of its own alone.
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let its = std::fs::read(Path::new(manifest).with_file_name(licence));
            let whole = std::fs::read(root().join(licence))?;
            ensure!(its.is_ok_and(|its| its == whole), "{name}: {licence} is not the repository's");
        }
        command.arg("-p").arg(name);
    }
    forget_packages()?;
    run(&mut command)
}

/// Removes what cargo has unpacked of packages that it took from the folder in which it packs them:
/// it would take a later package of the same version for unpacked. Such folders have no host in
/// their names.
fn forget_packages() -> Result<()> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cargo"))
    });
    let sources = home.context("no home of cargo: set CARGO_HOME")?.join("registry/src");
    let Ok(registries) = std::fs::read_dir(sources) else { return Ok(()) };
    for registry in registries {
        let registry = registry?;
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for package in std::fs::read_dir(registry.path())? {
            let package = package?;
            if package.file_name().to_string_lossy().starts_with("dmtree-") {
                std::fs::remove_dir_all(package.path())?;
            }
        }
    }
    Ok(())
}

fn loom() -> Result<()> {
    run(Command::new("cargo")
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", "target/loom")
        .args(["test", "--release", "-p", "dmtree-fabric", "-p", "dmtree-parts"])
        .args(["--test", "loom_wait", "--test", "loom_shared"]))
}

#[expect(clippy::disallowed_macros, reason = "a skip is loud")]
fn miri() -> Result<()> {
    if !succeeds("cargo", ["+nightly", "miri", "--version"]) {
        let added = Command::new("rustup")
            .args(["component", "add", "miri", "rust-src", "--toolchain", "nightly"])
            .status();
        if !added.is_ok_and(|s| s.success()) {
            println!("SKIPPED: miri is not installed and `rustup component add miri` failed");
            return Ok(());
        }
    }
    // crossbeam-epoch gets from the head of an object to the object, which tree borrows allow. It
    // frees what was replaced last when the process ends, if at all.
    let flags = "-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-tree-borrows";
    // These modules have no unsafe block, and their property tests take Miri hours.
    let safe = ["--skip", "membership::", "--skip", "net::", "--skip", "sim::"];
    for (package, filter) in
        [("dmtree-fabric", ""), ("dmtree-parts", "cache"), ("dmtree-engine", "format")]
    {
        run(Command::new("cargo")
            .env("MIRIFLAGS", flags)
            .env("PROPTEST_CASES", "4")
            .env("CARGO_TARGET_DIR", "target/miri")
            .args(["+nightly", "miri", "test", "-p", package, "--lib", filter, "--"])
            .args(safe))?;
    }
    Ok(())
}

fn hostile() -> Result<()> {
    run(Command::new("cargo")
        .env("DMTREE_HOSTILE", "1000000,3000")
        .args(["test", "--release", "-p", "dmtree-cli", "--test", "processes", "hostile"])
        .args(["--", "--nocapture", "--test-threads", "1"]))
}

/// What `dmtree bench list --json` lists.
fn listing() -> Result<Value> {
    let words = ["run", "--release", "-q", "-p", "dmtree-cli", "--", "bench", "list", "--json"];
    let mut c = Command::new("cargo");
    let list = output(c.args(words).current_dir(root()).stderr(Stdio::inherit()))?;
    serde_json::from_str(&list).context("the list of systems and experiments")
}
