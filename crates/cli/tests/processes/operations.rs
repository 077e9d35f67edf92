//! A process reads the writes of another one, also after a crash of the writer.

use std::io::Write;
use std::time::Duration;

use crate::harness::{PATIENCE, Process, compute, fabric, memnode};

#[test]
fn a_process_reads_the_writes_of_another() {
    let (_mn, at) = memnode();
    let (mut a, mut b) = (compute(&at), compute(&at));
    assert_eq!(a.ask("put ada 1815"), "done");
    assert_eq!(b.ask("get ada"), "1815");
    assert_eq!(b.ask("cas ada 1815 1852"), "done");
    assert_eq!(a.ask("get ada"), "1852");
    assert_eq!(b.ask("delete ada"), "done");
    assert_eq!(a.ask("get ada"), "not found");
    // A process that leaves in an orderly way hands its tables to the others.
    a.quit();
    for i in 0..100 {
        assert_eq!(b.ask(&format!("put after{i} x")), "done");
    }
}

/// Acknowledged writes survive the process that made them, whenever it is killed; the others go on,
/// on the same leaves too.
#[test]
fn a_process_that_is_killed_while_it_writes_loses_nothing_acknowledged() {
    let (_mn, at) = memnode();
    let mut survivor = compute(&at);
    // A verb takes long where there is no NIC.
    let (rounds, keys) = if fabric() == "tcp" { (4, 3_000) } else { (3, 500) };
    for round in 0..rounds {
        let pause = Duration::from_millis(40 + 37 * round);
        let acknowledged = killed_writer(compute(&at), pause, (round, keys));
        let first = acknowledged - acknowledged.min(keys);
        for i in first..acknowledged {
            let found = survivor.ask(&format!("get key{:05}", i % keys));
            let written = |i: i32| found == format!("v{round}-{i}");
            // The one after the last acknowledged may have happened, too.
            assert!(
                written(i) || (i + keys == acknowledged && written(acknowledged)),
                "{i}: {found}"
            );
        }
        for i in 0..keys {
            assert_eq!(survivor.ask(&format!("put key{i:05} x")), "done", "key{i}");
        }
    }
    let count = survivor.ask("scan zzz *");
    assert_eq!(count, "(0)");
}

/// The number of acknowledged writes of a process that is killed in the middle of its writes.
fn killed_writer(mut writer: Process, pause: Duration, (round, keys): (u64, i32)) -> i32 {
    let mut pipe = writer.take_input();
    let feeder = std::thread::spawn(move || {
        for i in 0..200_000 {
            if writeln!(pipe, "put key{:05} v{round}-{i}", i % keys).is_err() {
                return;
            }
        }
    });
    // In the middle of its writes, however long it takes to begin.
    assert_eq!(writer.line(), "done");
    std::thread::sleep(pause);
    writer.kill();
    feeder.join().expect("ends when the pipe breaks");
    let mut acknowledged = 1;
    while let Some(line) = writer.heard() {
        assert_eq!(line, "done", "within {PATIENCE:?}");
        acknowledged += 1;
    }
    acknowledged
}
