//! Memory that a memory node takes for itself, by jobs of a data service.

use std::sync::{Arc, Mutex};

use super::common::{fails, is_zero, of, pool, run, small};
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, GlobalAddr, JobNumber, NodeId, Result, RpcHandler, Service,
};
use dmtree_pool::{DATA_SERVICE, DataService, MemoryHolder, PoolNode, provide};

const MN: NodeId = NodeId::memory(0);
const NUMBER: u8 = 200;
/// Two chunks.
const BYTES: u64 = 100 << 10;

/// Jobs that take memory.
struct Store {
    holder: MemoryHolder,
    kept: Mutex<Vec<(u64, u64)>>,
}

impl Store {
    fn make(holder: MemoryHolder) -> Arc<dyn RpcHandler> {
        Arc::new(Self { holder, kept: Mutex::default() })
    }
}

impl Service for Store {
    async fn answer(&self, _: &Endpoint, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
        Err(Error::invalid("no calls here"))
    }

    async fn job(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let kept = || self.kept.lock().expect("no panic under this lock");
        match request {
            // Unlinks what was taken first.
            b"retire" => {
                let run = kept().remove(0);
                self.holder.retire(run);
                return Ok(Vec::new());
            }
            b"huge" => self.holder.take(ep, 1, 1 << 40).await.map(drop)?,
            _ => {}
        }
        let run = self.holder.take(ep, 1, BYTES).await?;
        let at = GlobalAddr::new(MN, run.span().0);
        ep.write_bytes(at, &[1; 64]).await?;
        match request {
            b"hang" => loop {
                ep.sleep(100_000).await;
            },
            b"fail" => return Err(Error::invalid("as asked")),
            _ => {}
        }
        kept().push(run.span());
        Ok(run.keep().0.to_le_bytes().to_vec())
    }

    fn is_data(&self) -> bool {
        true
    }
}

fn start(ep: &Endpoint, request: &[u8]) -> JobNumber {
    let request = [&[NUMBER], request].concat();
    run(ep, ep.start_job(MN, DATA_SERVICE, &request)).expect("started")
}

fn job(ep: &Endpoint, request: &[u8]) -> Result<Vec<u8>> {
    let number = start(ep, request);
    let result = run(ep, ep.job(MN, number));
    run(ep, ep.forget_job(MN, number)).expect("its own");
    result
}

fn taken(ep: &Endpoint, request: &[u8]) -> GlobalAddr {
    let offset = job(ep, request).expect("room").try_into().expect("a word");
    GlobalAddr::new(MN, u64::from_le_bytes(offset))
}

fn back(node: &PoolNode, ep: &Endpoint) -> u64 {
    run(ep, node.collection().reclaim_at(ep, MN)).expect("answers")
}

/// What a job names stays; what it has not named when it ends goes back.
#[test]
fn a_job_takes_memory_of_its_node() {
    provide(DataService(NUMBER), Store::make);
    let (_cluster, node, ep) = pool(&small(1, 1));
    let first = taken(&ep, b"keep");
    assert!(!is_zero(&ep, first, 64));
    assert_eq!(back(&node, &ep), 0, "nothing is retired");
    fails(job(&ep, b"fail"), "it fails", ErrorKind::InvalidArgument);
    assert_eq!(back(&node, &ep), 2, "what it had taken");
    fails(job(&ep, b"huge"), "more than there is", ErrorKind::Full);
    let hangs = start(&ep, b"hang");
    run(&ep, ep.cancel_job(MN, hangs)).expect("its own");
    fails(run(&ep, ep.job(MN, hangs)), "it is cancelled", ErrorKind::Closed);
    let freed = back(&node, &ep);
    assert!(freed == 2 || freed == 0, "two chunks, unless it had not begun: {freed}");
    assert!(!is_zero(&ep, first, 64), "what is kept is left alone");
}

/// A running operation holds what it may READ, also on another node.
#[test]
fn retired_runs_wait_for_running_operations() {
    provide(DataService(NUMBER), Store::make);
    let (cluster, node, ep) = pool(&small(1, 2));
    let (other, _) = of(&cluster, 1);
    let first = taken(&ep, b"keep");
    let (early, late) = (other.register(), other.register());
    early.enter();
    job(&ep, b"retire").expect("it has one");
    assert_eq!(back(&node, &ep), 0, "an operation may READ it");
    // Began after the retirement: it holds nothing of it.
    late.enter();
    early.leave();
    assert_eq!(back(&node, &ep), 2);
    assert_eq!(back(&node, &ep), 0, "once");
    let again = taken(&ep, b"keep");
    assert_eq!(again, first, "its memory is used again");
    late.leave();
}
