//! Shared by the tests of several transports: the calls of a client, and the verbs of the contract
//! in an order that every transport accepts.
#![allow(dead_code, reason = "not every test needs all of it")]

use dmtree_fabric::verb::{
    VerbVec, Write, beside, cas, chain, faa, fenced, read, write, write_word,
};
use dmtree_fabric::{Effect, Endpoint, ErrorKind, Fabric, GlobalAddr, NodeId, Result};

pub mod allocation;
pub mod fabrics;

pub const MN: NodeId = NodeId::memory(0);
pub const CN: NodeId = NodeId::compute(0);

pub fn endpoint(f: &impl Fabric, node: NodeId) -> Endpoint {
    Endpoint::alone(f.attach(node).expect("a member"), 0)
}

pub fn on<T>(ep: &Endpoint, f: impl Future<Output = Result<T>>) -> Result<T> {
    ep.block_on(f)
}

/// An error of this kind, with these words.
#[track_caller]
pub fn fails<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, words: &str) {
    let e = result.expect_err(words);
    assert!(e.kind() == kind && e.to_string().contains(words), "{e:?} is not {kind:?}: {words}");
}

/// A byte of the first memory node.
pub fn at(offset: u64) -> GlobalAddr {
    GlobalAddr::new(MN, offset)
}

pub async fn fetch(ep: &Endpoint, at: GlobalAddr, len: u32) -> Result<Vec<u8>> {
    let sampled = ep.read(at, len).await?;
    Ok(sampled.check(|b| Ok::<_, ()>(b.to_vec())).expect("any bytes will do").0)
}

/// Single verbs, chains and batches to two memory nodes whose memory is zero.
pub async fn verbs_chains_and_batches(ep: &Endpoint) -> Result<()> {
    ep.write_bytes(at(100), b"hello, world").await?;
    assert_eq!(fetch(ep, at(100), 12).await?, b"hello, world");
    assert_eq!(ep.faa(at(64), 5).await?, 0);
    assert_eq!(ep.cas(at(64), 5, 7).await?, 5);
    assert_eq!(ep.cas(at(64), 5, 8).await?, 7, "it failed");
    let (was, now) = ep.chain((cas(at(64), 7, 9), read(at(64), 8))).await?;
    assert_eq!((was, now.word(0)), (7, 9));
    let (was, (one, two)) =
        ep.chain((faa(at(64), 0), beside(read(at(64), 8), Some(read(at(104), 8))))).await?;
    assert_eq!(
        (was, one.word(0), two.map(|two| two.word(0))),
        (9, 9, Some(u64::from_le_bytes(*b"o, world")))
    );
    let (was, (one, two)) = ep.chain((faa(at(64), 0), beside(read(at(64), 8), None))).await?;
    assert!(was == 9 && one.word(0) == 9 && two.is_none());
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
    // A WRITE that is left out is no verb.
    let (left_out, word) = (|| None::<Write>, |word| Some(write_word(at(128), word)));
    let (none, some, now) = ep.chain((left_out(), word(3), read(at(128), 8))).await?;
    assert!(none.is_none() && some.is_some() && now.word(0) == 3);
    let (some, none, now) = ep.chain((word(1), left_out(), read(at(128), 8))).await?;
    assert!(none.is_none() && some.is_some() && now.word(0) == 1);
    Ok(())
}

/// Batches of two verbs to each of so many words, which are zero.
pub async fn long_batches(ep: &Endpoint, words: &[GlobalAddr], rounds: u64) -> Result<()> {
    let mut v = VerbVec::new();
    for round in 0..rounds {
        v.clear();
        for word in words {
            v.cas(*word, round, round + 1);
            v.then().read(*word, 8);
        }
        v = ep.batch(v).await?;
        for i in 0..words.len() {
            assert_eq!(v.word(2 * i), round);
            assert_eq!(v.take_sampled(2 * i + 1).word(0), round + 1);
        }
    }
    Ok(())
}

/// Addresses that no verb may use; the first memory node's region ends before `outside`.
pub fn bad_addresses(f: &impl Fabric, ep: &Endpoint, outside: u64) {
    let kind = |at| on(ep, ep.cas(at, 0, 1)).expect_err("an error").kind();
    assert_eq!(kind(at(outside)), ErrorKind::Corrupt, "outside the region");
    assert_eq!(kind(at(0)), ErrorKind::Corrupt, "the first line is reserved");
    assert_eq!(kind(at(68)), ErrorKind::InvalidArgument, "not aligned");
    assert_eq!(kind(GlobalAddr::from_bits(u64::MAX)), ErrorKind::Unreachable);
    let unknown = f.attach(NodeId::compute(9)).map(|_| ());
    assert_eq!(unknown.expect_err("no such node").kind(), ErrorKind::NotFound);
}

/// The same where nodes are added by `add_node`.
pub fn bad_nodes(ep: &Endpoint, add_node: impl Fn(NodeId, u64) -> Result<()>) {
    let two = (cas(at(64), 0, 1), read(GlobalAddr::new(NodeId::memory(1), 64), 8));
    let e = on(ep, ep.chain(two)).expect_err("a chain goes to one node");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert_eq!(add_node(MN, 64).expect_err("there").kind(), ErrorKind::Exists);
}

/// A compute node loses its access, and comes back by `add_node`.
pub fn revocation(f: &impl Fabric, add_node: impl Fn(NodeId, u64) -> Result<()>) {
    let (old, other) = (endpoint(f, CN), endpoint(f, NodeId::compute(1)));
    on(&old, old.faa(at(64), 1)).expect("a member");
    f.revoke(MN, CN, 1).expect("known nodes");
    let e = on(&old, old.faa(at(64), 1)).expect_err("revoked");
    assert_eq!((e.kind(), e.effect()), (ErrorKind::Revoked, Effect::Unknown), "{e}");
    assert!(f.attach(CN).is_err());
    assert_eq!(on(&other, other.faa(at(64), 1)).expect("others go on"), 1);
    add_node(CN, 1 << 12).expect("comes back");
    let new = endpoint(f, CN);
    assert_eq!(on(&new, new.faa(at(64), 1)).expect("a new incarnation"), 2);
    assert!(on(&old, old.faa(at(64), 1)).is_err(), "the old one stays revoked");
}
