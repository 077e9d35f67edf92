//! An index of a running pool as a file, and back into another pool.

use crate::common::has;
use crate::harness::{compute, memnode, run, run_shell};

#[test]
fn an_index_goes_from_one_pool_to_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_first, from) = memnode();
    let mut shell = compute(&from);
    for i in 0..300 {
        assert_eq!(shell.ask(&format!("put key{i:03} value{i}")), "done");
    }
    shell.quit();
    let (_second, to) = memnode();
    for format in ["jsonl", "parquet"] {
        let file = dir.path().join(format!("shell.{format}"));
        let file = file.to_str().expect("plain");
        let export =
            |at: &str| run(&["export", "--connect", at, "--index", "shell", "--out", file]);
        let (status, said) = export(&from);
        assert_eq!(status, Some(0), "{said}");
        has(&said, &["301 pairs of shell exported to", file]);
        let (status, said) = export(&from);
        assert_eq!(status, Some(2), "{said}");
        has(&said, &[file, "it is there already"]);
        let import = |index: &str, more: &[&str]| {
            run(&[&["import", "--connect", &to, "--index", index, file], more].concat())
        };
        let (status, said) = import(format, &[]);
        assert_eq!(status, Some(2), "{said}");
        has(&said, &["the pool has", "--into-new"]);
        let (status, said) = import(format, &["--into-new"]);
        assert_eq!(status, Some(0), "{said}");
        has(&said, &["301 pairs loaded into"]);
        let (status, said) = import(format, &["--unsorted"]);
        assert_eq!(status, Some(0), "{said}");
        has(&said, &["301 pairs put into"]);
        let (status, said) = import(format, &["--into-new"]);
        assert_eq!(status, Some(2), "{said}");
        let lines = "scan key299 * 5\nget ready";
        let shell = ["shell", "--connect", &to, "--index", format];
        let out = crate::common::fed(crate::common::dmtree(&shell), &format!("{lines}\n"));
        has(&crate::common::said(&out), &["key299 value299\nready yes\n(2)\nyes\n"]);
    }
    let none = dir.path().join("none.jsonl");
    let (status, said) =
        run(&["import", "--connect", &to, "--index", "jsonl", none.to_str().expect("plain")]);
    assert_ne!(status, Some(0));
    has(&said, &["none.jsonl: cannot open it"]);
    let (status, said) = run_shell(&to, "get key000");
    assert_eq!((status, said.lines().next()), (Some(0), Some("not found")));
}
