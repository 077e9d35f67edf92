//! Memory nodes of a run.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use dmtree_fabric::net::virt::Process;
use dmtree_fabric::{Endpoint, ErrorKind, NodeId, Result, Role, RpcFuture, RpcHandler, ServiceId};

use super::judge::Calls;
use super::restarts::join;
use super::{MS, Phase, Stage, rest};

/// The first memory node acts for the membership to the end of the run.
pub(super) async fn first_memory_node(stage: Rc<Stage>, slot: u32) {
    let (process, fabric) = stage.memory.borrow()[0].clone();
    let Some(fabric) = fabric else { return };
    let acting = process.run(async {
        let ep = process.client(&fabric, slot)?;
        fabric.act(&ep).await
    });
    if let Some(Err(e)) = acting.await {
        stage.violation(format!("the first memory node cannot act: {e}"));
    }
}

/// It answers calls, to the end of the run.
pub(super) async fn services(stage: Rc<Stage>, slot: u32) {
    let (process, fabric) = stage.memory.borrow()[0].clone();
    let Some(fabric) = fabric else { return };
    let answering = process.run(async {
        if let Ok(ep) = process.client(&fabric, slot) {
            fabric.answer(&ep).await;
        }
    });
    answering.await;
}

/// The service of the first memory node.
pub(super) const COUNT: ServiceId = ServiceId(9);

/// Notes which calls are executed.
pub(super) struct Count(pub(super) Arc<Mutex<Calls>>);

impl RpcHandler for Count {
    fn call<'a>(&'a self, ep: &'a Endpoint, _: NodeId, request: &'a [u8]) -> RpcFuture<'a> {
        let number = request.first_chunk::<8>().map_or(0, |n| u64::from_le_bytes(*n));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).begin(number);
        Box::pin(async move {
            // Some take longer than others wait.
            rest(ep, if number.is_multiple_of(50) { 400 * MS } else { MS / 10 }).await;
            Ok(request.to_vec())
        })
    }
}

/// Another memory node: one process after the other. One that ends before it is ready has held nothing, and the next one takes its place;
/// the place of one that has held data stays empty.
pub(super) async fn memory_node(stage: Rc<Stage>, number: u16, slot: u32) {
    let place = usize::from(number);
    let clock = stage.network.clock(slot);
    while stage.phase.get() < Phase::Leaving {
        let process = stage.network.start(number);
        stage.memory.borrow_mut()[place] = (process.clone(), None);
        // What was acknowledged before this process came is not held by it.
        let has_held = stage.outcome.borrow().operations > 0;
        let ended = process.run(act(&stage, &process, number, slot, has_held)).await;
        process.kill(None);
        match ended {
            Some(Err(e)) if e.kind() == ErrorKind::Exists => {
                if !stage.is_one_lost.get() {
                    stage.violation(format!("memory node {number} is refused: {e}"));
                }
                return;
            }
            // It has to be started again, as by hand.
            Some(Err(e)) if !e.is_retryable() && stage.phase.get() < Phase::Leaving => {
                stage.violation(format!("memory node {number} cannot act: {e}"));
            }
            _ => {}
        }
        rest(&clock, stage.below(500) * MS).await;
    }
}

async fn act(
    stage: &Stage,
    process: &Process,
    number: u16,
    slot: u32,
    has_held: bool,
) -> Result<()> {
    let fabric = join(stage, process, Role::Memory, Some(number), slot).await?;
    if has_held {
        stage.violation(format!("the place of memory node {number}, which held data, is filled"));
    }
    stage.is_one_lost.set(false);
    let ep = process.client(&fabric, slot)?;
    stage.memory.borrow_mut()[usize::from(number)].1 = Some(fabric.clone());
    fabric.act(&ep).await
}
