//! Jobs: what they may rely on, on every transport without hardware.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::fabrics::{CN1, LOSSY, adversarial, apart, local, sim};
use crate::common::{CN, MN, at, endpoint, fails, fetch, on};
use dmtree_fabric::sim::{CrashPoint, FabricFaults, How, Laxity, Place, SimFabric};
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, Fabric, Fifo, GlobalAddr, JobNumber, MAX_JOBS, MAX_RESULT_BYTES,
    MAX_RPC_BYTES, NodeId, Result, Service, ServiceId, Stage, Worker,
};

const SERVICE: ServiceId = ServiceId(9);
/// What a job that counts adds to.
const WORD: u64 = 128;
/// What a job that is slow waits for.
const GO: u64 = 192;

/// A service with jobs: what one does, the first byte of the request says.
#[derive(Default)]
struct Shop {
    jobs: AtomicU32,
}

impl Service for Shop {
    async fn answer(&self, _: &Endpoint, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
        Err(Error::invalid("no calls here"))
    }

    async fn job(&self, ep: &Endpoint, from: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        self.jobs.fetch_add(1, Ordering::SeqCst);
        match request.first() {
            Some(b'p') => panic!("as asked"),
            Some(b'e') => Err(Error::invalid("as asked")),
            Some(b'l') => Ok(vec![0; MAX_RPC_BYTES]),
            Some(b'6') => Ok(vec![0; 60_000]),
            // Counts up for ever, a step each 20 us.
            Some(b'c') => loop {
                let n = fetch(ep, at(WORD), 8).await?[0];
                ep.write_word(at(WORD), u64::from(n) % 250 + 1).await?;
                ep.sleep(20_000).await;
            },
            // Reaches its node's memory, as a processor too, and no other.
            Some(b'm') => {
                ep.write_word(at(256), 7).await?;
                let mut word = [0; 8];
                ep.own_memory().expect("a processor").read(256, &mut word)?;
                let elsewhere = GlobalAddr::new(from, 64);
                let e = ep.write_word(elsewhere, 1).await.expect_err("elsewhere");
                Ok([&word[..], e.to_string().as_bytes()].concat())
            }
            // Works without an await, then sleeps.
            Some(b'w') => {
                ep.stage_cost(Stage::ServerNode, 1000);
                ep.sleep(50_000).await;
                ep.stage_cost(Stage::ServerNode, 1000);
                Ok(Vec::new())
            }
            // Lasts until it is told to end.
            Some(b's') => {
                while fetch(ep, at(GO), 8).await?[0] == 0 {
                    ep.sleep(20_000).await;
                }
                Ok(request.to_vec())
            }
            _ => {
                ep.sleep(3_000_000).await;
                Ok(request.to_vec())
            }
        }
    }

    fn is_data(&self) -> bool {
        true
    }
}

fn served(f: &impl Fabric) -> Arc<Shop> {
    let shop = Arc::<Shop>::default();
    f.serve(MN, SERVICE, shop.clone()).expect("a member");
    shop
}

fn start(ep: &Endpoint, request: &[u8]) -> Result<JobNumber> {
    on(ep, ep.start_job(MN, SERVICE, request))
}

fn run(ep: &Endpoint, request: &[u8]) -> Result<Vec<u8>> {
    let number = start(ep, request)?;
    let result = on(ep, ep.job(MN, number));
    on(ep, ep.forget_job(MN, number))?;
    result
}

fn word(ep: &Endpoint) -> u8 {
    on(ep, fetch(ep, at(WORD), 8)).expect("a READ")[0]
}

/// Waits until the job that counts has begun, and has gone on for some steps.
fn counts(ep: &Endpoint) {
    let first = word(ep);
    for _ in 0..100_000 {
        if word(ep).wrapping_sub(first) > 3 {
            return;
        }
        pause(ep, 20_000);
    }
    panic!("the job does not count");
}

fn pause(ep: &Endpoint, ns: u64) {
    let slept = async {
        ep.sleep(ns).await;
        Ok(())
    };
    on(ep, slept).expect("time passes");
}

