//! `doctor`: what this machine has of what a fabric needs, each with the command that repairs it.

use std::fs;
use std::path::{Path, PathBuf};

use dmtree_command::access::access;
use dmtree_command::bytes::Bytes;
use dmtree_command::fabrics::{LOCAL, SIM, TCP, VERBS};
use dmtree_command::{Failure, Result};
use dmtree_fabric::net::Keys;

use crate::args::{AccessArgs, DoctorArgs, INSECURE};
use crate::output;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// It works without, slower or less far.
    Better,
    /// Verbs do not work without.
    Missing,
}

/// One check.
#[derive(Debug)]
struct Check {
    what: &'static str,
    verdict: Verdict,
    found: String,
    repair: String,
}

fn good(what: &'static str, found: impl Into<String>) -> Check {
    Check { what, verdict: Verdict::Good, found: found.into(), repair: String::new() }
}

fn bad(
    what: &'static str,
    verdict: Verdict,
    found: impl Into<String>,
    repair: impl Into<String>,
) -> Check {
    Check { what, verdict, found: found.into(), repair: repair.into() }
}

/// `doctor`.
pub fn run(args: &DoctorArgs) -> Result<()> {
    if ![LOCAL, SIM, TCP, VERBS].contains(&args.fabric.as_str()) {
        return Err(Failure::input(format!(
            "unknown fabric {:?}: give {LOCAL}, {SIM}, {TCP} or {VERBS}",
            args.fabric
        )));
    }
    let here = Machine { root: &args.root, region: args.region };
    let mut missing = 0;
    let all = [(true, strangers(&args.access))].into_iter().chain(here.checks(&args.fabric));
    for (needed, check) in all {
        let verdict = if needed { check.verdict } else { check.verdict.min_for_others() };
        missing += u32::from(verdict == Verdict::Missing);
        let sign = match verdict {
            Verdict::Good => "ok      ",
            Verdict::Better => "note    ",
            Verdict::Missing => "MISSING ",
        };
        output::line(&format!("{sign} {:15} {}", check.what, check.found));
        if !check.repair.is_empty() {
            output::line(&format!("{:25}repair: {}", "", check.repair));
        }
    }
    if missing > 0 {
        let things = if missing == 1 { "thing is" } else { "things are" };
        return Err(Failure::violation(format!(
            "{missing} {things} missing that fabric {} needs; `note` is what others would like",
            args.fabric
        )));
    }
    output::line(&format!("fabric {} has what it needs", args.fabric));
    Ok(())
}

/// Which processes may connect to nodes that are started with these words.
fn strangers(args: &AccessArgs) -> Check {
    const WHAT: &str = "access";
    const MAKE: &str = "dmtree keys new pool.keys, --key-file pool.keys for every process of the pool, or DMTREE_KEY_FILE";
    match access(args.key_file.as_deref(), args.insecure) {
        Err(e) => bad(WHAT, Verdict::Missing, e.to_string(), MAKE),
        Ok(a) if a.keys.is_some() => good(WHAT, keys(&a.keys)),
        Ok(a) if a.insecure => bad(WHAT, Verdict::Better, INSECURE, MAKE),
        Ok(_) => {
            good(WHAT, "no keys: nodes listen on the loopback only, for processes of this machine")
        }
    }
}

/// What keys allow, and what they do not protect.
fn keys(keys: &Keys) -> String {
    let roles = keys.identity().map_or_else(String::new, |is| is.roles.to_string());
    format!(
        "keys with the roles {roles}: TLS between the processes of the pool (RDMA packets are not encrypted)"
    )
}

impl Verdict {
    /// What another fabric needs is no more than a note.
    fn min_for_others(self) -> Self {
        if self == Self::Missing { Self::Better } else { self }
    }
}

/// This machine, as its files show it.
struct Machine<'a> {
    root: &'a Path,
    region: Bytes,
}

