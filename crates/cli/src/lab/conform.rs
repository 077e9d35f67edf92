//! `conform`: the conformance suite on a memory node and two compute nodes, each a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use dmtree_bench::conform::{Extent, conform, second};
use dmtree_bench::registry;
use dmtree_check::remote_client::{Pipe, RemoteClient};
use dmtree_command::fabrics::TCP;
use dmtree_command::{Failure, Result};
use dmtree_pool::{Cluster, Place};

use super::args::ConformArgs;
use crate::args::carried;
use crate::output;

/// How long the compute nodes wait for the memory node.
const WITHIN: Duration = Duration::from_secs(30);
/// Region of the memory node that is started: every part of the suite has an index of its own.
const MEMORY: &str = "512MiB";
/// Its chunks: many and small, for those of an index that is gone are not used again.
const CHUNK: &str = "256KiB";

/// `conform`.
pub fn run(a: &ConformArgs) -> Result<()> {
    match &a.nodes {
        Some(at) if a.second => {
            let cluster = join(a, at)?;
            let mut pipe = Pipe::new(std::io::stdout(), std::io::stdin());
            second(&cluster, &mut pipe)
        }
        Some(at) => drive(a, at),
        None => {
            let memory = memory_node(a)?;
            drive(a, &memory.at)
        }
    }
}

/// A process that ends with this one.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Waits a while for its end: without further requests it leaves the pool in good order.
    fn ended(&mut self) {
        for _ in 0..100 {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// This binary again; what it says to people goes where this process's words go.
    fn start(args: &[&str]) -> Result<(Self, ChildStdin, ChildStdout)> {
        let cannot = |e: &dyn std::fmt::Display| Failure::input(format!("no second process: {e}"));
        let binary = std::env::current_exe().map_err(|e| cannot(&e))?;
        let mut command = Command::new(binary);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| cannot(&e))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => Ok((Self(child), to, from)),
            _ => Err(cannot(&"no pipes")),
        }
    }
}

/// The words that tell a process of its NIC and of the pool's key.
fn nic_args(a: &ConformArgs) -> Vec<String> {
    let device = a.nic.device.iter().flat_map(|d| ["--device".to_owned(), d.clone()]);
    let index = a.nic.gid_index.iter().flat_map(|i| ["--gid-index".to_owned(), i.to_string()]);
    let key_file = a.access.key_file.iter();
    let key_file = key_file.flat_map(|p| ["--key-file".to_owned(), p.display().to_string()]);
    let insecure = a.access.insecure.then(|| "--insecure".to_owned());
    device.chain(index).chain(key_file).chain(insecure).collect()
}

/// A memory node.
struct Memory {
    /// Where it listens.
    at: String,
    _process: Process,
    /// It may say more.
    _says: BufReader<ChildStdout>,
}

fn memory_node(a: &ConformArgs) -> Result<Memory> {
    let fabric = a.fabric.as_deref().unwrap_or(TCP);
    carried(fabric)?;
    let nic = nic_args(a);
    let mut args = vec!["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", MEMORY];
    args.extend(["--chunk-bytes", CHUNK]);
    args.extend(["--lease-ms", "5000", "--fabric", fabric]);
    args.extend(nic.iter().map(String::as_str));
    let (process, _, from) = Process::start(&args)?;
    let (mut line, mut says) = (String::new(), BufReader::new(from));
    let read = says.read_line(&mut line);
    let at = line.split(" at ").nth(1).and_then(|l| l.split(';').next());
    match (read, at) {
        (Ok(_), Some(at)) => Ok(Memory { at: at.to_owned(), _process: process, _says: says }),
        _ => Err(Failure::input("the memory node did not start: see above")),
    }
}

fn join(a: &ConformArgs, first: &str) -> Result<Cluster> {
    let data_path = a.fabric.as_deref().map(carried).transpose()?;
    let nic_config = &a.nic.nic_config(&a.access)?;
    let (listen, wanted, within) = (nic_config.access.any_port(), None, WITHIN);
    let joined = Cluster::join(&Place { first, listen, wanted, within, data_path, nic_config });
    joined.map_err(Failure::refused)
}

fn drive(a: &ConformArgs, at: &str) -> Result<()> {
    let systems = registry::select(&a.system)?;
    let cluster = join(a, at)?;
    let nic = nic_args(a);
    let mut args = vec!["conform", "--second", "--nodes", at];
    args.extend(nic.iter().map(String::as_str));
    let (mut process, to, from) = Process::start(&args)?;
    let other = RemoteClient::new(Pipe::new(to, from));
    let fabric = cluster.fabric().name();
    for system in systems {
        let extent = Extent { seed: a.seed, steps: a.steps, together: true };
        conform(&system, (&cluster, &other), extent)?;
        let how = if system.published { "one at a time" } else { "also at once" };
        let name = system.name;
        output::line(&format!("{name:22} conforms on fabric {fabric}: two processes, {how}"));
    }
    drop(other);
    process.ended();
    Ok(())
}