/// A number at once, and the result at the end, until it is forgotten.
fn a_job_lasts(ep: &Endpoint, other: &Endpoint) {
    let go = |word| on(ep, async { ep.write_word(at(GO), word).await }).expect("a WRITE");
    go(0);
    let number = start(ep, b"slow").expect("started");
    assert_eq!(on(ep, ep.ask_job(MN, number)).expect("its own"), None, "it runs");
    go(1);
    assert_eq!(on(ep, ep.job(MN, number)).expect("ends"), b"slow");
    assert_eq!(on(ep, ep.ask_job(MN, number)).expect("kept").as_deref(), Some(&b"slow"[..]));
    if other.node() != ep.node() {
        let stranger = on(other, other.job(MN, number));
        fails(stranger, ErrorKind::InvalidArgument, "is not cn1 (incarnation 1)'s but cn0");
    }
    on(ep, ep.forget_job(MN, number)).expect("its own");
    fails(on(ep, ep.job(MN, number)), ErrorKind::NotFound, "is forgotten");
    fails(on(ep, ep.forget_job(MN, number)), ErrorKind::NotFound, "is forgotten");
    for unknown in [0, 1 << 32, number.0 + 1, number.0 + (1 << 32), u64::MAX] {
        let e = on(ep, ep.job(MN, JobNumber(unknown)));
        fails(e, ErrorKind::NotFound, "mn0 has never had a job");
    }
}

/// A failure is of one job, and says which.
fn failures_are_of_one_job(ep: &Endpoint) {
    fails(run(ep, b"p"), ErrorKind::Corrupt, "a service of mn0 has panicked");
    fails(run(ep, b"e"), ErrorKind::InvalidArgument, "of mn0: as asked");
    fails(run(ep, b"l"), ErrorKind::InvalidArgument, "a job's result of 65536 bytes exceeds 65520");
    let unknown = on(ep, ep.start_job(MN, ServiceId(99), b""));
    fails(unknown, ErrorKind::Unsupported, "mn0 has no service 99");
    let long = vec![0; MAX_RPC_BYTES];
    fails(start(ep, &long), ErrorKind::InvalidArgument, "at most 65536 bytes");
    let seen = run(ep, b"m").expect("its own memory");
    assert_eq!(seen[0], 7);
    let refused = String::from_utf8_lossy(&seen[8..]);
    assert!(refused.contains("a job of mn0 reaches the memory of mn0 alone"), "{refused}");
    let call = on(ep, ep.rpc(MN, ServiceId(u16::MAX), b"\xff", &mut Vec::new()));
    fails(call, ErrorKind::InvalidArgument, "no message about a job");
}

/// Starts a job as soon as there is room: jobs that were forgotten end when they come to an await.
fn start_in_time(ep: &Endpoint, request: &[u8]) -> JobNumber {
    for _ in 0..10_000 {
        match start(ep, request) {
            Err(e) if e.kind() == ErrorKind::Busy => pause(ep, 100_000),
            started => return started.expect("room"),
        }
    }
    panic!("forgotten jobs do not end");
}

/// A node keeps so many jobs, and so many bytes of results.
fn jobs_are_bounded(ep: &Endpoint) {
    let many: Vec<_> = (0..MAX_JOBS).map(|_| start(ep, b"x").expect("room")).collect();
    fails(start(ep, b"x"), ErrorKind::Busy, "mn0 has 64 jobs already");
    many.iter().for_each(|n| on(ep, ep.forget_job(MN, *n)).expect("its own"));
    let last = start_in_time(ep, b"x");
    on(ep, ep.forget_job(MN, last)).expect("its own");
    let fit = MAX_RESULT_BYTES / 60_000;
    let full: Vec<_> = (0..=fit).map(|_| start_in_time(ep, b"6")).collect();
    let ends: Vec<_> = full.iter().map(|n| on(ep, ep.job(MN, *n))).collect();
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), fit);
    let refused = ends.into_iter().find(Result::is_err).expect("one");
    fails(refused, ErrorKind::Full, "no room for 60000 more: forget jobs");
    full.iter().for_each(|n| on(ep, ep.forget_job(MN, *n)).expect("its own"));
    assert_eq!(run(ep, b"6").expect("room again").len(), 60_000);
}

