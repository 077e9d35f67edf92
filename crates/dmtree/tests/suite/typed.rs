//! Indexes with typed keys and values give what a `BTreeMap` gives.

use std::collections::BTreeMap;

use dmtree::{ErrorKind, Options, Outcome, Pool, Result, Typed};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    customer: String,
    cents: i64,
    lines: Vec<(u16, f32)>,
}

type Key = (String, i32);

fn orders() -> (Pool, Typed<Key, Order>) {
    let pool = Pool::embedded().memory("16MiB").open().expect("a pool");
    let index = pool.create("orders", Options::default()).expect("a new index");
    (pool, index.typed())
}

fn key() -> impl Strategy<Value = Key> {
    ("[a\u{0}\u{ff}]{0,2}", prop_oneof![-2i32..2, Just(i32::MIN), Just(i32::MAX)])
}

fn order() -> impl Strategy<Value = Order> {
    ("[a-c]{0,40}", any::<i64>(), proptest::collection::vec((any::<u16>(), -1f32..1.0), 0..3))
        .prop_map(|(customer, cents, lines)| Order { customer, cents, lines })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn typed_calls_give_what_a_map_gives(
        puts in proptest::collection::vec((key(), order(), 0u8..9), 0..60),
        (a, b) in (key(), key()),
    ) {
        let (_pool, orders) = orders();
        let mut model = BTreeMap::<Key, Order>::new();
        for (k, v, call) in puts {
            match call {
                0 | 1 => {
                    orders.put(&k, &v).expect("put");
                    model.insert(k, v);
                }
                2 => {
                    let done = orders.insert(&k, &v).expect("insert") == Outcome::Done;
                    prop_assert_eq!(done, !model.contains_key(&k));
                    model.entry(k).or_insert(v);
                }
                3 => {
                    let done = orders.delete(&k).expect("delete") == Outcome::Done;
                    prop_assert_eq!(done, model.remove(&k).is_some());
                }
                4 => {
                    let old = model.get(&k).cloned();
                    let former = orders.fetch_update(&k, |old| {
                        old.map(|old| Order { cents: old.cents.wrapping_add(1), ..old })
                    });
                    prop_assert_eq!(former.expect("updated"), old.clone());
                    if let Some(old) = old {
                        model.insert(k, Order { cents: old.cents.wrapping_add(1), ..old });
                    }
                }
                5 => {
                    let former = orders.replace(&k, &v).expect("replaced");
                    prop_assert_eq!(former, model.insert(k, v));
                }
                6 => {
                    let former = orders.take(&k).expect("taken");
                    prop_assert_eq!(former, model.remove(&k));
                }
                7 => {
                    let old = model.get(&k).cloned();
                    let expected = old.clone().filter(|_| v.cents % 2 == 0).unwrap_or(v.clone());
                    let found = orders.compare_and_swap(&k, &expected, &v).expect("swapped");
                    prop_assert_eq!(&found, &old);
                    if old.as_ref() == Some(&expected) {
                        model.insert(k, v);
                    }
                }
                _ => {
                    let found = orders.get_or_insert(&k, &v).expect("got");
                    prop_assert_eq!(&found, &*model.entry(k).or_insert(v));
                }
            }
        }
        let owned = |(k, v): (&Key, &Order)| (k.clone(), v.clone());
        let (low, high) = (a.clone().min(b.clone()), a.max(b));
        let found: Vec<_> = orders.range(&low..&high).collect::<Result<_>>().expect("a scan");
        prop_assert_eq!(found, model.range(&low..&high).map(owned).collect::<Vec<_>>());
        prop_assert_eq!(orders.get(&low).expect("get"), model.get(&low).cloned());
        prop_assert_eq!(orders.contains_key(&low).expect("get"), model.contains_key(&low));
        let back: Vec<_> = orders.iter().rev().collect::<Result<_>>().expect("a scan");
        prop_assert_eq!(back, model.iter().rev().map(owned).collect::<Vec<_>>());
        prop_assert_eq!(orders.first().expect("first"), model.first_key_value().map(owned));
        prop_assert_eq!(orders.pop_last().expect("pop"), model.pop_last());
    }
}

#[test]
fn what_was_stored_as_another_type_is_an_error() {
    let (pool, orders) = orders();
    orders.untyped().put("x", "y").expect("put");
    let e = orders.iter().next().expect("a pair").expect_err("no order");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let texts = pool.create("texts", Options::default()).expect("new").typed::<u32, String>();
    texts.put(&7, &"seven".to_owned()).expect("put");
    let numbers = texts.untyped().typed::<u32, u8>();
    let e = numbers.get(&7).expect_err("no number");
    assert!(e.to_string().contains("is no u8"), "{e}");
    let e = numbers.fetch_update(&7, |n| n.map(|n| n + 1)).expect_err("no number");
    assert!(e.to_string().contains("is no u8"), "{e}");
    assert_eq!(texts.get(&7).expect("get").as_deref(), Some("seven"));
    assert_eq!(
        texts.compare_and_set(&7, &"seven".into(), &"8".into()).expect("cas"),
        Outcome::Done
    );
}
