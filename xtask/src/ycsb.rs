//! `ycsb`: YCSB's own client over its binding, workloads A to F, against a pool of several
//! processes. What it has executed is replayed by `dmtree bench trace`: both count the same.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{output, root, run, succeeds};

const WORKLOADS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const RECORDS: u32 = 10_000;
const OPERATIONS: u32 = 20_000;
const THREADS: u32 = 4;

/// The names of operations: of the client's measurements, and of the replay's report.
const KINDS: [(&str, &str); 4] =
    [("READ", "read"), ("UPDATE", "update"), ("INSERT", "insert"), ("SCAN", "scan")];

/// Runs the workloads; fails where the client and the replay differ.
#[expect(clippy::disallowed_macros, reason = "a developer's tool prints, and a skip is loud")]
pub fn check(_: &[String]) -> Result<()> {
    let Some(java) = java_home() else {
        println!(
            "SKIPPED: no JDK with jni.h, or no Maven, is installed: YCSB's client was not run"
        );
        return Ok(());
    };
    let place = root().join("target/ycsb");
    std::fs::create_dir_all(&place)?;
    build(&java, &place)?;
    let mut table = String::from(
        "| | operations | of the client, a second | READ | UPDATE | INSERT | SCAN |\n",
    );
    table.push_str("|---|---|---|---|---|---|---|\n");
    for workload in WORKLOADS {
        let pool = MemoryNode::start()?;
        let client = |phase: &str, count: u32| client(&place, &pool, workload, (phase, count));
        let (loaded, ran) = (client("load", RECORDS)?, client("t", OPERATIONS)?);
        let replayed = replay(&place, workload)?;
        let counts = compare(workload, &[&loaded, &ran], &replayed)?;
        let seen = counts.map(|count| count.to_string()).join(" | ");
        let per_second = ran.get("OVERALL Throughput(ops/sec)").copied().unwrap_or_default();
        writeln!(table, "| {workload} | {OPERATIONS} | {per_second:.0} | {seen} |")?;
    }
    print!("{table}");
    println!("YCSB A to F: the client and the replay of what it has executed count the same");
    Ok(())
}

/// The folder of a JDK, when there is Maven, too.
fn java_home() -> Option<PathBuf> {
    let compiler = output(Command::new("sh").args(["-c", "readlink -f \"$(command -v javac)\""]));
    let compiler = PathBuf::from(compiler.ok()?.trim());
    let home = compiler.parent()?.parent()?.to_owned();
    let is_there = home.join("include/jni.h").exists() && succeeds("mvn", ["--version"]);
    is_there.then_some(home)
}

/// Builds the binding, its native side over the C library, and the program.
fn build(java: &Path, place: &Path) -> Result<()> {
    run(Command::new("mvn").args(["-q", "-B", "-f", "bindings/ycsb/pom.xml", "package"]))?;
    let manifest = ["--manifest-path", "bindings/Cargo.toml", "-p", "dmtree-c"];
    run(Command::new("cargo").args(["build", "--release"]).args(manifest))?;
    run(Command::new("cargo").args(["build", "--release", "-p", "dmtree-cli"]))?;
    let flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"];
    let include = |path: &Path| format!("-I{}", path.display());
    run(Command::new("cc")
        .args(flags)
        .args([include(&java.join("include")), include(&java.join("include/linux"))])
        .args(["-Ibindings/c/include", "bindings/ycsb/src/main/c/native.c"])
        .args(["bindings/target/release/libdmtree_c.a", "-lpthread", "-ldl", "-lm", "-o"])
        .arg(place.join("libdmtree_ycsb.so")))
}

/// A memory node, killed with this value.
struct MemoryNode {
    child: Child,
    address: String,
}

