//! The verbs backend on a real kernel's RDMA stack, without a NIC: a throwaway virtual machine with Soft-RoCE.

mod machine;

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use machine::Machine;

/// What is called here and in the machine, and the packages that bring it.
const TOOLS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("cpio", "cpio"),
    ("ip", "iproute2"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ib_read_bw", "perftest"),
    ("cmake", "cmake"),
];

/// Files that no program on the path stands for.
const FILES: &[(&str, &str)] = &[
    ("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "ibverbs-providers"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/lib/x86_64-linux-gnu/libclang-14.so.1", "libclang-dev"),
];

const LIMIT: Duration = Duration::from_secs(420);

/// Why the machine cannot be had, or `None`.
fn install() -> Result<Option<String>> {
    let on_path = |tool: &str| {
        Command::new("sh")
            .args(["-c", &format!("command -v {tool}")])
            .output()
            .is_ok_and(|o| o.status.success())
    };
    let missing = || -> Vec<&str> {
        let tools = TOOLS.iter().filter(|(tool, _)| !on_path(tool)).map(|(_, p)| *p);
        let files = FILES.iter().filter(|(f, _)| !std::path::Path::new(f).exists());
        tools.chain(files.map(|(_, p)| *p)).collect()
    };
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Some("it is made for Linux on x86-64".to_owned()));
    }
    if missing().is_empty() {
        return Ok(None);
    }
    if !on_path("apt-get") {
        return Ok(Some(format!("needs {} and there is no apt-get", missing().join(", "))));
    }
    let id = Command::new("id").arg("-u").output().context("id -u")?;
    if id.stdout.trim_ascii() != b"0" {
        return Ok(Some(format!("run as root: apt-get install {}", missing().join(" "))));
    }
    let script = format!(
        "timeout 120 apt-get -qq update && DEBIAN_FRONTEND=noninteractive timeout 400 apt-get -qq install -y --no-install-recommends {} >/dev/null",
        missing().join(" ")
    );
    let installed = Command::new("sh").args(["-c", &script]).status().context("apt-get")?;
    if !installed.success() {
        return Ok(Some(format!("apt-get could not install {}", missing().join(", "))));
    }
    Ok(None)
}

/// A crate's executables with the feature.
struct Build {
    /// `test` or `build`, and what.
    args: &'static [&'static str],
    /// Names of the executables that are wanted.
    targets: &'static [&'static str],
}

const BUILDS: &[Build] = &[
    Build {
        args: &["test", "--no-run", "-p", "dmtree-fabric", "--features", "verbs"],
        targets: &["verbs", "verbs_no_allocation"],
    },
    Build {
        args: &["test", "--no-run", "-p", "dmtree-engine", "--features", "verbs"],
        targets: &["conformance", "verbs"],
    },
    Build {
        args: &["test", "--no-run", "-p", "dmtree-fptree", "--features", "verbs"],
        targets: &["conformance"],
    },
    Build { args: &["build", "-p", "dmtree-cli", "--features", "verbs"], targets: &["dmtree"] },
];

/// Builds, and returns the wanted executables in order.
fn build() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for b in BUILDS {
        let mut c = Command::new("cargo");
        c.args(b.args).arg("--message-format=json-render-diagnostics");
        if b.args[0] == "test" {
            b.targets.iter().for_each(|t| _ = c.args(["--test", t]));
        }
        let out =
            c.current_dir(crate::root()).stderr(Stdio::inherit()).output().context("cargo")?;
        if !out.status.success() {
            bail!("{c:?} failed");
        }
        let text = String::from_utf8_lossy(&out.stdout);
        let made: Vec<(String, String)> = text
            .lines()
            .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
            .filter_map(|m| {
                let name = m["target"]["name"].as_str()?.to_owned();
                Some((name, m["executable"].as_str()?.to_owned()))
            })
            .collect();
        for target in b.targets {
            let of = made.iter().find(|(name, _)| name == target);
            found.push(of.with_context(|| format!("cargo made no {target}"))?.1.clone());
        }
    }
    Ok(found)
}

/// What runs in the machine, in order. Conformance runs are shortened, for a verb takes 30 us there; the tests that are left out
/// say something about many keys only.
fn list() -> Result<Vec<String>> {
    let made = build()?;
    let [verbs, no_allocation, conformance, counts, baselines, dmtree] = &made[..] else {
        bail!("cargo made {} executables", made.len());
    };
    let scripts = crate::root().join("xtask/src/soft_roce");
    let script = |name: &str| format!("bash {} {dmtree}", scripts.join(name).display());
    let shortened = "DMTREE_NEED_RDMA=1 DMTREE_TEST_FABRIC=verbs DMTREE_STEPS_DIVISOR=40";
    Ok(vec![
        format!("DMTREE_NEED_RDMA=1 {verbs} --test-threads=1"),
        format!("DMTREE_NEED_RDMA=1 {no_allocation}"),
        format!("DMTREE_NEED_RDMA=1 {counts}"),
        format!("{shortened} {conformance} --skip loads_as_random"),
        format!(
            "{shortened} {baselines} --skip loads_as_random --skip full_memory_nodes --skip tables_overflow --skip three_nodes --skip three_memory_nodes"
        ),
        script("throughput.sh"),
        format!("{dmtree} doctor --fabric verbs"),
        format!(
            "{dmtree} fabric probe --fabric verbs --seconds 0.05 --out /tmp/rxe.toml && {dmtree} fabric show /tmp/rxe.toml >/dev/null"
        ),
        script("bad_machine.sh"),
    ])
}

/// Runs the list, or `command` alone.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn run(command: &[String]) -> Result<()> {
    if let Some(why) = install()? {
        println!("SKIPPED: the Soft-RoCE machine: {why}");
        return Ok(());
    }
    let list = match command {
        [] => list()?,
        words => vec![words.join(" ")],
    };
    let machine = Machine::prepare(&crate::root().join("target/soft-roce"))?;
    let ran = machine.run(&list, LIMIT)?;
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