impl Machine<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without the ends; empty when it is not there.
    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default().trim().to_owned()
    }

    /// Names in a directory, in order.
    fn names(&self, path: &str) -> Vec<String> {
        let all = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            all.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A number of /proc/meminfo, in its unit.
    fn meminfo(&self, name: &str) -> Option<u64> {
        let all = self.text("/proc/meminfo");
        let line = all.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// All checks, and whether the asked fabric needs them.
    fn checks(&self, fabric: &str) -> Vec<(bool, Check)> {
        let verbs = fabric == VERBS;
        let mut all = vec![(true, self.free_memory()), (verbs, self.locked_memory())];
        all.push((verbs, self.huge_pages()));
        all.push((verbs, backend()));
        all.push((verbs, self.library()));
        all.push((verbs, self.kernel()));
        let devices = self.names("/sys/class/infiniband");
        if devices.is_empty() {
            let repair = "load the NIC's driver (modprobe mlx5_ib), or make a software device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE";
            all.push((verbs, bad("devices", Verdict::Missing, "no RDMA device", repair)));
            return all;
        }
        all.push((verbs, good("devices", devices.join(", "))));
        let ports: Vec<Check> = devices.iter().flat_map(|d| self.ports(d)).collect();
        // One port that works is enough: the others are notes then.
        let enough = ports.iter().any(|c| c.what == "address" && c.verdict == Verdict::Good);
        all.extend(ports.into_iter().map(|c| (verbs && !enough, c)));
        all.extend(devices.iter().map(|d| (verbs, self.numa(d))));
        all.push((verbs, limits()));
        all
    }

    fn free_memory(&self) -> Check {
        let free = Bytes(self.meminfo("MemAvailable").unwrap_or(0) << 10);
        let found = format!("{} MiB free", free.0 >> 20);
        if free.0 >= self.region.0 {
            return good("memory", found);
        }
        let repair =
            format!("give nodes smaller regions than {}, or stop other programs", self.region);
        bad("memory", Verdict::Missing, found, repair)
    }

    fn locked_memory(&self) -> Check {
        const WHAT: &str = "locked memory";
        const CAP_IPC_LOCK: u64 = 1 << 14;
        let limits = self.text("/proc/self/limits");
        let line = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"));
        let soft = line.and_then(|l| l.split_whitespace().next()).unwrap_or("unknown");
        let status = self.text("/proc/self/status");
        let caps = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
        let caps = caps.and_then(|c| u64::from_str_radix(c.trim(), 16).ok()).unwrap_or(0);
        match soft.parse::<u64>() {
            _ if caps & CAP_IPC_LOCK != 0 => good(WHAT, "unlimited (CAP_IPC_LOCK)"),
            Err(_) if soft == "unlimited" => good(WHAT, soft),
            Ok(bytes) if bytes >= self.region.0 => good(WHAT, format!("{} MiB", bytes >> 20)),
            known => {
                let found = match known {
                    Ok(bytes) => {
                        format!("{} KiB, regions of {} are wanted", bytes >> 10, self.region)
                    }
                    Err(_) => format!("limit {soft}"),
                };
                let repair = "ulimit -l unlimited; for good: `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container";
                bad(WHAT, Verdict::Missing, found, repair)
            }
        }
    }

    fn huge_pages(&self) -> Check {
        let size_kib = self.meminfo("Hugepagesize").unwrap_or(2048).max(1);
        let free = self.meminfo("HugePages_Free").unwrap_or(0);
        let wanted = self.region.0.div_ceil(size_kib << 10);
        let transparent = self.text("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = transparent.split(['[', ']']).nth(1).unwrap_or("unknown");
        let found = format!("{free} free of {size_kib} KiB, transparent ones: {chosen}");
        if free >= wanted {
            return good("huge pages", found);
        }
        let repair = format!(
            "sysctl vm.nr_hugepages={wanted} (preferred, never required: without them a NIC misses its translations more often)"
        );
        bad("huge pages", Verdict::Better, found, repair)
    }

    fn library(&self) -> Check {
        const NAME: &str = "libibverbs.so.1";
        let mut folders =
            vec!["/lib".to_owned(), "/usr/lib".to_owned(), "/usr/local/lib".to_owned()];
        folders.extend(["/lib64".to_owned(), "/usr/lib64".to_owned()]);
        let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        folders.push(machine);
        let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        folders.extend(path.split(':').filter(|p| !p.is_empty()).map(str::to_owned));
        match folders.iter().find(|f| self.path(&format!("{f}/{NAME}")).exists()) {
            Some(f) => good("library", format!("{f}/{NAME}")),
            None => bad(
                "library",
                Verdict::Missing,
                format!("no {NAME}"),
                "apt-get install libibverbs1 ibverbs-providers, or dnf install libibverbs",
            ),
        }
    }

    fn kernel(&self) -> Check {
        let nodes: Vec<String> = self
            .names("/dev/infiniband")
            .into_iter()
            .filter(|n| n.starts_with("uverbs"))
            .map(|n| format!("/dev/infiniband/{n}"))
            .collect();
        if nodes.is_empty() {
            let repair =
                "modprobe ib_uverbs; in a container pass the devices on: --device /dev/infiniband";
            return bad("kernel", Verdict::Missing, "no /dev/infiniband/uverbs*", repair);
        }
        let opens =
            |n: &&String| fs::OpenOptions::new().read(true).write(true).open(self.path(n)).is_err();
        match nodes.iter().find(opens) {
            None => good("kernel", nodes.join(", ")),
            Some(n) => bad(
                "kernel",
                Verdict::Missing,
                format!("{n} may not be opened"),
                format!("chmod 0666 {n}, or a udev rule with MODE=\"0666\""),
            ),
        }
    }

    /// State, link and addresses of each port of a device.
    fn ports(&self, device: &str) -> Vec<Check> {
        let folder = format!("/sys/class/infiniband/{device}/ports");
        let mut all = Vec::new();
        for port in self.names(&folder) {
            let of = |what: &str| self.text(&format!("{folder}/{port}/{what}"));
            // As in `4: ACTIVE`.
            let (state, link) = (of("state"), of("link_layer"));
            let found = format!("{device} port {port}: {state}, {link}, {}", of("rate"));
            if !state.starts_with("4:") {
                let repair = "check the cable; ip link set dev INTERFACE up, or start the subnet manager (InfiniBand)";
                all.push(bad("port", Verdict::Missing, found, repair));
                continue;
            }
            all.push(good("port", found));
            all.push(self.addresses(device, &port, &link));
        }
        if all.is_empty() {
            all.push(bad(
                "port",
                Verdict::Missing,
                format!("{device} has no port"),
                "use another device",
            ));
        }
        all
    }

    fn addresses(&self, device: &str, port: &str, link: &str) -> Check {
        const NONE: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
        let folder = format!("/sys/class/infiniband/{device}/ports/{port}");
        let mut rows = Vec::new();
        for index in self.names(&format!("{folder}/gids")) {
            let gid = self.text(&format!("{folder}/gids/{index}"));
            if !gid.is_empty() && gid != NONE {
                let kind = self.text(&format!("{folder}/gid_attrs/types/{index}"));
                rows.push(format!("[{index}] {gid} {kind}"));
            }
        }
        let found = format!("{device} port {port}: {}", rows.join(", "));
        if rows.is_empty() {
            let repair = "give its interface an address: ip addr add ADDRESS/24 dev INTERFACE";
            return bad("address", Verdict::Missing, format!("{device} port {port}: none"), repair);
        }
        if link == "Ethernet" && !rows.iter().any(|r| r.ends_with("RoCE v2")) {
            let repair = "routers pass on RoCE v2 only: give the interface an IPv4 address";
            return bad("address", Verdict::Better, found, repair);
        }
        good("address", found)
    }

    fn numa(&self, device: &str) -> Check {
        let node = self.text(&format!("/sys/class/infiniband/{device}/device/numa_node"));
        let nodes = self.text("/sys/devices/system/node/online");
        match node.parse::<u32>() {
            Ok(n) if nodes.contains(['-', ',']) => bad(
                "NUMA",
                Verdict::Better,
                format!("{device} is at node {n} of {nodes}"),
                format!("run there: numactl --cpunodebind={n} --membind={n} dmtree ..."),
            ),
            Ok(n) => good("NUMA", format!("{device} is at node {n}")),
            Err(_) => good("NUMA", format!("{device} names no node")),
        }
    }
}

/// Whether this binary can use what is there.
fn backend() -> Check {
    if cfg!(feature = "verbs") {
        return good("binary", "built with verbs");
    }
    let repair = "cargo build --release -p dmtree-cli --features verbs (needs cmake and libclang)";
    bad("binary", Verdict::Missing, "built without verbs", repair)
}

/// What a device can do, and what of it would be used: only the library tells.
#[cfg(feature = "verbs")]
fn limits() -> Check {
    use dmtree_fabric::verbs::{Config, Nic};
    match Nic::open(&Config::default()) {
        Ok(nic) => good("chosen", nic.to_string()),
        Err(e) => bad("chosen", Verdict::Missing, e.to_string(), "see above"),
    }
}

#[cfg(not(feature = "verbs"))]
fn limits() -> Check {
    let repair = "build with verbs to see queue depths, READs outstanding, on-chip memory";
    bad("limits", Verdict::Better, "this binary cannot ask the device", repair)
}
