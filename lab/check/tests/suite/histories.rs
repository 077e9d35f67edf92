//! Files of histories.

use dmtree_check::file::{read, write};
use dmtree_check::log::{Answer, Call, Log, loaded};

fn log() -> Log {
    let mut log = Log::new(2, 8);
    let a = log.call(0, 10, Call::Put(0, 5));
    let b = log.call(1, 20, Call::Scan(0, 1));
    log.ret(a, 30, Answer::Done);
    log.ret(b, 40, Answer::Pairs(vec![(0, 5), (1, loaded(1))]));
    let c = log.call(1, 50, Call::CompareAndSet(0, 5, 6));
    log.ret(c, 60, Answer::Failed("no answer".to_owned()));
    log.call(0, 70, Call::Get(4));
    log
}

#[test]
fn a_history_comes_back() {
    let text = write(&log());
    assert_eq!(text.lines().count(), 1 + 7 + 1);
    assert_eq!(read(&text).unwrap(), log());
    assert_eq!(read(&text).unwrap().check(), Ok(()));
    assert_eq!(read(&write(&Log::new(1, 1))).unwrap(), Log::new(1, 1));
}

fn refused(text: &str, line: u64, words: &str) {
    let e = read(text).expect_err(words).to_string();
    assert!(e.contains(words) && e.starts_with(&format!("line {line}:")), "{e}");
}

#[test]
fn truncated_files_are_refused_with_the_line() {
    let text = write(&log());
    let lines: Vec<&str> = text.lines().collect();
    refused("", 1, "empty");
    for n in 1..lines.len() {
        refused(&lines[..n].join("\n"), n as u64 + 1, "truncated");
    }
    let cut: String = text.chars().take(text.len() - 40).collect();
    refused(&cut, cut.lines().count() as u64, "cut off");
}

#[test]
fn reordered_and_lost_lines_are_refused_with_the_line() {
    let text = write(&log());
    let mut lines: Vec<&str> = text.lines().collect();
    lines.swap(3, 4);
    refused(&lines.join("\n"), 4, "out of order");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(5);
    refused(&lines.join("\n"), 6, "lost");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(7);
    refused(&lines.join("\n"), 8, "7 events before this line, and 6 are here");
    refused(&(text.clone() + "{}\n"), 10, "behind the end");
}

#[test]
fn other_versions_and_things_are_refused_with_the_line() {
    let text = write(&log());
    refused(&text.replace("\"version\":1", "\"version\":2"), 1, "version 2");
    refused(&text.replace("dmtree-history", "other"), 1, "format is");
    refused(&text.replace("\"keys\":8", "\"keys\":2"), 8, "there are 2 keys");
    refused(&text.replace("\"client\":0", "\"client\":1"), 3, "before its last call");
    refused(&text.replace("\"ret\":\"done\"", "\"tell\":1"), 4, "tell");
}
