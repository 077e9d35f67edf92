//! The binary without the laboratory: `cargo test -p dmtree-cli --no-default-features`.

use crate::common::{dmtree, fed, has, refused, run, text};

#[test]
fn it_has_the_commands_of_a_user_alone() {
    let help = text(&run(&["--help"]).stdout);
    has(&help, &["\n  doctor ", "\n  keys ", "\n  memnode ", "\n  shell ", "\n  completions "]);
    for command in ["bench", "check", "conform", "load"] {
        assert!(!help.contains(&format!("\n  {command} ")), "{command}: {help}");
        assert_eq!(run(&[command]).status.code(), Some(2), "{command}");
    }
}

#[test]
fn the_shell_dumps_and_loads_the_index_of_the_library() {
    let dir = tempfile::tempdir().expect("a directory");
    let dump = dir.path().join("d");
    let dump = dump.display();
    let lines = format!("put a 1\ndump {dump}\ndelete a\nload {dump}\nget a\nstats\n");
    let o = fed(dmtree(&["shell"]), &lines);
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    let said = text(&o.stdout);
    assert!(said.starts_with("done\n1 pairs written\ndone\n1 pairs put\n1\n"), "{said}");
    assert!(said.contains("keys              1\n"), "{said}");
}

#[test]
fn other_systems_need_the_laboratory() {
    refused(&["shell", "--system", "fptree"], &["\"fptree\"", "without the feature lab"]);
}