impl MemoryNode {
    fn start() -> Result<Self> {
        let size = ["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "512MiB"];
        let mut command = Command::new(root().join("target/release/dmtree"));
        let mut child = command.args(size).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("an output")?).lines();
        for line in lines {
            let line = line?;
            if let Some(at) = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")) {
                let address = at.trim_end_matches([',', ';', '.']).to_owned();
                return Ok(Self { child, address });
            }
        }
        bail!("a memory node does not say where it listens")
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A phase of a workload by YCSB's client; what it has measured.
fn client(
    place: &Path,
    pool: &MemoryNode,
    workload: &str,
    (phase, count): (&str, u32),
) -> Result<BTreeMap<String, f64>> {
    let java = place.join("java");
    let classes = format!("{}/dmtree-ycsb-0.1.0.jar:{}/lib/*", java.display(), java.display());
    let library = format!("-Ddmtree.library={}", place.join("libdmtree_ycsb.so").display());
    let mut command = Command::new("java");
    command.args([&library, "-cp", &classes, "site.ycsb.Client", &format!("-{phase}")]);
    command.args(["-db", "dmtree.ycsb.DmtreeClient", "-threads", &THREADS.to_string(), "-P"]);
    command.arg(root().join(format!("bindings/ycsb/workloads/{workload}.properties")));
    let properties = [
        ("recordcount", RECORDS.to_string()),
        ("operationcount", count.to_string()),
        ("dmtree.connect", pool.address.clone()),
        ("dmtree.trace", trace(place, workload, phase).display().to_string()),
    ];
    for (name, value) in properties {
        command.args(["-p", &format!("{name}={value}")]);
    }
    let printed = output(&mut command)?;
    let measured: BTreeMap<String, f64> = printed.lines().filter_map(measurement).collect();
    ensure!(!measured.is_empty(), "YCSB's client has measured nothing:\n{printed}");
    Ok(measured)
}

fn trace(place: &Path, workload: &str, phase: &str) -> PathBuf {
    place.join(format!("{workload}-{phase}.trace"))
}

/// `[READ], Return=OK, 17`.
fn measurement(line: &str) -> Option<(String, f64)> {
    let (kind, rest) = line.strip_prefix('[')?.split_once("], ")?;
    let (what, value) = rest.rsplit_once(", ")?;
    Some((format!("{kind} {what}"), value.parse().ok()?))
}

/// Operations by kind, from the replay of both phases.
fn replay(place: &Path, workload: &str) -> Result<BTreeMap<String, u64>> {
    let out = place.join(format!("{workload}-replay"));
    let traces = ["load", "t"].map(|phase| trace(place, workload, phase));
    let mut command = Command::new(root().join("target/release/dmtree"));
    output(command.args(["bench", "trace", "-q", "--out"]).arg(&out).args(traces))?;
    let report: Value = serde_json::from_slice(&std::fs::read(out.join("trace.json"))?)?;
    ensure!(report["mismatches"] == 0, "the replay of {workload} has mismatches: {report}");
    let kinds = report["by_kind"].as_object().context("no kinds")?;
    let ops = |(kind, figures): (&String, &Value)| Some((kind.clone(), figures["ops"].as_u64()?));
    Ok(kinds.iter().filter_map(ops).collect())
}

/// Operations by kind, which the client and the replay agree about; all of them went well.
fn compare(
    workload: &str,
    phases: &[&BTreeMap<String, f64>],
    replayed: &BTreeMap<String, u64>,
) -> Result<[u64; KINDS.len()]> {
    let mut counts = [0; KINDS.len()];
    for (count, (name, kind)) in counts.iter_mut().zip(KINDS) {
        let sum = |what: &str| -> u64 {
            phases.iter().filter_map(|measured| measured.get(what)).map(|n| *n as u64).sum()
        };
        *count = sum(&format!("{name} Operations"));
        let (well, ours) = (sum(&format!("{name} Return=OK")), replayed.get(kind).copied());
        ensure!(
            *count == well && *count == ours.unwrap_or(0),
            "{workload}: {count} operations {name} of the client, {well} of them well, {ours:?} of the replay"
        );
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_read() {
        let read = measurement("[READ], Return=OK, 17");
        assert_eq!(read, Some(("READ Return=OK".to_owned(), 17.0)));
        assert_eq!(measurement("READ usertable user1 [ <all fields>]"), None);
    }

    #[test]
    fn counts_that_differ_are_refused() {
        let of = |n: f64| {
            let names = ["READ Operations", "READ Return=OK"];
            names.map(|name| (name.to_owned(), n)).into_iter().collect::<BTreeMap<_, _>>()
        };
        let replayed = |n: u64| BTreeMap::from([("read".to_owned(), n)]);
        let both = compare("a", &[&of(3.0), &of(4.0)], &replayed(7));
        assert_eq!(both.ok(), Some([7, 0, 0, 0]));
        assert!(compare("a", &[&of(3.0)], &replayed(4)).is_err());
    }
}
