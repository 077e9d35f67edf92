//! `doctor` and `fabric probe`, as far as a machine without RDMA shows them.

use std::path::Path;

use crate::common::{has, ok, refused, run, said, words};

/// Status and all that was printed of `doctor` on a machine made of files.
fn doctor(root: &Path, fabric: &str) -> (Option<i32>, String) {
    let o = run(&["doctor", "--fabric", fabric, "--root", root.to_str().unwrap()]);
    (o.status.code(), said(&o))
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Everything that verbs need, except the binary's feature.
fn machine(root: &Path) {
    write(
        root,
        "proc/meminfo",
        "MemAvailable: 8000000 kB\nHugePages_Free: 600\nHugepagesize: 2048 kB\n",
    );
    write(
        root,
        "proc/self/limits",
        "Max locked memory         unlimited            unlimited            bytes\n",
    );
    write(root, "proc/self/status", "CapEff:\t0000000000000000\n");
    write(root, "usr/lib/libibverbs.so.1", "");
    write(root, "dev/infiniband/uverbs0", "");
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    write(root, &format!("{port}/state"), "4: ACTIVE\n");
    write(root, &format!("{port}/link_layer"), "Ethernet\n");
    write(root, &format!("{port}/rate"), "100 Gb/sec (4X EDR)\n");
    write(root, &format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
    write(root, &format!("{port}/gid_attrs/types/3"), "RoCE v2\n");
    write(root, "sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
    write(root, "sys/devices/system/node/online", "0-1\n");
}

#[test]
fn a_machine_with_everything_lacks_nothing_but_the_feature() {
    let dir = tempfile::tempdir().unwrap();
    machine(dir.path());
    let (status, text) = doctor(dir.path(), "local");
    assert_eq!(status, Some(0), "{text}");
    has(&text, &["ok       library", "ok       port            mlx5_0 port 1: 4: ACTIVE"]);
    has(&text, &["[3] 0000", "numactl --cpunodebind=1"]);
    if !cfg!(feature = "verbs") {
        let (status, text) = doctor(dir.path(), "verbs");
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains("MISSING  binary") && text.contains("--features verbs"), "{text}");
        assert_eq!(text.matches("MISSING").count(), 1, "{text}");
    }
}

#[test]
fn missing_parts_are_named_with_their_repair() {
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    let broken: [(&str, &str, &[&str]); 6] = [
        ("proc/meminfo", "MemAvailable: 1000 kB\n", &["MISSING  memory", "smaller regions"]),
        (
            "proc/self/limits",
            "Max locked memory         65536                65536                bytes\n",
            &["MISSING  locked memory   64 KiB", "ulimit -l unlimited"],
        ),
        ("usr/lib/libibverbs.so.1", "", &["MISSING  library", "apt-get install libibverbs1"]),
        ("dev/infiniband/uverbs0", "", &["MISSING  kernel", "modprobe ib_uverbs"]),
        (&format!("{port}/state"), "1: DOWN\n", &["MISSING  port", "1: DOWN", "ip link set"]),
        (
            &format!("{port}/gids/3"),
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
            &["MISSING  address", "ip addr add"],
        ),
    ];
    for (path, text, words) in broken {
        let dir = tempfile::tempdir().unwrap();
        machine(dir.path());
        match text {
            "" => std::fs::remove_file(dir.path().join(path)).unwrap(),
            text => write(dir.path(), path, text),
        }
        let (status, text) = doctor(dir.path(), "verbs");
        assert_eq!(status, Some(1), "{path}: {text}");
        has(&text, words);
        let needed_by_all = path == "proc/meminfo";
        let (status, text) = doctor(dir.path(), "local");
        assert_eq!(status, Some(i32::from(needed_by_all)), "{path}: {text}");
    }
    let empty = tempfile::tempdir().unwrap();
    write(empty.path(), "proc/meminfo", "MemAvailable: 8000000 kB\n");
    let (_, text) = doctor(empty.path(), "verbs");
    assert!(text.contains("MISSING  devices") && text.contains("rdma link add"), "{text}");
}

#[test]
fn a_probe_measures_and_its_profile_can_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    let file = file.to_str().unwrap();
    has(
        &ok(&["fabric", "probe", "--seconds", "0.001", "--out", file]),
        &["FAA, one word", "[host]", "node_ns = "],
    );
    let measured = "mine: measured by `dmtree fabric probe --fabric local`";
    has(&ok(&["fabric", "show", file]), &[measured]);
    let one = words("fabric probe --verb write --bytes 512 --clients 3 --seconds 0.001");
    has(&ok(&one), &["WRITE of 512 bytes: "]);
}

#[test]
fn bad_input_is_status_2() {
    refused(&["fabric", "probe", "--fabric", "ether"], &["give local or verbs"]);
    refused(&["fabric", "probe", "--verb", "send"], &["give read, write, cas or same-word"]);
    refused(&["fabric", "probe", "--seconds", "0"], &["--seconds"]);
    refused(&["fabric", "probe", "--out", "/nowhere/profile"], &["ends with .toml"]);
    refused(&["fabric", "probe", "--base", "cx9"], &["cx9"]);
    refused(&["doctor", "--fabric", "ether"], &["unknown fabric"]);
    if !cfg!(feature = "verbs") {
        refused(&["fabric", "probe", "--fabric", "verbs"], &["--features verbs"]);
    }
}
