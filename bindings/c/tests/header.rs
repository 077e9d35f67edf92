//! The header is what the source says, and a C program that uses it compiles, links and runs.
//! `DMTREE_WRITE_HEADER=1 cargo test -p dmtree-c --test header` writes it anew.

use std::path::{Path, PathBuf};
use std::process::Command;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_that_of_the_source() {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).expect("a config");
    let mut header = Vec::new();
    let bindings = cbindgen::generate_with_config(here(), config).expect("the source is readable");
    bindings.write(&mut header);
    let header = String::from_utf8(header).expect("a text");
    let at = here().join("include/dmtree.h");
    if std::env::var_os("DMTREE_WRITE_HEADER").is_some() {
        std::fs::write(&at, &header).expect("written");
    }
    let written = std::fs::read_to_string(&at).unwrap_or_default();
    assert!(written == header, "{} is out of date: see this test's head", at.display());
}

/// Where the libraries of this build are.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.parent().expect("target/PROFILE/deps").to_owned()
}

/// The compiler of the system, which the linker of Rust is, too.
fn compiled(source: &Path, out: &Path, rest: &[&str]) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(here().join("include"));
    let done = cc.arg(source).arg("-o").arg(out).args(rest).output().expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

const SAYS: &str = "\
ada was born in 1815
alan: 1912
ada: 1815
visits were 2
a closed index says: 0x1 is no open index: it was closed, or is none
";

#[test]
fn the_example_runs_with_either_library() {
    let dir = tempfile::tempdir().expect("a directory");
    let (example, libraries) = (here().join("examples/quickstart.c"), libraries());
    let fixed = libraries.join("libdmtree_c.a");
    let shared = format!("-L{}", libraries.display());
    let ways: [(&str, &[&str]); 2] = [
        ("static", &[fixed.to_str().expect("a text"), "-lpthread", "-ldl", "-lm"]),
        ("shared", &[&shared, "-ldmtree_c"]),
    ];
    for (name, rest) in ways {
        let program = dir.path().join(name);
        compiled(&example, &program, rest);
        let run = Command::new(&program).env("LD_LIBRARY_PATH", &libraries).output();
        let run = run.expect("it starts");
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(String::from_utf8_lossy(&run.stdout), SAYS, "{name}");
    }
}
