//! Compute processes come, go, hang, are killed and come again; the pool stays.

use std::time::{Duration, Instant};

use crate::common::address;
use crate::harness::{
    Process, alone, compute, compute_within, fabric, found, lease_ms, leases, memnode, pause,
    run_shell, together,
};

/// Longer than the membership waits for an acknowledgement.
const LONG: Duration = Duration::from_secs(11);

/// The next process reads the pair.
fn next_process_reads(at: &str) {
    let (status, said) = run_shell(at, "get ada");
    assert_eq!((status, said.as_str()), (Some(0), "1815\n"));
}

fn all_left() {
    let (_mn, at) = memnode();
    assert_eq!(run_shell(&at, "put ada 1815"), (Some(0), "done\n".to_owned()));
    std::thread::sleep(LONG);
    next_process_reads(&at);
    next_process_reads(&at);
}

/// Something happens to the memory node or to the compute processes, the first of which has written
/// the pair.
fn outlived(processes: usize, happens: fn(&Process, &mut [Process])) {
    let (mn, at) = memnode();
    let mut all: Vec<_> = (0..processes).map(|_| compute(&at)).collect();
    assert_eq!(all[0].ask("put ada 1815"), "done");
    happens(&mn, &mut all);
    std::thread::sleep(LONG);
    next_process_reads(&at);
}

/// A pool without compute processes, or with all of them paused, is there for the next one,
/// however late it comes.
#[test]
fn a_pool_outlives_its_compute_processes() {
    together(&[
        ("all left", all_left),
        ("all killed", || outlived(1, |_, all| all[0].kill())),
        ("the memory node paused", || outlived(1, |mn, _| mn.pause(leases(5)))),
        ("all compute processes paused", || {
            outlived(2, |_, all| pause(&[&all[0], &all[1]], leases(5)));
        }),
        ("a lone process paused", || outlived(1, |_, all| all[0].pause(leases(5)))),
    ]);
}

/// The pool does not wait for the lease of a process that has ended: its host refuses connections.
/// Its locks and tables are taken over, and its number is free.
#[test]
fn a_killed_process_is_dead_long_before_its_lease_ends() {
    const LEASE: Duration = Duration::from_secs(60);
    let lease = LEASE.as_millis().to_string();
    let arguments = ["memnode", "--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"];
    let more = ["--compute-nodes", "2", "--lease-ms", &lease, "--fabric", &fabric()];
    let mut mn = Process::start(&[&arguments[..], &more].concat());
    let at = address(&mn.line());
    let (mut a, mut b) = (compute(&at), compute(&at));
    for i in 0..400 {
        assert_eq!(b.ask(&format!("put k{i:05} v")), "done");
    }
    let began = Instant::now();
    b.kill();
    for i in 0..400 {
        a.until_done(&format!("put k{i:05} w"));
    }
    let mut again = compute_within(&at, LEASE / 3);
    assert_eq!(again.ask("get k00399"), "w");
    assert!(began.elapsed() < LEASE / 2, "{:?}", began.elapsed());
    mn.kill();
    let said = mn.everything();
    assert!(said.iter().any(|line| line.contains("its process has ended")), "{said:?}");
}

/// A pool of `places` places, all taken by processes that are killed.
fn killed_places(places: usize) {
    let n = places.to_string();
    let (_mn, at) = found(&["--memory-bytes", "64MiB", "--compute-nodes", &n]);
    let mut all: Vec<_> = (0..places).map(|_| compute(&at)).collect();
    assert_eq!(all[0].ask("put ada 1815"), "done");
    all.iter_mut().for_each(Process::kill);
    let mut next = compute_within(&at, leases(10) + Duration::from_secs(3));
    assert_eq!(next.ask("get ada"), "1815");
}

/// The number of a crashed process is free when its lease has expired, although no compute process
/// is there to complete the failover.
#[test]
fn places_of_killed_processes_are_free_after_the_lease() {
    together(&[("one place", || killed_places(1)), ("three places", || killed_places(3))]);
}

/// A pause of the membership server costs no process its membership for good: each writes again.
fn after_a_pause_of_the_first_memory_node() {
    let (mn, at) = memnode();
    let mut all = [compute(&at), compute(&at)];
    assert_eq!(all[0].ask("put k 1"), "done");
    mn.pause(leases(5));
    for (i, p) in all.iter_mut().enumerate() {
        p.until_done(&format!("put k{i} after"));
    }
    assert_eq!(all[0].ask("get k1"), "after");
}

/// A process that is stopped for longer than its lease is expelled. Its unfinished operations have
/// no later effect; it joins again by itself, as a new incarnation, and works.
fn after_a_pause_of_its_own() {
    let (_mn, at) = memnode();
    let (mut a, mut b) = (compute(&at), compute(&at));
    for i in 0..200 {
        assert_eq!(a.ask(&format!("put k{i} a")), "done");
    }
    a.signal("-STOP");
    for i in 0..200 {
        assert_eq!(b.ask(&format!("put k{i} b")), "done", "others go on");
    }
    std::thread::sleep(leases(2) + Duration::from_millis(100));
    assert_eq!(b.ask("put late b"), "done");
    a.signal("-CONT");
    a.until_done("put again a");
    assert_eq!((a.ask("get k0"), b.ask("get again")), ("b".to_owned(), "a".to_owned()));
    for i in 0..200 {
        assert_eq!(a.ask(&format!("put k{i} c")), "done");
    }
}

fn after_a_pause_of_all_compute_processes() {
    let (_mn, at) = memnode();
    let (mut a, mut b) = (compute(&at), compute(&at));
    pause(&[&a, &b], leases(5));
    for p in [&mut a, &mut b] {
        p.until_done("put k after");
    }
}

#[test]
fn processes_work_again_after_a_pause() {
    together(&[
        ("of the first memory node", after_a_pause_of_the_first_memory_node),
        ("of its own", after_a_pause_of_its_own),
        ("of all compute processes", after_a_pause_of_all_compute_processes),
    ]);
}

/// The first operations of other processes wait about one lease for a process that hangs, and not
/// for frames of it in flight.
#[test]
fn a_hung_process_delays_others_by_a_lease() {
    let _machine = alone();
    // The best of some rounds: how fast this machine is does not count.
    let longest: Vec<Duration> = (0..3).map(|_| longest_wait_beside_a_hung_process()).collect();
    let limit = Duration::from_millis(lease_ms() + lease_ms() / 10) + Duration::from_secs(1);
    assert!(longest.iter().any(|longest| *longest < limit), "{longest:?}");
}

fn longest_wait_beside_a_hung_process() -> Duration {
    let (_mn, at) = memnode();
    let (mut hung, mut other) = (compute(&at), compute(&at));
    (0..300).for_each(|i| assert_eq!(hung.ask(&format!("put k{i} hung")), "done"));
    hung.signal("-STOP");
    let write = |i| other.timed(&format!("put k{i} other"));
    let took = (0..300).map(write).map(|(answer, took)| {
        assert_eq!(answer, "done");
        took
    });
    took.max().unwrap_or_default()
}
