//! Calls to data services: what they may rely on, on every transport without hardware.

use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};

use crate::common::fabrics::{CN1, LOSSY, adversarial, apart, local, sim};
use crate::common::{CN, MN, at, endpoint, fails, fetch, on};
use dmtree_fabric::sim::{FabricFaults, Laxity, SimFabric};
use dmtree_fabric::{
    Core, Endpoint, Error, ErrorKind, Fabric, Fifo, MAX_RPC_BYTES, NodeId, Result, Service,
    ServiceId, Stage, Worker,
};

const SERVICE: ServiceId = ServiceId(9);
/// Words that [`Desk`] stores.
const WORDS: usize = 64;

/// A data service: what it does, the first byte of the request says.
#[derive(Default)]
struct Desk {
    calls: AtomicU32,
    meeting: Option<Barrier>,
}

impl Service for Desk {
    async fn answer(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let count = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        match request.first() {
            Some(b'p') => panic!("as asked"),
            Some(b'l') => return Ok(vec![0; MAX_RPC_BYTES + 1]),
            Some(b'e') => return Err(Error::invalid("as asked")),
            Some(b'm') => _ = self.meeting.as_ref().map(Barrier::wait),
            Some(b'c') => {
                ep.stage_cost(Stage::ServerNode, 3);
                ep.stage_cost(Stage::ServerCopy, 2);
            }
            // A memory node merges this at its own price.
            Some(b'g') => ep.stage_cost(Stage::MergeEntry, 2),
            Some(b'w') => {
                let memory = ep.own_memory().expect("a processor");
                memory.write(128, &count.to_le_bytes().repeat(2 * WORDS))?;
                let mut back = vec![0; 8 * WORDS];
                memory.read(128, &mut back)?;
                assert_eq!(back, count.to_le_bytes().repeat(2 * WORDS));
                fails(memory.read(1 << 40, &mut back), ErrorKind::Corrupt, "outside");
            }
            _ => {}
        }
        Ok(count.to_le_bytes().to_vec())
    }

    fn is_data(&self) -> bool {
        true
    }
}

fn served(f: &impl Fabric, meeting: Option<u32>) -> Arc<Desk> {
    let meeting = meeting.map(|n| Barrier::new(n as usize));
    let desk = Arc::new(Desk { meeting, ..Desk::default() });
    f.serve(MN, SERVICE, desk.clone()).expect("a member");
    desk
}

fn call(ep: &Endpoint, request: &[u8]) -> Result<u32> {
    let mut reply = Vec::new();
    on(ep, ep.rpc(MN, SERVICE, request, &mut reply))?;
    Ok(u32::from_le_bytes(reply.try_into().expect("four bytes")))
}

/// Errors of one call are its own: the next is answered.
fn errors_are_of_one_call(ep: &Endpoint, desk: &Desk) {
    fails(call(ep, b"p"), ErrorKind::Corrupt, "has panicked");
    fails(
        call(ep, b"l"),
        ErrorKind::InvalidArgument,
        "a service of mn0 gave a reply of 65537 bytes, which exceeds 64 KiB",
    );
    fails(call(ep, b"e"), ErrorKind::InvalidArgument, "as asked");
    let long = vec![0; MAX_RPC_BYTES + 1];
    fails(call(ep, &long), ErrorKind::InvalidArgument, "not 65537");
    assert_eq!(call(ep, &long[1..]).expect("the longest"), 4);
    assert_eq!(call(ep, b"w").expect("its own memory"), 5);
    let stored = on(ep, fetch(ep, at(128), 8 * WORDS as u32)).expect("a READ");
    assert_eq!(stored, 5u32.to_le_bytes().repeat(2 * WORDS), "a READ sees what a handler stored");
    assert_eq!(desk.calls.load(Ordering::SeqCst), 5);
}

#[test]
fn errors_are_of_one_call_on_every_transport() {
    let f = local();
    errors_are_of_one_call(&endpoint(&f, CN), &served(&f, None));
    let f = sim(&[]);
    errors_are_of_one_call(&endpoint(&f, CN), &served(&f, None));
    let [mn, cn] = apart(2);
    let desk = served(&mn, None);
    let ep = Endpoint::alone(cn.attach(cn.me().node).expect("itself"), 0);
    errors_are_of_one_call(&ep, &desk);
}

/// As many calls run at a time as there are cores: each waits for the others.
#[test]
fn calls_run_on_all_cores() {
    let f = local();
    let cores = f.caps().mn_cores;
    served(&f, Some(cores));
    std::thread::scope(|s| {
        for _ in 0..cores {
            s.spawn(|| call(&endpoint(&f, CN), b"m").expect("all have met"));
        }
    });
    let [mn, cn] = apart(3);
    assert_eq!(cn.caps().mn_cores, 3, "the first memory node announces it");
    served(&mn, Some(3));
    std::thread::scope(|s| {
        for _ in 0..3 {
            let transport = || cn.attach(cn.me().node).expect("itself");
            s.spawn(move || call(&Endpoint::alone(transport(), 0), b"m").expect("all have met"));
        }
    });
}

