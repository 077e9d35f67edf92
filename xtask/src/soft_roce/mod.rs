//! The verbs backend on a real kernel's RDMA stack, without a NIC: a throwaway virtual machine with Soft-RoCE.

mod machine;

use std::process::Command;
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

/// Runs the list, or `command` alone.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints")]
pub fn run(command: &[String]) -> Result<()> {
    if let Some(why) = install()? {
        println!("SKIPPED: the Soft-RoCE machine: {why}");
        return Ok(());
    }
    let dir = crate::root().join("target/soft-roce");
    let machine = Machine::prepare(&dir)?;
    let list = match command {
        [] => vec!["ibv_devinfo".to_owned()],
        words => vec![words.join(" ")],
    };
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
