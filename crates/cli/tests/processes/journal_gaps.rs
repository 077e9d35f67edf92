//! Pools that go on without a journal node: the part has a gap, says so, and is refilled.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use crate::common::has;
use crate::harness::{PATIENCE, Process, compute, run, within};
use crate::journals::{Known, Servers, check, contents, journal_node, text, write};

const GOES_ON: [&str; 2] = ["--on-journal-loss", "go-on"];

fn status_of(at: &str, node: &str) -> String {
    let said = run(&["status", "--connect", at]).1;
    said.lines().find(|line| line.contains(node)).unwrap_or_default().to_owned()
}

fn until_status(at: &str, node: &str, says: &str) {
    within(PATIENCE, || {
        let line = status_of(at, node);
        line.contains(says).then_some(()).ok_or(line)
    });
}

fn refill(at: &str, part: &str) -> (Option<i32>, String) {
    run(&["journal", "refill", part, "--connect", at])
}

/// Writers while `act` runs, and what they know at its end.
fn written_while(at: &str, act: impl FnOnce()) -> Vec<Known> {
    let stops = AtomicBool::new(false);
    let shells: Vec<Process> = (0..3).map(|_| compute(at)).collect();
    std::thread::scope(|scope| {
        let stops = &stops;
        let all: Vec<_> = { shells.into_iter().enumerate() }
            .map(|(i, shell)| scope.spawn(move || write(i, shell, stops)))
            .collect();
        act();
        stops.store(true, SeqCst);
        all.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

fn settled() {
    std::thread::sleep(Duration::from_millis(500));
}

/// A journal node is killed and comes back, its directory is lost and begun anew, and both are
/// refilled while three processes write: after the death of all processes the journal has every
/// acknowledged write.
#[test]
fn a_part_with_a_gap_is_refilled_while_the_pool_is_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let (mut dirs, new) = ([at("j0"), at("j1")], at("new"));
    let paths = |dirs: &[std::path::PathBuf; 2]| [dirs[0].clone(), dirs[1].clone()];
    let start =
        |dirs: &[std::path::PathBuf; 2]| Servers::start_with(&[&*dirs[0], &*dirs[1]], &GOES_ON);
    let mut servers = start(&paths(&dirs));
    let pool = servers.at.clone();
    let known = written_while(&pool, || {
        settled();
        servers.journal[0].kill();
        until_status(&pool, "jn0", "writes go on without it");
        settled();
        assert_ne!(refill(&pool, "0").0, Some(0), "it is away");
        servers.journal[0] = journal_node(&pool, &dirs[0], &[]);
        until_status(&pool, "jn0", "lacks writes");
        let (code, said) = run(&["checkpoint", "--connect", &pool, "--to", text(&at("files"))]);
        assert_ne!(code, Some(0), "no instant's: {said}");
        has(&said, &["part 0", "lacks"]);
        settled();
        let (code, said) = refill(&pool, "0");
        assert_eq!(code, Some(0), "{said}");
        has(&said, &["lacks nothing", "1 indexes"]);
        has(&status_of(&pool, "jn0"), &["present"]);
        let (code, said) = refill(&pool, "0");
        assert!(code != Some(0) && said.contains("lacks nothing"), "{said}");
        // The directory of the other is lost.
        servers.journal[1].kill();
        until_status(&pool, "jn1", "writes go on without it");
        std::fs::remove_dir_all(&dirs[1]).expect("removed");
        servers.journal[1] = journal_node(&pool, &new, &["--index", "1", "--replace"]);
        until_status(&pool, "jn1", "lacks writes");
        settled();
        let (code, said) = refill(&pool, "1");
        assert_eq!(code, Some(0), "{said}");
        settled();
        servers.kill();
    });
    dirs[1] = new;
    for _ in 0..2 {
        let mut again = start(&paths(&dirs));
        check(&contents(&again.at), &known);
        again.kill();
    }
}

/// All processes end while a part has a gap: the other part's directory says so, and the pool is
/// not loaded unless its first memory node is told to accept gaps.
#[test]
fn a_gap_is_known_to_the_next_pool_over_the_directories() {
    let dir = tempfile::tempdir().expect("a directory");
    let dirs = [dir.path().join("j0"), dir.path().join("j1")];
    let paths: [&Path; 2] = [&dirs[0], &dirs[1]];
    let mut servers = Servers::start_with(&paths, &GOES_ON);
    let mut shell = compute(&servers.at);
    shell.until_done("put before 1");
    servers.journal[1].kill();
    until_status(&servers.at, "jn1", "writes go on without it");
    for i in 0..20 {
        assert_eq!(shell.ask(&format!("put k{i} 1")), "done");
    }
    // The other journal node hears of it.
    settled();
    servers.kill();
    drop(shell);
    let mut again = Servers::start(&paths, "process");
    let (_, said) = run(&["export", "--connect", &again.at, "--index", "shell", "--out", "none"]);
    has(&said, &["part 1", "lacks acknowledged writes", "--accept-gaps"]);
    again.kill();
    let again = Servers::start_with(&paths, &["--accept-gaps"]);
    let found = contents(&again.at);
    assert!(found.contains_key("before") && found.len() < 21, "{found:?}");
    has(&status_of(&again.at, "jn1"), &["lacks writes"]);
    assert_eq!(refill(&again.at, "1").0, Some(0));
    let (code, said) = refill(&again.at, "7");
    assert!(code != Some(0) && said.contains("lacks nothing"), "{said}");
    let new = dir.path().join("new");
    let (code, said) = run(&["journalnode", "--join", &again.at, "--dir", text(&new), "--replace"]);
    assert!(code != Some(0) && said.contains("--index"), "{said}");
}
