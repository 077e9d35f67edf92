//! Memory nodes that are lost, come back, or register with impossible settings.

use std::time::{Duration, Instant};

use crate::harness::{
    PATIENCE, Process, compute, found, leases, memnode, memnode_at, run, shell, two_memory_nodes,
    within,
};

/// Keys that three processes have loaded one after the other: hundreds of leaves, alternately on
/// both memory nodes.
const KEYS: usize = 6_000;
/// The stride of the keys that are checked.
const STEP: usize = 40;
/// An error that names a lost memory node comes at once: well before the time-out of an operation,
/// 10 s, also on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Asserts that an operation on a lost memory node ends at once in an error that names the node.
fn names_the_lost(answer: &str, took: Duration) {
    assert!(answer.contains("mn1"), "the error must name the lost memory node: {answer}");
    assert!(took < AT_ONCE, "{took:?} until: {answer}");
}

/// Two memory nodes and three compute processes with keys on both, the second memory node killed;
/// also the keys whose leaves lie on the first. Operations on these do not need the second one, in
/// any process: the path to a leaf, its table and the records of running operations are on the
/// first memory node and on compute nodes.
fn half_lost() -> (Process, String, Vec<Process>, Vec<usize>) {
    let ([first, mut second], at) = two_memory_nodes();
    let mut all: Vec<Process> = (0..3).map(|_| compute(&at)).collect();
    for i in 0..KEYS {
        assert_eq!(all[i * 3 / KEYS].ask(&format!("put k{i:05} v")), "done");
    }
    second.kill();
    let mut healthy = Vec::new();
    for i in (0..KEYS).step_by(STEP) {
        let (answer, took) = all[0].timed(&format!("put k{i:05} w"));
        match answer.as_str() {
            "done" => healthy.push(i),
            // It may take a lease until the loss is known.
            other => assert!(took < Duration::from_secs(12), "{took:?} until: {other}"),
        }
    }
    let quarter = KEYS / STEP / 4;
    assert!(
        (quarter..=3 * quarter).contains(&healthy.len()),
        "{} of {}",
        healthy.len(),
        4 * quarter
    );
    std::thread::sleep(leases(3));
    (first, at, all, healthy)
}

/// Writes to the keys on the remaining memory node succeed.
fn writes_go_on(p: &mut Process, healthy: &[usize]) {
    for i in healthy {
        assert_eq!(p.ask(&format!("put k{i:05} x")), "done", "k{i:05} does not need the lost one");
    }
}

/// Writes to the other keys fail, at once and with the name of the memory node that is lost.
fn others_fail(p: &mut Process, healthy: &[usize]) {
    for i in (0..KEYS).step_by(STEP).filter(|i| !healthy.contains(i)) {
        let (answer, took) = p.timed(&format!("put k{i:05} x"));
        names_the_lost(&answer, took);
    }
}

/// A memory node is lost, and then a compute process: every operation that does not need the memory
/// node succeeds.
#[test]
fn a_failover_does_not_wait_for_a_lost_memory_node() {
    let (_mn, _at, mut all, healthy) = half_lost();
    writes_go_on(&mut all[1], &healthy);
    all[2].kill();
    std::thread::sleep(leases(2));
    all[..2].iter_mut().for_each(|p| writes_go_on(p, &healthy));
    all[..2].iter_mut().for_each(|p| others_fail(p, &healthy));
}

/// A process that starts when a memory node has been lost joins, reports the lost node, and works
/// with the rest.
#[test]
fn a_newcomer_joins_without_a_lost_memory_node() {
    let (_mn, at, mut all, healthy) = half_lost();
    let mut newcomer = shell(&at);
    for i in &healthy {
        assert_eq!(newcomer.ask(&format!("get k{i:05}")), "w", "k{i:05} lies on the other one");
    }
    within(PATIENCE, || {
        let told = newcomer.notes().iter().any(|line| line.contains("mn1"));
        told.then_some(()).ok_or_else(|| format!("not told: {:?}", newcomer.notes()))
    });
    writes_go_on(&mut newcomer, &healthy);
    others_fail(&mut newcomer, &healthy);
    writes_go_on(&mut all[0], &healthy);
}

/// The first memory node reports once that another one is lost, with its contents; compute
/// processes do not retry for ever.
#[test]
fn a_lost_memory_node_is_named_once() {
    let (mut first, _at, mut all, healthy) = half_lost();
    std::thread::sleep(leases(3));
    let lost = (0..KEYS).step_by(STEP).find(|i| !healthy.contains(i)).expect("some");
    let (answer, took) = all[0].timed(&format!("get k{lost:05}"));
    names_the_lost(&answer, took);
    assert!(answer.contains("lost") && !answer.contains("try again"), "{answer}");
    first.kill();
    let said = first.everything();
    let named = said.iter().filter(|l| l.contains("mn1") && l.contains("lost"));
    assert_eq!(named.count(), 1, "{said:?}");
}

