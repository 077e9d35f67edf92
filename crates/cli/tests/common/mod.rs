//! What tests of the binary share: running it, and what it says.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// The binary, without a key: another one than cargo's where it is given.
pub fn dmtree(args: &[&str]) -> Command {
    let given = std::env::var("DMTREE_BIN");
    let mut c = Command::new(given.unwrap_or_else(|_| env!("CARGO_BIN_EXE_dmtree").to_owned()));
    c.args(args).env("NO_COLOR", "1").env_remove("DMTREE_KEY_FILE").stdin(Stdio::null());
    c
}

/// A command line as words.
pub fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

pub fn run(args: &[&str]) -> Output {
    dmtree(args).output().unwrap()
}

/// All three streams are pipes.
pub fn piped(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped())
}

/// Runs a command with this input.
pub fn fed(mut command: Command, input: &str) -> Output {
    let mut child = piped(&mut command).spawn().unwrap();
    // A command that refuses does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All output of a process.
pub fn said(o: &Output) -> String {
    text(&o.stdout) + &text(&o.stderr)
}

/// All of these words are in a text.
#[track_caller]
pub fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// The standard output of a command that succeeds.
pub fn ok(args: &[&str]) -> String {
    let o = run(args);
    assert_eq!(o.status.code(), Some(0), "{args:?}: {}", said(&o));
    text(&o.stdout)
}

/// Exit status 2, an error that has these words, no panic.
#[track_caller]
pub fn refused(args: &[&str], words: &[&str]) {
    let o = run(args);
    let err = text(&o.stderr);
    assert_eq!(o.status.code(), Some(2), "{args:?}: {}", said(&o));
    has(&err, words);
    assert!(!err.contains("panicked"), "{args:?}: {err}");
}

/// Where a memory node listens, by the line in which it says so.
pub fn address(line: &str) -> String {
    let at = line.split(" at ").nth(1).and_then(|l| l.split(';').next());
    at.unwrap_or_else(|| panic!("no address: {line}")).to_owned()
}
