//! An embedded pool with a journal outlives its process, however it ends.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::common::has;
use crate::harness::{Process, run, within};

/// Rounds of kills; more by `DMTREE_KILL_ROUNDS`.
const ROUNDS: u64 = 6;
const KEYS: u64 = 500;

fn shell(dir: &Path, more: &[&str]) -> Process {
    let dir = dir.to_str().expect("plain");
    Process::start(&[&["shell", "--durable", dir], more].concat())
}

/// A process writes, and is killed in the middle; another one finds what was acknowledged, and
/// nothing that was not written.
#[test]
fn acknowledged_writes_survive_a_kill_of_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let rounds = std::env::var("DMTREE_KILL_ROUNDS").ok().and_then(|n| n.parse().ok());
    let mut before = vec![None; KEYS as usize];
    for round in 0..rounds.unwrap_or(ROUNDS) {
        let level: &[&str] = if round % 3 == 2 { &["--sync"] } else { &[] };
        let mut writer = shell(dir.path(), level);
        for (key, value) in before.iter().enumerate() {
            let found = writer.ask(&format!("get key{key}"));
            assert_eq!(found, value.clone().unwrap_or("not found".to_owned()), "round {round}");
        }
        let mut pipe = writer.take_input();
        let feeder = std::thread::spawn(move || {
            for n in 0..1_000_000 {
                if writeln!(pipe, "{}", write(round, n).0).is_err() {
                    return;
                }
            }
        });
        assert_eq!(writer.line(), "done");
        std::thread::sleep(Duration::from_millis(20 + 31 * (round % 7)));
        writer.kill();
        feeder.join().expect("ends when the pipe breaks");
        let mut acknowledged = 1;
        while let Some(line) = writer.heard() {
            assert!(line == "done" || line == "not found", "{line}");
            acknowledged += 1;
        }
        for n in 0..acknowledged {
            let (_, key, value) = write(round, n);
            before[key as usize] = value;
        }
        // The one after the last acknowledged may have happened, too.
        let (_, key, value) = write(round, acknowledged);
        let mut reader = shell(dir.path(), &[]);
        let found = reader.ask(&format!("get key{key}"));
        let found = (found != "not found").then_some(found);
        assert!(found == value || found == before[key as usize], "round {round}: {found:?}");
        before[key as usize] = found;
        reader.quit();
    }
}

/// Write number `n` of a round: its line, its key and the key's value afterwards.
fn write(round: u64, n: u64) -> (String, u64, Option<String>) {
    let key = n * 7 % KEYS;
    if n % 11 == 5 {
        return (format!("delete key{key}"), key, None);
    }
    let value = format!("v{round}-{n}");
    (format!("put key{key} {value}"), key, Some(value))
}

#[test]
fn a_journal_is_one_process_s() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("j");
    let text = path.to_str().expect("plain");
    let mut first = shell(&path, &["--index", "users"]);
    assert_eq!(first.ask("put ada 1815"), "done");
    let (status, said) = run(&["shell", "--durable", text]);
    assert_eq!(status, Some(2), "{said}");
    has(&said, &["j: process ", &first.child.id().to_string(), "has it open"]);
    first.kill();
    within(Duration::from_secs(5), || {
        let mut second = shell(&path, &["--index", "users"]);
        let found = second.ask("get ada");
        if found == "1815" { Ok(()) } else { Err(found) }
    });
    let (status, said) = run(&["shell", "--durable", text, "--system", "sherman"]);
    assert_eq!(status, Some(2), "{said}");
    has(&said, &["--durable is for dmtree", "sherman"]);
    let (status, said) = run(&["shell", "--sync"]);
    assert_eq!(status, Some(2), "{said}");
    has(&said, &["--durable"]);
    let (status, said) = run(&["shell", "--durable", "/proc/none"]);
    assert_eq!(status, Some(2), "{said}");
    has(&said, &["/proc/none", "cannot make the directory"]);
}