/// A cancelled job ends at an await, and does nothing more.
fn cancelled_jobs_end(ep: &Endpoint) {
    let number = start(ep, b"c").expect("started");
    counts(ep);
    on(ep, ep.cancel_job(MN, number)).expect("its own");
    fails(on(ep, ep.job(MN, number)), ErrorKind::Closed, "was cancelled");
    let last = word(ep);
    pause(ep, 1_000_000);
    assert_eq!(word(ep), last);
    on(ep, ep.forget_job(MN, number)).expect("its own");
    let again = start(ep, b"c").expect("started");
    counts(ep);
    on(ep, ep.forget_job(MN, again)).expect("forgetting a job that runs cancels it");
    fails(on(ep, ep.ask_job(MN, again)), ErrorKind::NotFound, "is forgotten");
}

fn all(ep: &Endpoint, other: &Endpoint) {
    a_job_lasts(ep, other);
    failures_are_of_one_job(ep);
    jobs_are_bounded(ep);
    cancelled_jobs_end(ep);
}

#[test]
fn local_keeps_the_contract_of_jobs() {
    let f = local();
    served(&f);
    all(&endpoint(&f, CN), &endpoint(&f, CN1));
}

#[test]
fn the_simulator_keeps_the_contract_of_jobs() {
    for f in [sim(&[]), adversarial(FabricFaults::NONE, 1), adversarial(LOSSY, 2)] {
        served(&f);
        all(&endpoint(&f, CN), &endpoint(&f, CN1));
    }
}

#[test]
fn processes_keep_the_contract_of_jobs() {
    let [mn, cn] = apart(2);
    served(&mn);
    let ep = Endpoint::alone(cn.attach(cn.me().node).expect("itself"), 0);
    all(&ep, &ep);
}

/// Its jobs have ended when a member's access is revoked, on every transport. A node that lets them
/// go on is found.
fn fenced_jobs_end(f: &impl Fabric, ep: &Endpoint, observer: &Endpoint) -> bool {
    start(ep, b"c").expect("started");
    counts(observer);
    f.revoke(MN, ep.node(), 1).expect("known");
    let last = word(observer);
    start(ep, b"c").expect_err("fenced");
    pause(observer, 2_000_000);
    word(observer) == last
}

#[test]
fn jobs_of_fenced_callers_end() {
    let f = local();
    served(&f);
    assert!(fenced_jobs_end(&f, &endpoint(&f, CN1), &endpoint(&f, CN)));
    let [mn, cn] = apart(1);
    served(&mn);
    let ep = Endpoint::alone(cn.attach(cn.me().node).expect("itself"), 0);
    let observer = Endpoint::alone(mn.attach(MN).expect("itself"), 0);
    assert!(fenced_jobs_end(&mn, &ep, &observer));
    assert!(in_simulator(&sim(&[])));
    for seed in 0..50 {
        let f = adversarial(FabricFaults::of_seed(seed), seed);
        assert!(in_simulator(&f), "seed {seed}");
    }
}

/// Both clients, and the job, on one executor.
fn in_simulator(f: &SimFabric) -> bool {
    served(f);
    let transports = [f.attach(CN1).expect("a member"), f.attach(CN).expect("a member")];
    let core = dmtree_fabric::Core::new(transports[0].clone(), 1 << 20);
    let [ep, observer] = transports.map(|t| {
        let slot = core.add_slot();
        Endpoint::new(core.clone(), t, slot)
    });
    fenced_jobs_end(f, &ep, &observer)
}

#[test]
fn a_job_that_outlives_its_fenced_caller_is_found() {
    let f = adversarial(FabricFaults::NONE, 1);
    f.set_laxity(Laxity { keeps_jobs: true, ..Laxity::default() });
    assert!(!in_simulator(&f));
}

/// What a job charges takes time, and no core of the data services.
#[test]
fn a_job_takes_no_core_of_the_data_services() {
    let f = sim(&[("host.cores", "1"), ("host.call_ns", "1000"), ("host.node_ns", "100")]);
    served(&f);
    let ep = endpoint(&f, CN);
    f.reset_usage();
    let began = f.now();
    let number = start(&ep, b"w").expect("started");
    on(&ep, ep.job(MN, number)).expect("ends");
    // 100 us, a sleep of 50 us, 100 us.
    let took = f.now() - began;
    assert!((250_000..450_000).contains(&took), "{took}");
    let usage = f.usage();
    let mn = &usage.nodes[0];
    assert_eq!(mn.job_ns, 200_000, "its time is known");
    assert_eq!(mn.data_ns, 1000 * mn.rpcs, "the data cores have answered messages alone");
}

