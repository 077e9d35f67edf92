//! Starts of processes: many at once, at a bad moment, or with impossible settings.

use std::time::{Duration, Instant};

use crate::harness::{
    PATIENCE, Process, alone, compute, fabric, found, memnode, run, shell, within,
};

/// Processes that start together on a pool without the index: one makes it, the others open it.
#[test]
fn six_processes_start_at_once_on_a_new_pool() {
    let _machine = alone();
    for round in 0..3 {
        let (_mn, at) = memnode();
        let mut all: Vec<Process> = (0..6).map(|_| shell(&at)).collect();
        for (i, p) in all.iter_mut().enumerate() {
            assert_eq!(p.ask(&format!("put k{i} {i}")), "done", "round {round}, process {i}");
        }
        for (i, p) in all.iter_mut().enumerate() {
            assert_eq!(p.ask(&format!("get k{}", (i + 1) % 6)), ((i + 1) % 6).to_string());
        }
    }
}

/// A process that is killed while it makes an index leaves a name that the next process can use.
#[test]
fn the_name_of_an_index_outlives_a_killed_creator() {
    let _machine = alone();
    // Room for every index.
    let (_mn, at) = found(&["--memory-bytes", "256MiB", "--chunk-bytes", "1MiB"]);
    let open = |name: &str| Process::start(&["shell", "--connect", &at, "--index", name]);
    let began = Instant::now();
    assert_eq!(open("whole").ask("put k v"), "done");
    let whole = began.elapsed();
    const CREATORS: u32 = 60;
    // Two are always on their way, so that the moments differ more than the scheduler's.
    for i in 0..CREATORS {
        let mut creator = open(&format!("index{i}"));
        std::thread::sleep(whole * (i + 1) / (CREATORS + 1));
        creator.kill();
        if i % 12 == 11 {
            // Their places are free again.
            std::thread::sleep(Duration::from_millis(600));
        }
    }
    for i in 0..CREATORS {
        let name = format!("index{i}");
        within(PATIENCE, || {
            let mut p = open(&name);
            let answer = p.ask("put k v");
            if answer != "done" {
                return Err(format!("{name}: {answer}"));
            }
            p.quit();
            Ok(())
        });
    }
}

#[test]
fn impossible_settings_give_an_error_with_a_way_out() {
    let (_mn, at) = memnode();
    for (args, words) in [
        (vec!["memnode", "--listen", at.as_str()], "give another address or port"),
        (vec!["memnode", "--listen", "nowhere"], "cannot listen"),
        (vec!["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "1KiB"], "too little"),
        (vec!["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "8TiB"], "ask for a smaller"),
        (
            vec!["memnode", "--join", at.as_str(), "--listen", "127.0.0.1:0", "--index", "300"],
            "256",
        ),
        (vec!["shell", "--connect", "127.0.0.1:1"], "no process listens there"),
        (vec!["bench", "quick", "--nodes", at.as_str()], "--fabric tcp"),
        (vec!["bench", "quick", "--device", "rxe0"], "give --fabric verbs"),
        (vec!["memnode", "--fabric", "sim", "--listen", "127.0.0.1:0"], "give tcp or verbs"),
        (vec!["conform", "--system", "none"], "unknown system"),
    ] {
        let (code, text) = run(&args);
        assert!(code == Some(2) && text.contains(words), "{args:?}: {code:?} {text}");
    }
    let mut still = compute(&at);
    assert_eq!(still.ask("get ready"), "yes");
}

/// A binary without the feature, and a machine without the library or a device, say so.
#[test]
fn missing_rdma_is_reported() {
    if fabric() == "verbs" {
        return;
    }
    for args in [
        &["memnode", "--fabric", "verbs", "--listen", "127.0.0.1:0"][..],
        &["bench", "quick", "--fabric", "verbs"],
        &["conform", "--fabric", "verbs"],
    ] {
        let (code, text) = run(args);
        let ways_out = ["--features verbs", "apt-get install", "modprobe", "rdma link add"];
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(ways_out.iter().any(|words| text.contains(words)), "{args:?}: {text}");
    }
}
