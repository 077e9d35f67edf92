//! Every example in `examples/` runs, ends well, and soon. `cargo test` builds them beside the
//! tests.

use std::path::PathBuf;
use std::process::Command;

fn run(name: &str) -> String {
    let here = std::env::current_exe().expect("a test is a file");
    let profile = here.ancestors().nth(2).expect("deps/ in the profile's directory");
    let file: PathBuf =
        profile.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION);
    assert!(file.exists(), "{} is missing: run `cargo build --examples` first", file.display());
    let output = Command::new(&file).output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {printed}{complaints}");
    printed
}

#[test]
fn quickstart() {
    assert_eq!(run("quickstart"), "alan 23 June 1912\nada 1815\n");
}

#[test]
fn quickstart_is_the_readme_s() {
    let readme = include_str!("../../README.md");
    let example = include_str!("../../examples/quickstart.rs");
    let code = readme.split("```rust\n").nth(1).and_then(|c| c.split("```").next());
    let code = code.expect("the README has an example");
    assert!(example.ends_with(code), "the README and examples/quickstart.rs differ");
}

#[test]
fn scan() {
    let printed = run("scan");
    assert!(printed.contains("3000 pairs loaded\ncellar/0499\ncellar/0498\n"), "{printed}");
    assert!(printed.ends_with("all in 5 portions of 700\n"), "{printed}");
}

#[test]
fn threads() {
    assert!(run("threads").contains("additions took effect"));
}

#[test]
fn async_runtime() {
    assert_eq!(run("async_runtime"), "90 users in 3 pages\nSome(\"user 1\") None\n");
}

#[test]
fn tuple_keys() {
    let printed = run("tuple_keys");
    assert!(printed.starts_with("Oslo, day -2: -11.5\nOslo, day -2: 4.25\nOslo, day 3: 2\n"));
    assert!(printed.ends_with("2 readings before day 0\n"), "{printed}");
}
