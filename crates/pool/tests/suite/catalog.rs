//! The catalog of named indexes.

use std::collections::BTreeSet;

use super::common::{each_client, fails, knobbed, pool, run, small};
use dmtree_fabric::{ErrorKind, NodeId};
use dmtree_pool::{Cluster, IndexState, MAX_INDEXES, NewIndex};

#[test]
fn create_publish_find_list_drop() {
    for o in [small(1, 2), knobbed(4, small(1, 2))] {
        let (cluster, node, ep) = pool(&o);
        let (other, there) = super::common::of(&cluster, 1);
        assert_eq!(run(&ep, node.catalog().find_index(&ep, "orders")).expect("reads"), None);
        let options: Vec<u8> = (0..2048u32).map(|i| i as u8).collect();
        let e = run(&ep, node.creations().create_index(&ep, "orders", "dmtree", &options))
            .expect("new");
        let seen = run(&there, other.catalog().find_index(&there, "orders")).expect("reads");
        assert_eq!(seen.as_ref(), Some(&e));
        assert_eq!((e.state, e.root_word.node()), (IndexState::Creating, NodeId::memory(0)));
        let words = run(&ep, async {
            let words = (
                ep.read(e.root_word, 8).await?.word(0),
                ep.read(e.root_word.plus(8), 8).await?.word(0),
            );
            assert_eq!(ep.cas(e.root_word, 0, 77).await?, 0);
            Ok(words)
        });
        assert_eq!(words.expect("reads"), (0, 0));
        run(&there, other.catalog().publish_index(&there, &e)).expect("it is there");
        run(&there, other.catalog().publish_index(&there, &e)).expect("twice is no error");
        let second =
            run(&ep, node.creations().create_index(&ep, "abc", "other", &[])).expect("new");
        assert!(second.id != e.id && second.root_word != e.root_word);
        let names: Vec<_> = run(&there, other.catalog().list_indexes(&there))
            .expect("reads")
            .into_iter()
            .map(|e| (e.name, e.state))
            .collect();
        let expected =
            [("abc".to_owned(), IndexState::Creating), ("orders".to_owned(), IndexState::Ready)];
        assert_eq!(names, expected);
        let again = run(&ep, node.creations().create_index(&ep, "orders", "dmtree", &[]))
            .expect_err("taken");
        assert_eq!(again.kind(), ErrorKind::Exists);
        run(&ep, node.catalog().drop_index(&ep, "orders")).expect("it is there");
        let gone = run(&ep, node.catalog().drop_index(&ep, "orders")).expect_err("gone");
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        fails(run(&ep, node.catalog().publish_index(&ep, &e)), "gone", ErrorKind::NotFound);
        let new = run(&ep, node.creations().create_index(&ep, "orders", "dmtree", &[]))
            .expect("free again");
        assert!(new.id > second.id);
        assert_eq!(
            run(&ep, async { Ok(ep.read(new.root_word, 8).await?.word(0)) }).expect("reads"),
            0
        );
    }
}

#[test]
fn impossible_names_are_refused() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let long = "é".repeat(33);
    for name in ["", &long] {
        fails(
            run(&ep, node.creations().create_index(&ep, name, "s", &[])),
            "refused",
            ErrorKind::InvalidArgument,
        );
        assert!(run(&ep, node.catalog().find_index(&ep, name)).is_err());
        assert!(run(&ep, node.catalog().drop_index(&ep, name)).is_err());
    }
    run(&ep, node.creations().create_index(&ep, &"é".repeat(32), &"s".repeat(64), &[1; 2048]))
        .expect("just fits");
    for (system, options) in [("s".repeat(65), 0), ("s".to_owned(), 2049), ("s".repeat(300), 0)] {
        let e = run(&ep, node.creations().create_index(&ep, "x", &system, &vec![0; options]));
        assert_eq!(e.expect_err("refused").kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_full_catalog_says_so_and_recovers() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let mut ids = BTreeSet::new();
    for i in 0..MAX_INDEXES {
        let e =
            run(&ep, node.creations().create_index(&ep, &format!("i{i}"), "s", &[])).expect("room");
        assert!(ids.insert(e.id));
    }
    fails(run(&ep, node.creations().create_index(&ep, "more", "s", &[])), "full", ErrorKind::Full);
    assert_eq!(run(&ep, node.catalog().list_indexes(&ep)).expect("reads").len(), MAX_INDEXES);
    run(&ep, node.catalog().drop_index(&ep, "i17")).expect("there");
    let e = run(&ep, node.creations().create_index(&ep, "more", "s", &[])).expect("room again");
    assert!(ids.insert(e.id));
}

#[test]
fn a_name_is_created_once_however_many_try() {
    let cluster = Cluster::embedded(&knobbed(8, small(1, 4))).expect("valid");
    let created = each_client(&cluster, 4, |node, ep| {
        let one = |i: usize| {
            let made = run(ep, node.creations().create_index(ep, &format!("n{i}"), "s", &[7; 99]));
            run(ep, node.catalog().list_indexes(ep)).expect("never torn");
            made.is_ok()
        };
        (0..20).filter(|i| one(*i)).count()
    });
    assert_eq!(created.iter().sum::<usize>(), 20);
}

fn of_name(name: &str) -> NewIndex<'_> {
    NewIndex { name, system: "s", options: b"{}" }
}

/// A creation with a future that is dropped at any await leaves its name free.
#[test]
fn a_dropped_creation_leaves_its_name_free() {
    for awaits in 0..40 {
        let (cluster, node, ep) = pool(&knobbed(awaits + 1, small(1, 2)));
        let (other, there) = super::common::of(&cluster, 1);
        let begun = async {
            let begun = node.creations().begin_index(&ep, of_name("left")).await?;
            ep.read(begun.entry().root_word, 8).await?;
            begun.publish().await
        };
        let mut published = false;
        let given_up = run(&ep, async {
            let mut begun = std::pin::pin!(begun);
            for _ in 0..awaits {
                let polled = std::future::poll_fn(|cx| {
                    std::task::Poll::Ready(begun.as_mut().poll(cx).is_ready())
                });
                if polled.await {
                    published = true;
                    break;
                }
                ep.sleep(1_000).await;
            }
            Ok(())
        });
        given_up.expect("nothing fails");
        // The executor of the caller goes on: what was in flight ends.
        run(&ep, async {
            while !ep.is_quiet() {
                ep.sleep(1_000).await;
            }
            Ok(())
        })
        .expect("it ends");
        let found = run(&there, other.creations().find_ready_index(&there, "left")).expect("reads");
        assert_eq!(found.is_some(), published, "after {awaits} awaits");
        if !published {
            let again =
                run(&there, other.creations().begin_index(&there, of_name("left"))).expect("free");
            run(&there, again.publish()).expect("published");
        }
    }
}

/// A name with an abandoned creation of the own node is free for it.
#[test]
fn a_creation_that_ends_in_an_error_leaves_its_name_free() {
    let (_cluster, node, ep) = pool(&small(1, 1));
    let begun = run(&ep, node.creations().begin_index(&ep, of_name("half"))).expect("new");
    fails(
        run(&ep, node.creations().begin_index(&ep, of_name("half"))),
        "under way",
        ErrorKind::Exists,
    );
    run(&ep, begun.abandon()).expect("given up");
    assert_eq!(run(&ep, node.catalog().find_index(&ep, "half")).expect("reads"), None);
    run(&ep, node.creations().create_index(&ep, "half", "s", b"{}")).expect("free");
}
