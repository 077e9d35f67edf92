//! Keys and values as `bytes::Bytes`: the same pairs, in the memory that they came in.

use bytes::Bytes;
use dmtree::{Index, LoadOrder, Options, Pool, Result, Values};

fn index() -> (Pool, Index) {
    let pool = Pool::embedded().memory("16MiB").open().expect("a pool");
    let index = pool.create("pairs", Options::default()).expect("a new index");
    let pairs = (0..1000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; n as usize % 40]));
    index.load(pairs, LoadOrder::Sorted).expect("a load");
    (pool, index)
}

/// Where the bytes lie.
fn place(bytes: &[u8]) -> usize {
    bytes.as_ptr() as usize
}

#[test]
fn scans_give_the_same_pairs() {
    let (_pool, index) = index();
    for (page, limit) in [(1, 5), (7, 7), (64, 10_000), (256, 300)] {
        let scan = || index.scan(..).prefix([0, 0]).rev().page_size(page).limit(limit);
        let wanted: Vec<_> = scan().pairs().collect::<Result<_>>().expect("a scan");
        let found: Vec<_> = scan().into_bytes().collect::<Result<_>>().expect("a scan");
        assert_eq!(found.len() as u64, limit.min(1000));
        assert!(found.iter().zip(&wanted).all(|((k, v), (key, value))| k == key && v == value));
    }
}

/// Nothing is copied per pair: the value lies behind its key, both in the memory of the page.
#[test]
fn pairs_share_the_memory_of_their_page() {
    let (_pool, index) = index();
    let mut scan = index.scan(500u32.to_be_bytes()..).page_size(100).into_bytes();
    let pairs: Vec<_> = scan.by_ref().take(100).collect::<Result<_>>().expect("a page");
    assert!(pairs.windows(2).all(|two| {
        let [(key, value), (next, _)] = two else { return false };
        place(key) + key.len() == place(value)
            || value.is_empty() && place(value) + value.len() == place(next)
    }));
    drop(scan);
    assert_eq!(pairs[0].0, &500u32.to_be_bytes()[..], "the page outlives its scan");

    let mut page = pollster::block_on(index.async_client().expect("a client").scan(..).next_page());
    let page = page.as_mut().expect("a page").take().expect("pairs");
    let first = place(page.get(0).expect("a pair").0);
    assert_eq!(page.into_bytes().next().map(|(key, _)| place(&key)), Some(first));
}

#[test]
fn values_of_several_keys_and_of_one() {
    let (_pool, index) = index();
    let mut values = Values::new();
    let keys = [39u32, 2_000, 0, 7].map(u32::to_be_bytes);
    index.get_many_into(&keys, &mut values).expect("read");
    let first = place(values.get(0).expect("there"));
    let found: Vec<Option<Bytes>> = values.into_bytes().collect();
    assert_eq!(found[0].as_deref(), Some(&[39u8; 39][..]));
    assert_eq!(found[0].as_ref().map(|value| place(value)), Some(first));
    assert_eq!((found[1].is_none(), found[2].as_deref()), (true, Some(&[][..])));

    let value = index.get(39u32.to_be_bytes()).expect("read").expect("there");
    let at = place(&value);
    assert_eq!(place(&Bytes::from(value)), at);
}

#[test]
fn bytes_are_keys_values_and_ranges() {
    let (_pool, index) = index();
    let (key, value) = (Bytes::from_static(b"key"), Bytes::from_static(b"value"));
    index.put(&key, &value).expect("put");
    assert_eq!(index.take(key.clone()).expect("taken").map(Bytes::from), Some(value));
    assert!(index.range(key.clone()..).next().is_none());
}

#[test]
fn an_error_ends_it() {
    let (pool, index) = index();
    let mut scan = index.scan(..).page_size(10).into_bytes();
    assert!(scan.next().expect("a pair").is_ok());
    pool.drop_index("pairs").expect("there");
    assert_eq!(scan.by_ref().take(20).filter(Result::is_err).count(), 1);
    assert!(scan.next().is_none());
}
