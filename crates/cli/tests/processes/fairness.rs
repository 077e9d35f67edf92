//! Processes that contend for the same keys.

use crate::harness::{Process, alone, memnode};

/// Threads of two processes compare-and-set the same counters: each process gets its share.
#[test]
fn two_processes_that_contend_share() {
    let _machine = alone();
    let (_mn, at) = memnode();
    let contend = ["drive", "contend", "--threads", "32", "--keys", "16", "--seconds", "4"];
    let mut both: Vec<Process> = (0..2)
        .map(|_| {
            let p = Process::start(&[&contend[..], &["--connect", &at]].concat());
            assert_eq!(p.line(), "ready");
            p
        })
        .collect();
    both.iter_mut().for_each(|p| p.say("go"));
    let done: Vec<u64> = { both.iter() }
        .map(|p| {
            let line = p.line();
            let done = line.strip_prefix("done ").and_then(|n| n.parse().ok());
            done.unwrap_or_else(|| panic!("{line}"))
        })
        .collect();
    let share = done.iter().sum::<u64>() / 2;
    assert!(share > 0 && done.iter().all(|d| *d >= share / 4), "writes that took effect: {done:?}");
}
