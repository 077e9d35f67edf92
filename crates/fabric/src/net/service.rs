//! The service thread of a node: answers remote calls, one at a time.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::NodeShared;
use super::frames;
use super::sessions::{Mail, Session};
use super::transport::NetTransport;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::membership::Member;
use crate::rpc::{ServiceId, WithoutCalls, check_reply};
use crate::sync::locked;
use crate::transport::Nanos;

/// A call to be answered.
pub(super) struct Call {
    pub(super) from: Member,
    pub(super) service: ServiceId,
    pub(super) request: Vec<u8>,
    /// Deadline by this node's clock: a later call is dropped.
    pub(super) use_by: Nanos,
    pub(super) reply: Reply,
}

/// Where an answer goes.
pub(super) enum Reply {
    /// To another process.
    Remote { session: Arc<Session>, number: u64 },
    /// To a client thread of this process.
    Here(Arc<Mutex<Option<Result<Vec<u8>>>>>),
}

impl Reply {
    fn send(self, shared: &NodeShared, result: Result<Vec<u8>>) {
        match self {
            Self::Here(place) => *locked(&place) = Some(result),
            Self::Remote { session, number } => {
                let mut frame = Vec::new();
                frames::answer(&mut frame, frames::CALL, &number.to_le_bytes(), result);
                shared.sessions.post(Mail::Reply(session.token, frame));
            }
        }
    }
}

/// Starts the thread; it answers until the sender of the calls is dropped.
pub(super) fn start(shared: &Arc<NodeShared>, inbox: Receiver<Call>) -> Result<()> {
    let (started, news) = channel();
    let shared = shared.clone();
    let run = move || match NetTransport::new(shared.clone()) {
        Ok(transport) => {
            let _ = started.send(Ok(()));
            serve(&shared, Rc::new(transport), &inbox);
        }
        Err(e) => _ = started.send(Err(e)),
    };
    let named = std::thread::Builder::new().name("dmtree services".into());
    let gone = |e: &dyn std::fmt::Display| Error::busy(format!("no thread: {e}"));
    named.spawn(run).map_err(|e| gone(&e))?;
    news.recv().map_err(|e| gone(&e))?
}

fn serve(shared: &NodeShared, transport: Rc<NetTransport>, inbox: &Receiver<Call>) {
    let first = Endpoint::alone(Rc::new(WithoutCalls(transport)), 0);
    while let Ok(call) = inbox.recv() {
        // Counts and deadlines of a call are its own.
        let ep = first.beside();
        // An error of the handler goes to the caller.
        let _ = ep.block_on(async {
            execute_call(shared, &ep, call).await;
            Ok(())
        });
    }
}

/// The same without a thread, until the sender of the calls is dropped.
pub(super) async fn serve_on(shared: &NodeShared, ep: &Endpoint, inbox: &Receiver<Call>) {
    let next = || {
        std::future::poll_fn(|cx| match inbox.try_recv() {
            Ok(call) => Poll::Ready(Some(call)),
            Err(TryRecvError::Disconnected) => Poll::Ready(None),
            Err(TryRecvError::Empty) => {
                shared.net.wake_soon(cx.waker());
                Poll::Pending
            }
        })
    };
    while let Some(call) = next().await {
        execute_call(shared, ep, call).await;
    }
}

async fn execute_call(shared: &NodeShared, ep: &Endpoint, call: Call) {
    shared.sessions.calls_bytes.fetch_sub(call.request.len(), Ordering::Relaxed);
    // Whether no caller waits for the answer any more.
    let is_moot = matches!(&call.reply, Reply::Remote { session, .. } if session.is_over());
    if !is_moot {
        let result = answer(shared, ep, &call).await;
        call.reply.send(shared, result);
    }
}

async fn answer(shared: &NodeShared, ep: &Endpoint, call: &Call) -> Result<Vec<u8>> {
    shared.check_time(call.use_by, "a call")?;
    shared.check_issuer(call.from)?;
    let handler = shared.host.rpc.handler(shared.me.node, call.service)?;
    check_reply(handler.call(ep, call.from.node, &call.request).await?)
}
