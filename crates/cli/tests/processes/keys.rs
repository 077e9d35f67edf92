//! Access control: processes with the key of a pool, without a key, and with another key; and the
//! answer that each gets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{self, address, fed, text};
use crate::harness::Process;

/// A refusal takes no longer.
const DEADLINE: Duration = Duration::from_secs(20);

/// The binary, with the key `key` and no other.
fn dmtree(args: &[&str], key: Option<&str>) -> Command {
    let mut c = common::dmtree(args);
    c.envs(key.map(|key| ("DMTREE_KEY", key)));
    c
}

/// Runs a command with these lines as its input: status, standard output, standard error.
fn run(args: &[&str], key: Option<&str>, input: &str) -> (Option<i32>, String, String) {
    let began = Instant::now();
    let out = fed(dmtree(args, key), input);
    assert!(began.elapsed() < DEADLINE, "{args:?}: {:?}", began.elapsed());
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

/// A command is refused with status 2 and one line that has these words.
fn refused(args: &[&str], key: Option<&str>, words: &str) {
    let (status, _, said) = run(args, key, "get a\n");
    assert_eq!(status, Some(2), "{args:?}: {said}");
    // Some commands announce their work before it.
    let errors = said.lines().skip_while(|l| !l.starts_with("error: ")).collect::<Vec<_>>();
    assert!(errors.len() == 1 && errors[0].contains(words), "{args:?}: {words}: {said}");
}

/// A memory node with these arguments, and where it listens.
fn memnode(args: &[&str], key: Option<&str>) -> (Process, String) {
    let all = [&["memnode", "--memory-bytes", "64MiB"][..], args].concat();
    let mn = Process::of(dmtree(&all, key));
    let at = address(&mn.line());
    (mn, at)
}

/// A file with a key, by its path.
pub fn key_file(folder: &Path, name: &str, text: &str, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&path, mode).expect("set");
    path.to_str().expect("text").to_owned()
}

/// A key from a file and one from the environment are the same, and processes with it work
/// together. Others are refused, with a way out, and harm neither side.
#[test]
fn processes_with_the_key_of_a_pool_belong_to_it_and_others_do_not() {
    let (status, key, _) = run(&["key"], None, "");
    assert!(status == Some(0) && key.trim().len() == 64, "{key}");
    let folder = tempfile::tempdir().expect("a directory");
    let file = key_file(folder.path(), "pool.key", &key, 0o600);
    let (_mn, at) = memnode(&["--listen", "127.0.0.1:0", "--key-file", &file], None);
    let shell = ["shell", "--connect", &at];
    let works = || {
        let (status, said, e) = run(&shell, Some(key.trim()), "put ada 1815\nget ada\n");
        assert_eq!((status, said.as_str()), (Some(0), "done\n1815\n"), "{e}");
    };
    works();
    let (_, other, _) = run(&["key"], None, "");
    assert_ne!(key, other);
    refused(&shell, Some(&other), "another key");
    refused(&shell, None, "asks for a key");
    let join = ["memnode", "--join", &at, "--listen", "127.0.0.1:0"];
    refused(&join, Some(&other), "another key");
    let small = ["--fabric", "tcp", "--keys", "1000", "--ops", "100"];
    refused(&[&["bench", "quick", "--nodes", &at][..], &small].concat(), None, "asks for a key");
    refused(&["conform", "--nodes", &at], Some(&other), "another key");
    let (_open, at) = memnode(&["--listen", "127.0.0.1:0"], None);
    refused(&["shell", "--connect", &at], Some(&key), "has no key");
    works();
}