/// When each of `n` calls that are posted at once has its reply, ns.
fn ends(f: &SimFabric, n: u32, request: &'static [u8]) -> Vec<u64> {
    let transports: Vec<_> = (0..n).map(|_| f.attach(CN).expect("a member")).collect();
    let core = Core::new(transports[0].clone(), 1 << 20);
    let mut worker = Worker::new(core.clone());
    let ends = Rc::new(std::cell::RefCell::new(Vec::new()));
    for transport in transports {
        let slot = core.add_slot();
        let (ep, ends) = (Endpoint::new(core.clone(), transport, slot), ends.clone());
        worker.spawn(slot, async move {
            ep.rpc(MN, SERVICE, request, &mut Vec::new()).await.expect("answered");
            ends.borrow_mut().push(ep.now());
        });
    }
    worker.run(&mut Fifo).expect("no deadlock");
    drop(worker);
    Rc::into_inner(ends).expect("all have ended").into_inner()
}

/// A call takes a core for `host.call_ns` and what its handler charges, and waits for one before.
#[test]
fn calls_cost_what_their_handlers_charge() {
    let sets = [
        ("host.cores", "2"),
        ("host.call_ns", "1000"),
        ("host.node_ns", "100"),
        ("host.copy_ns", "50"),
        ("cpu.merge_entry_ns", "850"),
    ];
    let f = sim(&sets);
    served(&f, None);
    f.reset_usage();
    // 500 ns each way.
    assert_eq!(ends(&f, 5, b"x"), [2000, 2000, 3000, 3000, 4000]);
    let mn = &f.usage().nodes[0];
    assert_eq!((mn.data_ns, mn.data_cores, mn.rpcs, mn.rpc_ns), (5000, 2, 5, 0));
    let f = sim(&sets);
    served(&f, None);
    assert_eq!(ends(&f, 3, b"c"), [2400, 2400, 3800], "three nodes and two KiB");
    let f = sim(&sets);
    served(&f, None);
    assert_eq!(ends(&f, 1, b"g"), [2800], "two entries, in 8/17 of the time");
}

/// Requests and replies are lost: no handler runs twice for a call. A node that keeps the number of
/// a call too late executes some twice.
#[test]
fn calls_take_effect_at_most_once() {
    let counted = |laxity| {
        let f = adversarial(LOSSY, 3);
        f.set_laxity(laxity);
        let (desk, ep) = (served(&f, None), endpoint(&f, CN));
        (0..50).for_each(|_| _ = call(&ep, b"x").expect("answered at last"));
        desk.calls.load(Ordering::SeqCst)
    };
    assert_eq!(counted(Laxity::default()), 50);
    assert!(counted(Laxity { forgets_calls: true, ..Laxity::default() }) > 50);
}

/// Litmus: a READ that races a handler's store sees any mix of old and new words, and no half word.
#[test]
fn a_read_races_a_store() {
    let mut mixes = 0;
    for seed in 0..200 {
        let f = adversarial(FabricFaults::of_seed(seed), seed);
        served(&f, None);
        let transports = [f.attach(CN).expect("a member"), f.attach(CN1).expect("a member")];
        let core = Core::new(transports[0].clone(), 1 << 20);
        let mut worker = Worker::new(core.clone());
        let [writer, reader] = transports.map(|transport| {
            let slot = core.add_slot();
            (slot, Endpoint::new(core.clone(), transport, slot))
        });
        worker.spawn(writer.0, async move {
            for _ in 0..4 {
                writer.1.rpc(MN, SERVICE, b"w", &mut Vec::new()).await.expect("answered");
            }
        });
        let seen = Rc::new(std::cell::Cell::new(0));
        let count = seen.clone();
        worker.spawn(reader.0, async move {
            for _ in 0..4 {
                let bytes = fetch(&reader.1, at(128), 8 * WORDS as u32).await.expect("a READ");
                let halves: Vec<_> = bytes.chunks(4).collect();
                assert!(halves.chunks(2).all(|word| word[0] == word[1]), "half a word");
                count.set(count.get() + u32::from(halves.iter().any(|half| *half != halves[0])));
            }
        });
        worker.run(&mut Fifo).expect("no deadlock");
        drop(worker);
        mixes += seen.get();
    }
    assert!(mixes > 20, "{mixes}");
}

/// A caller without access has no effect.
#[test]
fn fenced_callers_are_refused() {
    fn refused(f: &impl Fabric) {
        let (desk, ep) = (served(f, None), endpoint(f, CN1));
        call(&ep, b"x").expect("a member");
        f.revoke(MN, CN1, 1).expect("known");
        call(&ep, b"x").expect_err("fenced");
        call(&endpoint(f, CN), b"x").expect("others are not");
        assert_eq!(desk.calls.load(Ordering::SeqCst), 2);
    }
    refused(&local());
    refused(&sim(&[]));
    refused(&adversarial(FabricFaults::NONE, 1));
}