/// Jobs beyond a node's cores take turns on them.
#[test]
fn jobs_share_the_cores_of_their_node() {
    let took = |cores: &str, jobs: usize| {
        let sets = [("host.node_ns", "100"), ("host.cores", cores)];
        let f = sim(&sets);
        served(&f);
        let ep = endpoint(&f, CN);
        let began = f.now();
        let numbers: Vec<_> = (0..jobs).map(|_| start(&ep, b"w").expect("started")).collect();
        numbers.into_iter().for_each(|n| _ = on(&ep, ep.job(MN, n)).expect("ends"));
        assert_eq!(f.usage().nodes[0].job_ns, 200_000 * jobs as u64);
        f.now() - began
    };
    let one = took("2", 1);
    assert!(took("2", 2) < one * 5 / 4 && took("4", 4) < one * 5 / 4, "a core for each");
    let (two, four) = (took("1", 2), took("1", 4));
    assert!(two >= 400_000 && four >= 800_000, "{one} {two} {four}");
}

/// Messages are lost and repeated: a job is started once.
#[test]
fn jobs_start_at_most_once() {
    let f = adversarial(LOSSY, 3);
    let (shop, ep) = (served(&f), endpoint(&f, CN));
    (0..50).for_each(|_| _ = run(&ep, b"e").expect_err("as asked"));
    assert_eq!(shop.jobs.load(Ordering::SeqCst), 50);
}

/// A simulated job ends with the run of its clients: it does not seem to go on where time stands
/// still, and no verb of it executes any more.
#[test]
fn jobs_end_with_the_run_of_their_clients() {
    let late = FabricFaults { delay_ns: 50_000, stall_one_in: 2, ..FabricFaults::NONE };
    for seed in 0..20 {
        let f = adversarial(late, seed);
        served(&f);
        let ep = endpoint(&f, CN);
        let number = Cell::new(JobNumber(0));
        let mut worker = Worker::new(ep.core().clone());
        worker.spawn(ep.slot(), async {
            number.set(ep.start_job(MN, SERVICE, b"c").await.expect("started"));
            ep.sleep(100_000).await;
        });
        worker.run(&mut Fifo).expect("it ends");
        f.set_timed(false);
        let last = word(&ep);
        let asked = on(&ep, ep.ask_job(MN, number.get()));
        fails(asked, ErrorKind::Closed, "of mn0 has ended with its worker");
        on(&ep, ep.forget_job(MN, number.get())).expect("its own");
        f.set_timed(true);
        pause(&ep, 10_000_000);
        assert_eq!(word(&ep), last, "seed {seed}");
    }
}

/// A crash, and a late verb, reach into a job: its verbs count as its node's.
#[test]
fn crashes_and_late_verbs_reach_into_jobs() {
    for how in [How::Process, How::Hung] {
        let f = adversarial(FabricFaults::NONE, 5);
        let (shop, ep) = (served(&f), endpoint(&f, CN));
        ep.set_timeout(100_000_000);
        f.crash_at(MN, CrashPoint { verb: 9, place: Place::After }, how).expect("a node");
        let number = start(&ep, b"c").expect("started");
        let kind = if how == How::Hung { ErrorKind::TimedOut } else { ErrorKind::Unreachable };
        fails(on(&ep, ep.job(MN, number)), kind, "");
        assert!(f.is_down(MN) && f.issued(MN) == 9, "it has crashed in the job");
        f.restart(MN).expect("down");
        f.connect(CN, MN, 2);
        f.serve(MN, SERVICE, shop).expect("a member");
        let forgotten = on(&ep, ep.job(MN, number));
        fails(forgotten, ErrorKind::NotFound, "mn0 has never had a job");
        assert_eq!(run(&ep, b"new").expect("the new incarnation"), b"new");
    }
    let f = adversarial(FabricFaults::NONE, 6);
    served(&f);
    let ep = endpoint(&f, CN);
    let late = CrashPoint { verb: 4, place: Place::Before };
    f.delay_at(MN, late, 5_000_000).expect("a node");
    let number = start(&ep, b"c").expect("started");
    pause(&ep, 1_000_000);
    assert_eq!(word(&ep), 1, "the second WRITE is late");
    let until = f.late_until(MN).expect("posted");
    pause(&ep, until + 100_000 - ep.now());
    assert!(word(&ep) > 1, "it goes on");
    on(&ep, ep.forget_job(MN, number)).expect("its own");
}
