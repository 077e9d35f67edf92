//! An LSM tree in the memory of its owner: the owner, and a memory node, are killed.

use std::time::Duration;

use crate::harness::{PATIENCE, Process, alone, found, leases, two_memory_nodes, within};
use crate::linear::in_processes;

/// A compute process with an index of this name.
fn client(at: &str, index: &str) -> Process {
    let mut p = Process::start(&["shell", "--connect", at, "--system", "dlsm", "--index", index]);
    p.until_done("put ready yes");
    p
}

/// The first process owns all keys. It is killed while it and others write: what was acknowledged
/// is there, and the history of all is that of one order.
#[test]
fn nothing_acknowledged_is_lost_with_the_owner() {
    let _machine = alone();
    let (_mn, at) = found(&["--memory-bytes", "64MiB", "--cores", "2"]);
    let mut owner = client(&at, "tree");
    let mut reader = client(&at, "tree");
    for i in 0..300 {
        let p = if i % 2 == 0 { &mut owner } else { &mut reader };
        assert_eq!(p.ask(&format!("put k{i:03} v{i}")), "done");
    }
    let all = vec![owner, client(&at, "tree"), client(&at, "tree")];
    let (operations, after) = in_processes(all, |ids| {
        std::thread::sleep(Duration::from_secs(1));
        let kill = std::process::Command::new("kill").args(["-9", &ids[0].to_string()]).status();
        assert!(kill.expect("kill").success());
        std::thread::sleep(leases(3));
    });
    assert!(after > 100 && operations > after, "{after} of {operations}");
    for i in 0..300 {
        within(PATIENCE, || match reader.ask(&format!("get k{i:03}")) {
            value if value == format!("v{i}") => Ok(()),
            error if error.starts_with("error") => Err(error),
            wrong => panic!("k{i:03} is {wrong}"),
        });
    }
}

/// An index is on one memory node. The other one's goes on; that of the lost one is refused with
/// its name, by its owner and by the other process.
#[test]
fn a_killed_memory_node_takes_its_index_and_is_named() {
    let ([_first, mut second], at) = two_memory_nodes();
    let mut owners = [client(&at, "one"), client(&at, "two")];
    let mut others = [client(&at, "one"), client(&at, "two")];
    second.kill();
    std::thread::sleep(leases(3));
    let answers = owners.each_mut().map(|p| p.ask("put ready no"));
    let fails = |i: usize| answers[i].contains("mn1");
    assert!(fails(0) != fails(1), "one index is on each memory node: {answers:?}");
    let (lost, goes_on) = if fails(0) { (0, 1) } else { (1, 0) };
    assert_eq!(answers[goes_on], "done");
    assert_eq!(others[goes_on].ask("get ready"), "no");
    let (answer, took) = others[lost].timed("put ready no");
    assert!(answer.contains("mn1") && took < PATIENCE / 2, "{answer} after {took:?}");
}
