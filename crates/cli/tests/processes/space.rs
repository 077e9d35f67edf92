//! The memory of incarnations and indexes is reclaimed; deletes make room again.

use std::time::Duration;

use crate::harness::{Process, alone, compute, compute_within, found, leases, run_shell, together};

/// More incarnations than the pool has chunks.
const INCARNATIONS: usize = 20;
/// Too long to be inline.
fn value() -> String {
    "x".repeat(200)
}

fn ten_chunks() -> (Process, String) {
    found(&["--memory-bytes", "10MiB", "--chunk-bytes", "1MiB", "--compute-nodes", "4"])
}

/// Incarnations one after the other, each with one write; beside a process that stays, or alone.
fn incarnations(beside: bool, one: fn(&str, &str)) {
    let (_mn, at) = ten_chunks();
    let stays = beside.then(|| compute(&at));
    for i in 0..INCARNATIONS {
        one(&at, &format!("put k{i} {}", value()));
    }
    drop(stays);
    let (status, said) = run_shell(&at, "prefix k");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(&format!("({INCARNATIONS})")), "{said}");
}

fn leaves(at: &str, put: &str) {
    assert_eq!(run_shell(at, put), (Some(0), "done\n".to_owned()));
}

fn is_killed(at: &str, put: &str) {
    let mut p = compute_within(at, leases(20) + Duration::from_secs(5));
    assert_eq!(p.ask(put), "done");
    p.kill();
}

/// The memory of an incarnation is free for the next one after an exit or a crash.
#[test]
fn the_memory_of_an_incarnation_is_reclaimed() {
    together(&[
        ("they leave", || incarnations(false, leaves)),
        ("they leave, one stays", || incarnations(true, leaves)),
        ("they are killed", || incarnations(false, is_killed)),
        ("they are killed, one stays", || incarnations(true, is_killed)),
    ]);
}

/// Puts until the pool is full; returns the number of puts.
fn fill(all: &mut [Process], bytes: usize) -> usize {
    let value = "v".repeat(bytes);
    for i in 0.. {
        let at = i % all.len();
        match all[at].ask(&format!("put key{i:06} {value}")).as_str() {
            "done" => {}
            full if full.contains("is full") => return i,
            other => panic!("put {i}: {other}"),
        }
    }
    0
}

fn fill_twice(processes: usize, bytes: usize) {
    let (_mn, at) = found(&["--memory-bytes", "4MiB", "--chunk-bytes", "256KiB"]);
    let mut all: Vec<Process> = (0..processes).map(|_| compute(&at)).collect();
    let first = fill(&mut all, bytes);
    let other = "w".repeat(bytes);
    let updated = all[0].ask(&format!("update key000000 {other}"));
    assert_eq!(updated, "done", "an update needs no more room than there was: {first} puts");
    for i in 0..first {
        assert_eq!(all[i % processes].ask(&format!("delete key{i:06}")), "done");
    }
    let second = fill(&mut all, bytes);
    assert!(second * 100 >= first * 95, "{first} puts of {bytes} bytes, and then {second}");
}

/// A pool that was filled and emptied takes as much again, whatever the length of values and the
/// number of processes.
#[test]
fn a_pool_that_is_emptied_takes_as_much_again() {
    let _machine = alone();
    together(&[
        ("short values", || fill_twice(1, 1_000)),
        ("two processes", || fill_twice(2, 1_000)),
        ("long values", || fill_twice(1, 8_000)),
    ]);
}

/// A process that opens an index of this name, and puts a pair.
fn with_index(at: &str, name: &str) -> String {
    let mut p = Process::start(&["shell", "--connect", at, "--index", name]);
    let answer = p.ask(&format!("put name {name}"));
    p.quit();
    answer
}

/// Small indexes share chunks.
#[test]
fn sixty_four_indexes_fit_in_sixty_four_chunks() {
    let (_mn, at) = found(&["--memory-bytes", "64MiB"]);
    for i in 0..64 {
        assert_eq!(with_index(&at, &format!("index{i}")), "done", "index {i}");
    }
    let mut first = Process::start(&["shell", "--connect", &at, "--index", "index0"]);
    assert_eq!(first.ask("get name"), "index0");
}
