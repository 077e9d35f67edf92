//! Tests the verbs backend on a real kernel's RDMA stack, without a NIC: in a throwaway virtual
//! machine with Soft-RoCE.

mod guest;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::built::executables;
use crate::machine::{self, Machine, Tool};
use crate::root;

/// The programs that this machine needs besides those of every machine, and their packages.
const TOOLS: &[Tool] = &[
    ("ip", "iproute2"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ib_read_bw", "perftest"),
    ("cmake", "cmake"),
];

/// Needed files that belong to no program on the path.
const FILES: &[Tool] = &[
    ("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "ibverbs-providers"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/lib/x86_64-linux-gnu/libclang-14.so.1", "libclang-dev"),
];

const LIMIT: Duration = Duration::from_secs(1200);

/// The executables built with the feature: the folder of the crate, and the executable's name.
const WANTED: &[(&str, &str)] = &[
    ("crates/fabric", "verbs"),
    ("crates/fabric", "verbs_no_allocation"),
    ("crates/fabric", "tcp"),
    ("crates/pool", "multi_process"),
    ("crates/engine", "verbs"),
    ("crates/engine", "suite"),
    ("crates/cli", "processes"),
    ("crates/cli", "dmtree"),
];

/// Builds all in one call, so that every crate is built once, and returns the executables.
fn build() -> Result<Vec<String>> {
    let mut c = Command::new("cargo");
    c.args(["build", "--bin", "dmtree"]);
    for test in ["verbs", "verbs_no_allocation", "tcp", "multi_process", "suite", "processes"] {
        c.args(["--test", test]);
    }
    // All of them are built with the feature of the fabric.
    c.args(["-p", "dmtree-pool"]);
    for package in ["dmtree-fabric", "dmtree-engine", "dmtree-cli"] {
        c.args(["-p", package, "--features", &format!("{package}/verbs")]);
    }
    let made = executables(&mut c)?;
    let bin = root().join("target/soft-roce/bin");
    std::fs::create_dir_all(&bin)?;
    let find = |(folder, name): &(&str, &str)| {
        let path = made.iter().find(|e| e.folder == Path::new(folder) && e.name == *name);
        let path = &path.with_context(|| format!("cargo made no {name} in {folder}"))?.path;
        // Copies the file, because another build may replace it while the machine runs it.
        let copy = bin.join(format!("{}-{name}", folder.replace('/', "-")));
        std::fs::copy(path, &copy).with_context(|| path.display().to_string())?;
        Ok(copy.display().to_string())
    };
    WANTED.iter().map(find).collect()
}

/// The commands of the machine, in order. Conformance runs are shortened, because a verb takes 30
/// us there. Tests that only matter with many keys are left out.
fn list() -> Result<Vec<String>> {
    let made = build()?;
    let [verbs, no_allocation, net, pool, counts, suite, processes, dmtree] = &made[..] else {
        bail!("cargo made {} executables", made.len());
    };
    let scripts = root().join("xtask/src/soft_roce");
    let script = |name: &str| format!("bash {} {dmtree}", scripts.join(name).display());
    let processes = format!(
        "DMTREE_TEST_FABRIC=verbs DMTREE_BIN={dmtree} {processes} --nocapture --test-threads=1"
    );
    let shortened = "DMTREE_NEED_RDMA=1 DMTREE_TEST_FABRIC=verbs DMTREE_STEPS_DIVISOR=40";
    Ok(vec![
        // The data path, all nodes in one process.
        format!("DMTREE_NEED_RDMA=1 {verbs} --test-threads=1"),
        format!("DMTREE_NEED_RDMA=1 {no_allocation}"),
        format!("DMTREE_NEED_RDMA=1 {counts}"),
        format!("{shortened} {suite} conformance::engine::local"),
        script("throughput.sh"),
        // Multi-process: the fabric, the pool, processes, every system.
        format!("DMTREE_TEST_FABRIC=verbs {net} --test-threads=1"),
        format!("DMTREE_TEST_FABRIC=verbs {pool} --test-threads=1"),
        // The NIC does not matter for strangers, room, fairness and the catalog.
        format!("{processes} costs:: --skip conform --skip run_after_run"),
        format!("{processes} operations:: memory_nodes::"),
        format!("{processes} restarts:: starts:: --skip the_name_of_an_index"),
        format!("{dmtree} conform --fabric verbs --steps 400"),
        script("demo.sh"),
        format!("{dmtree} doctor --fabric verbs"),
        format!(
            "{dmtree} fabric probe --fabric verbs --seconds 0.05 --out /tmp/rxe.toml && {dmtree} fabric show /tmp/rxe.toml >/dev/null"
        ),
        script("bad_machine.sh"),
    ])
}

/// The part of the list that the words ask for: `--only WORD` selects the lines with the word;
/// other words are a command of their own.
fn chosen(words: &[String]) -> Result<Vec<String>> {
    match words {
        [] => list(),
        [only, word] if only == "--only" => {
            let mut list = list()?;
            list.retain(|line| line.contains(word));
            if list.is_empty() {
                bail!("no command of the list has {word:?}");
            }
            Ok(list)
        }
        words => Ok(vec![words.join(" ")]),
    }
}

/// Runs the list, a part of it, or a command of its own.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn run(command: &[String]) -> Result<()> {
    if let Some(why) = machine::install(&[&machine::TOOLS, TOOLS].concat(), FILES)? {
        println!("SKIPPED: the Soft-RoCE machine: {why}");
        return Ok(());
    }
    let list = chosen(command)?;
    let machine = Machine::prepare(&root().join("target/soft-roce"))?;
    let ran = guest::run(&machine, &list, LIMIT)?;
    println!();
    for r in &ran {
        let status = r.status.map_or("unfinished".to_owned(), |s| format!("status {s}"));
        println!("{:7.1} s  {status}  {}", r.seconds, r.line);
    }
    let failed = ran.iter().filter(|r| r.status != Some(0)).count();
    if failed > 0 || ran.len() < list.len() {
        bail!("{failed} of {} commands failed in the Soft-RoCE machine", list.len());
    }
    println!("soft-roce: {} commands succeeded in the machine", ran.len());
    Ok(())
}
