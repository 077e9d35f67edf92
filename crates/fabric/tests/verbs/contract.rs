//! Verbs, chains, batches, counts.

use dmtree_fabric::verb::{VerbVec, cas, read, write_word};
use dmtree_fabric::verbs::Config;
use dmtree_fabric::{ErrorKind, GlobalAddr, NodeId};

use crate::test_cluster::*;

#[test]
fn verbs_chains_and_batches() {
    let Some(f) = fabric() else { return };
    let ep = &endpoint(&f, CN);
    on(ep, crate::common::verbs_chains_and_batches(ep)).expect("all verbs work");
}

#[test]
fn lists_longer_than_queues_and_shares() {
    let config = Config { depth: 64, outstanding: 48, ..config() };
    let Some(f) = fabric_with(&config) else { return };
    let (ep, transport) = &client(&f, CN);
    let word = |i: u64| GlobalAddr::new(NodeId::memory((i % 2) as u16), 64 + i * 64);
    let words = Vec::from_iter((0..300).map(word));
    on(ep, crate::common::long_batches(ep, &words, 2)).expect("batches work");
    let stats = transport.stats();
    assert_eq!((stats.requests, stats.breaks), (1200, 0));
    assert!(stats.doorbells >= 2 * 600 / 48, "{stats:?}");
}

#[test]
fn any_length_any_place_across_chunks() {
    let Some(f) = fabric() else { return };
    let ep = &endpoint(&f, CN);
    let border = 4 << 20;
    on(ep, async {
        for (offset, len) in
            [(64, 0), (65, 1), (67, 250), (1 << 16, 2 << 20), (border - 3, 7), (border - 100, 5000)]
        {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + offset) as u8).collect();
            ep.write_bytes(at(offset), &bytes).await?;
            assert_eq!(fetch(ep, at(offset), len as u32).await?, bytes, "{len} bytes at {offset}");
        }
        Ok(())
    })
    .expect("all of them work");
}

#[test]
fn one_doorbell_per_peer_and_one_completion_per_doorbell() {
    let Some(f) = fabric() else { return };
    let (ep, transport) = &client(&f, CN);
    let other = GlobalAddr::new(NodeId::memory(1), 64);
    on(ep, async { ep.batch((read(at(64), 8), read(other, 8))).await.map(|_| ()) })
        .expect("connects");
    let before = transport.stats();
    on(ep, async {
        ep.chain((
            write_word(at(64), 1),
            write_word(at(72), 2),
            cas(at(80), 0, 0),
            read(at(64), 8),
        ))
        .await?;
        let mut v = VerbVec::new();
        (0..10).for_each(|i| _ = v.read(at(64 + i * 64), 64));
        ep.batch(v).await?;
        ep.batch((read(at(64), 8), read(other, 8), read(at(72), 8))).await?;
        ep.detach((write_word(at(64), 3), cas(at(80), 0, 0)), None);
        ep.drain().await
    })
    .expect("verbs work");
    let after = transport.stats();
    let since = |of: fn(&dmtree_fabric::verbs::Stats) -> u64| of(&after) - of(&before);
    assert_eq!(since(|s| s.doorbells), 1 + 1 + 2 + 1);
    assert_eq!(since(|s| s.completions), 1 + 1 + 2 + 1);
    assert_eq!(since(|s| s.requests), 4 + 10 + 3 + 2);
    assert_eq!(since(|s| s.inline), 3);
    let counted = ep.snapshot().loose;
    assert_eq!(
        counted.doorbells, after.doorbells,
        "endpoints count the doorbells that the NIC gets"
    );
}

#[test]
fn buffers_are_registered_once() {
    let Some(f) = fabric() else { return };
    let (ep, transport) = &client(&f, CN);
    let round = || async {
        for len in [8, 100, 3000, 100_000] {
            ep.write_bytes(at(64), &vec![1; len]).await?;
            fetch(ep, at(64), len as u32).await?;
        }
        Ok(())
    };
    on(ep, round()).expect("verbs work");
    let registered = transport.stats().registrations;
    for _ in 0..10 {
        on(ep, round()).expect("verbs work");
    }
    assert_eq!(transport.stats().registrations, registered);
    assert!((4..=8).contains(&registered), "{registered}: by chunk, not by buffer");
}

#[test]
fn bad_addresses_are_errors_and_cost_no_connection() {
    let Some(f) = fabric() else { return };
    let (ep, transport) = &client(&f, CN);
    crate::common::bad_addresses(&f, ep, REGION_BYTES);
    crate::common::bad_nodes(ep, |node, bytes| f.add_node(node, bytes));
    fails(on(ep, ep.cas(GlobalAddr::on_chip(MN, 64), 0, 1)), ErrorKind::Corrupt, "");
    assert_eq!(transport.stats().breaks, 0);
    assert_eq!(on(ep, ep.faa(at(64), 1)).expect("the connection works still"), 0);
}

#[test]
fn a_region_that_cannot_be_had_is_an_error() {
    let Some(f) = fabric() else { return };
    fails(f.add_node(NodeId::memory(7), 1 << 50), ErrorKind::Full, "");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    if fabric().is_none() {
        return;
    }
    let gone = |config: Config, words: &str| {
        fails(dmtree_fabric::verbs::VerbsFabric::new(&config), ErrorKind::Unsupported, words);
    };
    gone(Config { device: Some("mlx9_7".to_owned()), ..config() }, "no device mlx9_7");
    gone(Config { port: Some(9), ..config() }, "has no port 9: give one of 1 to");
    gone(Config { gid_index: Some(200), ..config() }, "no address at index 200");
}
