//! The binary without the laboratory: `cargo test -p dmtree-cli --no-default-features`.
#![cfg(not(feature = "lab"))]

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs the binary with this input.
fn run(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_dmtree"))
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    // A command that refuses does not read its input.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn it_has_the_commands_of_a_user_alone() {
    let help = text(&run(&["--help"], "").stdout);
    for command in ["doctor", "key", "memnode", "shell", "completions"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command}: {help}");
    }
    for command in ["bench", "check", "conform", "load"] {
        assert!(!help.contains(&format!("\n  {command} ")), "{command}: {help}");
        assert_eq!(run(&[command], "").status.code(), Some(2), "{command}");
    }
}

#[test]
fn the_shell_dumps_and_loads_the_index_of_the_library() {
    let dir = tempfile::tempdir().expect("a directory");
    let dump = dir.path().join("d");
    let dump = dump.display();
    let lines = format!("put a 1\ndump {dump}\ndelete a\nload {dump}\nget a\nstats\n");
    let o = run(&["shell"], &lines);
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    let said = text(&o.stdout);
    assert!(said.starts_with("done\n1 pairs written\ndone\n1 pairs put\n1\n"), "{said}");
    assert!(said.contains("keys              1\n"), "{said}");
}

#[test]
fn other_systems_need_the_laboratory() {
    let o = run(&["shell", "--system", "fptree"], "");
    assert_eq!(o.status.code(), Some(2));
    let said = text(&o.stderr);
    assert!(said.contains("\"fptree\"") && said.contains("without the feature lab"), "{said}");
}