#[test]
fn a_key_that_is_none_is_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a directory");
    let good = "k".repeat(32);
    let file = |name, text: &str, mode| key_file(folder.path(), name, text, mode);
    let bad = [
        (file("group", &good, 0o640), "chmod 600"),
        (file("others", &good, 0o604), "chmod 600"),
        (file("short", &good[1..], 0o600), "a key of 31 bytes"),
        (file("empty", "", 0o600), "a key of 0 bytes"),
        (folder.path().to_str().expect("text").to_owned(), "no regular file"),
        (format!("{}/none", folder.path().display()), "No such file"),
    ];
    let small = ["--fabric", "tcp", "--keys", "1000", "--ops", "100"];
    for (path, words) in &bad {
        refused(&["memnode", "--listen", "127.0.0.1:0", "--key-file", path], None, words);
        refused(&["shell", "--connect", "127.0.0.1:1", "--key-file", path], None, words);
    }
    let path = &bad[0].0;
    let nodes = ["bench", "quick", "--nodes", "127.0.0.1:1", "--key-file", path];
    refused(&[&nodes[..], &small].concat(), None, "chmod 600");
    refused(&["conform", "--nodes", "127.0.0.1:1", "--key-file", path], None, "chmod 600");
    refused(&["shell", "--connect", "127.0.0.1:1"], Some("short"), "DMTREE_KEY");
    let both = ["memnode", "--listen", "127.0.0.1:0", "--insecure"];
    refused(&both, Some(&good), "leave one of them out");
    let (status, said, _) = run(&["doctor", "--key-file", path], None, "");
    assert!(status == Some(1) && said.contains("chmod 600"), "{said}");
}

/// Without a key only the loopback is listened on; other addresses need --insecure, and every start
/// explains what that means.
#[test]
fn without_a_key_other_machines_are_shut_out_unless_the_user_insists() {
    refused(&["memnode", "--listen", "0.0.0.0:0"], None, "--insecure");
    let (mn, at) = memnode(&["--listen", "0.0.0.0:0", "--insecure"], None);
    let at = at.replace("0.0.0.0", "127.0.0.1");
    let (status, said, notes) =
        run(&["shell", "--connect", &at, "--insecure"], None, "put ada 1815\n");
    assert_eq!((status, said.as_str()), (Some(0), "done\n"));
    assert!(notes.contains("INSECURE"), "{notes}");
    let (status, said, _) = run(&["doctor", "--insecure"], None, "");
    assert!(status == Some(0) && said.contains("INSECURE"), "{said}");
    let notes = mn.notes().join("\n");
    assert!(notes.contains("INSECURE"), "{notes}");
    let (_, said, _) = run(&["doctor"], None, "");
    assert!(said.contains("loopback only") && !said.contains("INSECURE"), "{said}");
}

/// A peer with another protocol version gets this version as the answer; any other peer gets no
/// answer.
#[test]
fn a_peer_without_a_proof_hears_no_more_than_the_version() {
    let key = "k".repeat(40);
    let (_mn, at) = memnode(&["--listen", "127.0.0.1:0"], Some(&key));
    let hears = |bytes: &[u8]| {
        let mut peer = TcpStream::connect(&at).expect("it listens");
        peer.set_read_timeout(Some(DEADLINE)).expect("set");
        peer.write_all(bytes).expect("sent");
        let mut heard = Vec::new();
        let _ = peer.read_to_end(&mut heard);
        heard
    };
    let old = hears(b"dmtwire\n\x02\0\0\0");
    assert_eq!((old.len(), &old[..8]), (12, &b"dmtwire\n"[..]), "{old:?}");
    assert_eq!(hears(b"GET / HTTP/1.1\r\n\r\n"), b"");
    // A greeting without a key, and one with a proof that is none.
    let greeting = |keyed: u8| [&old[..], &[keyed], &[7; 32]].concat();
    let heard = hears(&greeting(0));
    assert_eq!((heard.len(), heard[12]), (45, 1), "a greeting: {heard:?}");
    let ask = [&[2, 0][..], &[0, 0], &[9; 32]].concat();
    let heard = hears(&[greeting(1), ask].concat());
    assert_eq!((heard.len(), heard[45]), (46, 0), "a greeting, and no: {heard:?}");
}