/// A number that no memory node can have is refused in a line, and costs the first memory node
/// nothing.
#[test]
fn a_memory_node_with_an_impossible_number_is_refused() {
    let (mut mn, at) = found(&["--memory-bytes", "64MiB", "--memory-nodes", "2"]);
    for index in ["40000", "2", "65535"] {
        let began = Instant::now();
        let small = ["--memory-bytes", "64MiB", "--wait", "3"];
        let join = ["memnode", "--join", &at, "--listen", "127.0.0.1:0", "--index", index];
        let (status, said) = run(&[&join[..], &small].concat());
        let error = said.lines().filter(|l| l.starts_with("error")).count();
        assert_eq!((status, error), (Some(2), 1), "--index {index}: {said}");
        assert!(said.contains(index), "--index {index}: the error must name the number: {said}");
        assert!(began.elapsed() < Duration::from_secs(3), "--index {index}: {said}");
    }
    mn.kill();
    let said = mn.everything();
    assert!(!said.iter().any(|l| l.contains("panicked")), "{said:?}");
}

/// A full pool goes on in all of its processes when a memory node is added; what is written there
/// is seen by all, also by a process that joins later, and the loss of that memory node costs what
/// it held.
#[test]
fn a_full_pool_grows_by_a_memory_node() {
    let (mut first, at) = found(&["--memory-bytes", "4MiB"]);
    let (mut a, mut b) = (compute(&at), compute(&at));
    let value = "v".repeat(4_000);
    let put = |p: &mut Process, i: usize| p.ask(&format!("put k{i:05} {value}"));
    let full = (0..2_000).find(|i| put(&mut a, *i) != "done").expect("it is full by then");
    assert!(put(&mut b, full).contains("full"), "another process meets the same");
    let join = ["memnode", "--join", &at, "--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"];
    let mut added = Process::start(&join);
    assert!(added.line().starts_with("mn1 "));
    a.until_done(&format!("put k{full:05} {value}"));
    let more = full + 1..full + 600;
    for i in more.clone() {
        let p = if i % 2 == 0 { &mut a } else { &mut b };
        assert_eq!(put(p, i), "done", "k{i:05}");
    }
    let mut c = shell(&at);
    for i in (0..more.end).step_by(7) {
        assert_eq!(c.ask(&format!("get k{i:05}")), value, "k{i:05}");
    }
    let (code, status) = run(&["status", "--connect", &at]);
    assert!(code == Some(0) && status.contains("mn1"), "{status}");
    added.kill();
    within(PATIENCE, || {
        let answers: Vec<String> =
            more.clone().step_by(29).map(|i| a.ask(&format!("get k{i:05}"))).collect();
        let named = answers.iter().any(|answer| answer.contains("mn1 is lost"));
        named.then_some(()).ok_or_else(|| format!("{:?}", answers.last()))
    });
    let kept = (0..full).filter(|i| a.ask(&format!("get k{i:05}")) == value).count();
    assert!(kept > full / 4, "{kept} of {full} on the first memory node");
    first.kill();
    let said = first.everything();
    let opened = said.iter().filter(|l| l.contains("mn1") && l.contains("in use"));
    assert_eq!(opened.count(), 1, "{said:?}");
}

/// A memory node is a service: it outlives its terminal. Asked to stop, it ends also while clients
/// are connected.
#[test]
fn a_memory_node_outlives_its_terminal() {
    let (mut mn, at) = found(&["--memory-bytes", "64MiB"]);
    let mut client = Process::start(&["shell", "--connect", &at]);
    assert_eq!(client.ask("put a 1"), "done");
    mn.signal("-HUP");
    within(PATIENCE, || {
        let said = mn.notes().iter().any(|note| note.contains("SIGHUP"));
        said.then_some(()).ok_or_else(|| format!("{:?}", mn.notes()))
    });
    assert_eq!(client.ask("get a"), "1");
    mn.signal("-TERM");
    let began = Instant::now();
    while mn.child.try_wait().expect("a child").is_none() {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", mn.notes());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The contents of a memory node are lost with it: a node that starts again at the same address is
/// another pool, and compute processes of the old one get an error with a way out.
#[test]
fn a_memory_node_that_comes_back_empty_is_refused() {
    let (mut mn, at) = memnode();
    let mut a = compute(&at);
    mn.kill();
    let _again = memnode_at(&at);
    within(PATIENCE, || {
        let answer = a.ask("get ready");
        assert_ne!(answer, "yes", "memory of the lost node");
        match answer.contains("another pool")
            && answer.contains("start its compute processes again")
        {
            true => Ok(()),
            false => Err(answer),
        }
    });
    let mut b = compute(&at);
    assert_eq!(b.ask("get ready"), "yes", "the new pool works");
}
