//! Memory nodes of a run.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use dmtree_fabric::net::virt::Process;
use dmtree_fabric::sync::locked;
use dmtree_fabric::{
    Endpoint, Error, ErrorKind, GlobalAddr, NodeId, Result, Role, RpcFuture, RpcHandler, ServiceId,
};

use super::judge::Calls;
use super::restarts::join;
use super::{MS, NetworkRun, Phase, pause};

/// The first memory node acts for the membership to the end of the run, or answers calls.
pub(super) async fn first_memory_node(run: Rc<NetworkRun>, slot: u32, answers: bool) {
    let (process, fabric) = run.memory.borrow()[0].clone();
    let fabric = fabric.expect("it has founded the pool");
    let acting = process.run(async {
        let ep = process.client(&fabric, slot)?;
        match answers {
            true => fabric.answer(&ep).await,
            false => fabric.act(&ep).await?,
        }
        Ok::<_, Error>(())
    });
    if let Some(Err(e)) = acting.await {
        run.violation(format!("the first memory node cannot act: {e}"));
    }
}

/// The service of the first memory node.
pub(super) const COUNT: ServiceId = ServiceId(9);

/// A word that jobs count in.
const JOB_STEPS: GlobalAddr = GlobalAddr::new(NodeId::memory(0), 2048);

/// Records the calls and jobs that are executed.
pub(super) struct Count(pub(super) Arc<Mutex<Calls>>);

impl RpcHandler for Count {
    fn call<'a>(&'a self, ep: &'a Endpoint, _: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        let number = request.first_chunk::<8>().map_or(0, |n| u64::from_le_bytes(*n));
        locked(&self.0).begin(number);
        Box::pin(async move {
            // Some take longer than their callers wait.
            pause(ep, if number.is_multiple_of(50) { 400 * MS } else { MS / 10 }).await;
            Ok(request.to_vec())
        })
    }

    fn job<'a>(&'a self, ep: &'a Endpoint, _: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        let number = request.first_chunk::<8>().map_or(0, |n| u64::from_le_bytes(*n));
        locked(&self.0).begin(number);
        Box::pin(async move {
            let (steps, longest) = if number.is_multiple_of(10) { (30, 40) } else { (5, 4) };
            for step in 0..steps {
                locked(&self.0).step(number);
                ep.faa(JOB_STEPS, 1).await?;
                pause(ep, (1 + (number + step) % longest) * MS).await;
            }
            locked(&self.0).end(number);
            Ok(request.to_vec())
        })
    }
}

/// Another memory node: one process after the other. A process that ends before it is ready has
/// held no data, and the next one takes its place; the place of a process that has held data stays
/// empty.
pub(super) async fn memory_node(run: Rc<NetworkRun>, number: u16, slot: u32) {
    let place = usize::from(number);
    let clock = run.network.clock(slot);
    while run.phase.get() < Phase::Leaving {
        let process = run.network.start(number);
        run.memory.borrow_mut()[place] = (process.clone(), None);
        // This process does not hold writes that were acknowledged before it started.
        let has_held = run.outcome.borrow().operations > 0;
        let ended = process.run(act(&run, &process, number, slot, has_held)).await;
        process.kill(None);
        match ended {
            Some(Err(e)) if e.kind() == ErrorKind::Exists => {
                if !run.is_one_lost.get() {
                    run.violation(format!("memory node {number} is refused: {e}"));
                }
                return;
            }
            // An operator has to start it again.
            Some(Err(e)) if !e.is_retryable() && run.phase.get() < Phase::Leaving => {
                run.violation(format!("memory node {number} cannot act: {e}"));
            }
            _ => {}
        }
        pause(&clock, run.below(500) * MS).await;
    }
}

async fn act(
    run: &NetworkRun,
    process: &Process,
    number: u16,
    slot: u32,
    has_held: bool,
) -> Result<()> {
    let fabric = join(run, process, Role::Memory, Some(number), slot).await?;
    if has_held {
        run.violation(format!("the place of memory node {number}, which held data, is filled"));
    }
    run.is_one_lost.set(false);
    let ep = process.client(&fabric, slot)?;
    run.memory.borrow_mut()[usize::from(number)].1 = Some(fabric.clone());
    fabric.act(&ep).await
}
