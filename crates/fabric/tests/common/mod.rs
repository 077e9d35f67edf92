//! Shared by the tests of several transports: the calls of a client, and the verbs of the contract
//! in an order that every transport accepts.
#![allow(dead_code, reason = "not every test needs all of it")]

use dmtree_fabric::verb::{cas, chain, faa, fenced, read, write, write_word};
use dmtree_fabric::{Core, Endpoint, Fabric, GlobalAddr, NodeId, Result};

pub mod allocation;

pub const MN: NodeId = NodeId::memory(0);

pub fn endpoint(f: &impl Fabric, node: NodeId) -> Endpoint {
    let transport = f.attach(node).expect("a member");
    let core = Core::new(transport.clone(), 0);
    let slot = core.add_slot();
    Endpoint::new(core, transport, slot)
}

pub fn on<T>(ep: &Endpoint, f: impl Future<Output = Result<T>>) -> Result<T> {
    ep.core().block_on(ep.slot(), f)
}

/// A byte of the first memory node.
pub fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(MN, offset)
}

pub async fn put(ep: &Endpoint, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
    let mut buf = ep.buf(bytes.len() as u32).await?;
    buf.copy_from_slice(bytes);
    ep.write(at, buf).await.map(|_| ())
}

pub async fn fetch(ep: &Endpoint, at: GlobalAddr, len: u32) -> Result<Vec<u8>> {
    let sampled = ep.read(at, len).await?;
    Ok(sampled.check(|b| Ok::<_, ()>(b.to_vec())).expect("any bytes will do").0)
}

/// Single verbs, chains and batches to two memory nodes whose memory is zero.
pub async fn verbs_chains_and_batches(ep: &Endpoint) -> Result<()> {
    put(ep, at(100), b"hello, world").await?;
    assert_eq!(fetch(ep, at(100), 12).await?, b"hello, world");
    assert_eq!(ep.faa(at(64), 5).await?, 0);
    assert_eq!(ep.cas(at(64), 5, 7).await?, 5);
    assert_eq!(ep.cas(at(64), 5, 8).await?, 7, "it failed");
    let (was, now) = ep.chain((cas(at(64), 7, 9), read(at(64), 8))).await?;
    assert_eq!((was, now.word(0)), (7, 9));
    let mut buf = ep.buf(8).await?;
    buf.copy_from_slice(&1u64.to_le_bytes());
    let list = (write(at(128), buf), write_word(at(136), 2), cas(at(64), 9, 0));
    let (back, (), was) = ep.chain(list).await?;
    assert_eq!((back.len(), was), (8, 9));
    let other = GlobalAddr::new(NodeId::memory(1), 64);
    let batch = (chain((faa(at(64), 1), read(at(128), 16))), read(other, 8));
    let ((was, near), far) = ep.batch(batch).await?;
    assert_eq!((was, near.word(0), near.word(1), far.word(0)), (0, 1, 2, 0));
    let (sampled, was) = ep.chain((read(at(64), 8), fenced(faa(at(64), 1)))).await?;
    assert_eq!((sampled.word(0), was), (1, 1));
    Ok(())
}
