//! Access control: processes with keys of a pool, without keys, and with those of another pool; and
//! the answer that each gets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{self, address, fed, text};
use crate::harness::Process;

/// A refusal takes no longer.
const DEADLINE: Duration = Duration::from_secs(20);

/// The binary, with the keys in this file and no others.
fn dmtree(args: &[&str], keys: Option<&str>) -> Command {
    let mut c = common::dmtree(args);
    c.envs(keys.map(|path| ("DMTREE_KEY_FILE", path)));
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

/// A file with this text, by its path.
pub fn key_file(folder: &Path, name: &str, text: &str, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&path, mode).expect("set");
    path.to_str().expect("text").to_owned()
}

/// The keys of a new pool, as the command makes them, by their path.
pub fn new_keys(folder: &Path, name: &str) -> String {
    let path = folder.join(name).to_str().expect("text").to_owned();
    let (status, _, e) = run(&["keys", "new", &path], None, "");
    assert_eq!(status, Some(0), "{e}");
    path
}

/// Keys with one role, issued by the command, by their path.
fn issued(folder: &Path, pool: &str, role: &str) -> String {
    let path = folder.join(format!("{role}.keys")).to_str().expect("text").to_owned();
    let issue = ["keys", "issue", "--keys", pool, "--role", role, "--out", &path];
    let (status, _, e) = run(&issue, None, "");
    assert_eq!(status, Some(0), "{e}");
    path
}

/// Keys that are named by a flag and by the environment are the same, and processes with keys of
/// one pool work together. Others are refused, with a way out, and harm neither side.
#[test]
fn processes_with_keys_of_a_pool_belong_to_it_and_others_do_not() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = new_keys(folder.path(), "pool.keys");
    let memory = issued(folder.path(), &file, "memory");
    let (_mn, at) = memnode(&["--listen", "127.0.0.1:0", "--key-file", &memory], None);
    let shell = ["shell", "--connect", &at];
    let works = |keys: &str| {
        let (status, said, e) = run(&shell, Some(keys), "put ada 1815\nget ada\n");
        assert_eq!((status, said.as_str()), (Some(0), "done\n1815\n"), "{e}");
    };
    works(&file);
    works(&issued(folder.path(), &file, "compute"));
    let other = new_keys(folder.path(), "other.keys");
    refused(&shell, Some(&other), "not of this pool");
    refused(&shell, None, "asks for keys");
    let join = ["memnode", "--join", &at, "--listen", "127.0.0.1:0"];
    refused(&join, Some(&other), "not of this pool");
    let small = ["--fabric", "tcp", "--keys", "1000", "--ops", "100"];
    refused(&[&["bench", "quick", "--nodes", &at][..], &small].concat(), None, "asks for keys");
    refused(&["conform", "--nodes", &at], Some(&other), "not of this pool");
    let (_open, open) = memnode(&["--listen", "127.0.0.1:0"], None);
    refused(&["shell", "--connect", &open], Some(&file), "has no keys");
    works(&file);
}

/// Each role does what it is for, and is refused for the rest in a line that names the role that is
/// needed.
#[test]
fn roles_do_what_they_are_for() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = new_keys(folder.path(), "pool.keys");
    let of = |role| issued(folder.path(), &file, role);
    let (memory, compute, reader, admin) = (of("memory"), of("compute"), of("reader"), of("admin"));
    let (_mn, at) = memnode(&["--listen", "127.0.0.1:0"], Some(&memory));
    let nodes = [0, 1].map(|_| Process::of(dmtree(&["node", "--connect", &at], Some(&compute))));
    for node in &nodes {
        while !node.line().contains("serves the pool") {}
    }
    for keys in [&memory, &compute, &reader, &admin] {
        let (status, said, e) = run(&["status", "--connect", &at], Some(keys), "");
        assert!(status == Some(0) && said.contains("cn0"), "{said}{e}");
    }
    for (keys, role) in [(&memory, "compute"), (&admin, "compute"), (&reader, "compute")] {
        let words = format!("needs a certificate with the role {role}");
        refused(&["shell", "--connect", &at], Some(keys), &words);
    }
    let drain = ["drain", "--connect", &at, "cn0"];
    for keys in [&memory, &compute, &reader] {
        refused(&drain, Some(keys), "needs a certificate with the role admin");
    }
    let (status, said, e) = run(&drain, Some(&admin), "");
    assert!(status == Some(0) && said.contains("has left the pool"), "{said}{e}");
}

#[test]
fn keys_are_made_in_files_of_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a directory");
    let file = new_keys(folder.path(), "pool.keys");
    let reader = issued(folder.path(), &file, "reader");
    for path in [&file, &reader] {
        let mode = std::fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path}");
    }
    let blocks = |path: &str, name: &str| {
        std::fs::read_to_string(path).expect("text").matches(&format!("BEGIN {name}")).count()
    };
    assert_eq!((blocks(&file, "CERTIFICATE"), blocks(&file, "PRIVATE KEY")), (2, 2));
    assert_eq!((blocks(&reader, "CERTIFICATE"), blocks(&reader, "PRIVATE KEY")), (2, 1));
    let before = std::fs::read(&file).expect("there");
    refused(&["keys", "new", &file], None, "File exists");
    assert!(before == std::fs::read(&file).expect("there"), "it is not overwritten");
    let out = format!("{}/more.keys", folder.path().display());
    let issue = |keys: &str, role: &str, words: &str| {
        let args = ["keys", "issue", "--keys", keys, "--role", role, "--out", &out];
        refused(&args, None, words);
        assert!(!Path::new(&out).exists());
    };
    issue(&reader, "reader", "issue no others");
    issue(&file, "root", "is no role");
    issue(&out, "reader", "No such file");
    let args = ["keys", "new", &out, "--days", "0"];
    refused(&args, None, "0 days");
}

#[test]
fn keys_that_are_none_are_refused_in_a_line() {
    let folder = tempfile::tempdir().expect("a directory");
    let pool = new_keys(folder.path(), "pool.keys");
    let good = std::fs::read_to_string(&pool).expect("text");
    let file = |name, text: &str, mode| key_file(folder.path(), name, text, mode);
    let half: String = good.lines().take(5).map(|line| format!("{line}\n")).collect();
    let bad = [
        (file("group", &good, 0o640), "chmod 600"),
        (file("others", &good, 0o604), "chmod 600"),
        (file("text", &"k".repeat(64), 0o600), "these are no keys"),
        (file("half", &half, 0o600), "these are no keys"),
        (file("empty", "", 0o600), "these are no keys"),
        (file("long", &good.repeat(20), 0o600), "more than"),
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
    refused(&["shell", "--connect", "127.0.0.1:1"], Some(&bad[2].0), "DMTREE_KEY_FILE");
    let both = ["memnode", "--listen", "127.0.0.1:0", "--insecure"];
    refused(&both, Some(&pool), "leave one of them out");
    let (status, said, _) = run(&["doctor", "--key-file", path], None, "");
    assert!(status == Some(1) && said.contains("chmod 600"), "{said}");
    let (status, said, _) = run(&["doctor", "--key-file", &pool], None, "");
    assert!(status == Some(0) && said.contains("RDMA packets are not encrypted"), "{said}");
}

/// Without keys only the loopback is listened on; other addresses need --insecure, and every start
/// and the status explain what that means.
#[test]
fn without_keys_other_machines_are_shut_out_unless_the_user_insists() {
    refused(&["memnode", "--listen", "0.0.0.0:0"], None, "--insecure");
    let (mn, at) = memnode(&["--listen", "0.0.0.0:0", "--insecure"], None);
    let at = at.replace("0.0.0.0", "127.0.0.1");
    let (status, said, notes) =
        run(&["shell", "--connect", &at, "--insecure"], None, "put ada 1815\n");
    assert_eq!((status, said.as_str()), (Some(0), "done\n"));
    assert!(notes.contains("INSECURE"), "{notes}");
    let (status, said, _) = run(&["status", "--connect", &at], None, "");
    assert!(status == Some(0) && said.contains("INSECURE"), "{said}");
    let (status, said, _) = run(&["doctor", "--insecure"], None, "");
    assert!(status == Some(0) && said.contains("INSECURE"), "{said}");
    let notes = mn.notes().join("\n");
    assert!(notes.contains("INSECURE"), "{notes}");
    let (_, said, _) = run(&["doctor"], None, "");
    assert!(said.contains("loopback only") && !said.contains("INSECURE"), "{said}");
    let (_mn, at) = memnode(&["--listen", "127.0.0.1:0"], None);
    let (status, said, _) = run(&["status", "--connect", &at], None, "");
    assert!(status == Some(0) && !said.contains("INSECURE"), "{said}");
}

/// A peer with another protocol version gets this version as the answer; any other peer gets no
/// answer.
#[test]
fn a_peer_that_is_not_known_hears_no_more_than_the_version() {
    let folder = tempfile::tempdir().expect("a directory");
    let keys = new_keys(folder.path(), "pool.keys");
    let (_mn, at) = memnode(&["--listen", "127.0.0.1:0"], Some(&keys));
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
    // A greeting without keys, one that goes on without TLS, and one that says nothing more: a
    // greeting, a TLS alert at most, and the end within two seconds.
    let greeting = |keyed: u8| [&old[..], &[keyed]].concat();
    let heard = hears(&greeting(0));
    assert_eq!((heard.len(), heard[12]), (13, 1), "a greeting: {heard:?}");
    let ask = [&[2, 0][..], &[0, 0]].concat();
    let heard = hears(&[greeting(1), ask, vec![0xff; 40]].concat());
    assert!((13..=20).contains(&heard.len()), "{heard:?}");
    assert_eq!(hears(&greeting(1)).len(), 13);
}
