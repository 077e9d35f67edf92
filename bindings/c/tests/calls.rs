//! What the calls do with what a C program may pass.
#![expect(clippy::undocumented_unsafe_blocks, reason = "the pointers are to locals, or null")]

use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

use dmtree_c::*;

fn slice(bytes: &[u8]) -> Slice {
    Slice { data: bytes.as_ptr(), len: bytes.len() }
}

fn last_error() -> String {
    unsafe { CStr::from_ptr(dmtree_last_error()) }.to_string_lossy().into_owned()
}

/// A pool with an index.
fn opened() -> (u64, u64) {
    let (mut pool, mut index) = (0, 0);
    let memory = CString::new("16MiB").expect("a text");
    let options = PoolOptions {
        memory: memory.as_ptr(),
        cache: null(),
        memory_nodes: 0,
        compute_nodes: 0,
        durable: null(),
        sync: false,
    };
    assert_eq!(unsafe { dmtree_pool_open(&options, &mut pool) }, Status::Ok, "{}", last_error());
    let created = unsafe { dmtree_index_create(pool, c"a".as_ptr(), null(), &mut index) };
    assert_eq!(created, Status::Ok, "{}", last_error());
    (pool, index)
}

fn get(index: u64, key: &[u8]) -> (Status, Vec<u8>) {
    given(|value| unsafe { dmtree_get(index, slice(key), value) })
}

/// What a call gives.
fn given(call: impl FnOnce(*mut Bytes) -> Status) -> (Status, Vec<u8>) {
    let mut value = Bytes { data: null_mut(), len: 0 };
    let status = call(&mut value);
    let bytes = match value.data.is_null() {
        true => Vec::new(),
        false => unsafe { std::slice::from_raw_parts(value.data, value.len) }.to_vec(),
    };
    unsafe { dmtree_bytes_free(value) };
    (status, bytes)
}

#[test]
fn writes_say_what_they_have_done() {
    let (_, index) = opened();
    let (a, b, x, y) = (slice(b"a"), slice(b"b"), slice(b"x"), slice(b"y"));
    unsafe {
        assert_eq!(dmtree_update(index, a, x), Status::Absent);
        assert_eq!(dmtree_insert(index, a, x), Status::Ok);
        assert_eq!(dmtree_insert(index, a, y), Status::Exists);
        assert_eq!(dmtree_compare_and_set(index, a, y, x), Status::Mismatch);
        assert_eq!(dmtree_compare_and_set(index, a, x, y), Status::Ok);
        assert_eq!(dmtree_compare_and_set(index, b, x, y), Status::Absent);
        assert_eq!(dmtree_compare_and_delete(index, a, x), Status::Mismatch);
        assert_eq!(
            (dmtree_contains(index, a), dmtree_contains(index, b)),
            (Status::Ok, Status::Absent)
        );
    }
    assert_eq!(get(index, b"a"), (Status::Ok, b"y".to_vec()));
    unsafe {
        assert_eq!(dmtree_compare_and_delete(index, a, y), Status::Ok);
        assert_eq!(dmtree_delete(index, a), Status::Absent);
        assert_eq!(dmtree_put(index, a, slice(b"")), Status::Ok);
    }
    assert_eq!(get(index, b"a"), (Status::Ok, Vec::new()), "the empty value is a value");
    assert_eq!(get(index, b"c"), (Status::Absent, Vec::new()));
}

#[test]
fn former_values_are_given() {
    let (_, index) = opened();
    let (a, b, x, y) = (slice(b"a"), slice(b"b"), slice(b"x"), slice(b"y"));
    let (long, none) = (vec![7; 700], Vec::new());
    let replace = |value| given(|before| unsafe { dmtree_replace(index, a, value, before) });
    let swap = |key, expected, value| {
        given(|before| unsafe { dmtree_compare_and_swap(index, key, expected, value, before) })
    };
    let take = |key| given(|before| unsafe { dmtree_take(index, key, before) });
    assert_eq!(replace(x), (Status::Absent, none.clone()), "there was none; it is stored");
    assert_eq!(get(index, b"a"), (Status::Ok, b"x".to_vec()));
    assert_eq!(replace(slice(&long)), (Status::Ok, b"x".to_vec()));
    assert_eq!(replace(slice(b"")), (Status::Ok, long));
    assert_eq!(replace(x), (Status::Ok, none.clone()), "the empty value is a value");
    assert_eq!(swap(a, y, y), (Status::Mismatch, b"x".to_vec()));
    assert_eq!(swap(a, x, y), (Status::Ok, b"x".to_vec()));
    assert_eq!(swap(b, x, y), (Status::Absent, none.clone()));
    let mut keys = 9;
    assert_eq!(unsafe { dmtree_len_estimate(index, &mut keys) }, Status::Ok);
    assert_eq!(keys, 1);
    assert_eq!(take(a), (Status::Ok, b"y".to_vec()));
    assert_eq!(take(a), (Status::Absent, none));
    unsafe {
        assert_eq!(dmtree_replace(index, a, x, null_mut()), Status::InvalidArgument);
        assert_eq!(dmtree_take(index, a, null_mut()), Status::InvalidArgument);
        let swapped = dmtree_compare_and_swap(index, a, x, y, null_mut());
        assert_eq!(swapped, Status::InvalidArgument);
        assert_eq!(dmtree_len_estimate(index, null_mut()), Status::InvalidArgument);
        assert_eq!(dmtree_contains(index, a), Status::Absent, "nothing was done");
        let mut before = Bytes { data: null_mut(), len: 3 };
        assert_eq!(dmtree_replace(99, a, x, &mut before), Status::Closed);
        assert!(before.data.is_null() && before.len == 0, "there is nothing to give back");
        assert_eq!(dmtree_len_estimate(99, &mut keys), Status::Closed);
    }
}

#[test]
fn a_batch_says_it_of_each() {
    let (_, index) = opened();
    let none = slice(b"");
    let write = |kind: i32, key: &'static [u8], value: &'static [u8]| Write {
        kind,
        key: slice(key),
        value: slice(value),
        expected: none,
    };
    let long = vec![7; 2000];
    let mut writes =
        vec![write(0, b"a", b"1"), write(1, b"a", b"2"), write(3, b"b", b""), write(0, b"c", b"3")];
    let mut outcomes = [Status::Panicked; 5];
    let run = |writes: &[Write], outcomes: &mut [Status]| unsafe {
        dmtree_write_batch(index, writes.as_ptr(), writes.len(), outcomes.as_mut_ptr())
    };
    assert_eq!(run(&writes, &mut outcomes), Status::Ok);
    assert_eq!(outcomes[..4], [Status::Ok, Status::Exists, Status::Absent, Status::Ok]);
    writes[1].kind = 9;
    assert_eq!(run(&writes, &mut outcomes), Status::InvalidArgument);
    assert!(last_error().contains("9 is no kind"), "{}", last_error());
    writes[1] = Write { key: slice(&long), ..write(0, b"", b"") };
    assert_eq!(run(&writes, &mut outcomes), Status::InvalidArgument, "a key over the limit");
    let values = [b"a", b"c", b"d"].map(|key| get(index, key).0);
    assert_eq!(values, [Status::Ok, Status::Ok, Status::Absent]);
}

#[test]
fn many_keys_and_a_scan() {
    let (_, index) = opened();
    let keys: Vec<[u8; 4]> = (0..1000u32).map(u32::to_be_bytes).collect();
    let pairs: Vec<Pair> =
        keys.iter().map(|k| Pair { key: slice(k), value: slice(&k[2..]) }).collect();
    let loaded = unsafe { dmtree_load(index, pairs.as_ptr(), pairs.len(), true) };
    assert_eq!(loaded, Status::Ok, "{}", last_error());
    let asked = [slice(&keys[7]), slice(b"nothing"), slice(&keys[999])];
    let mut values = [const { Bytes { data: null_mut(), len: 0 } }; 3];
    let mut found = [Status::Panicked; 3];
    let read = unsafe {
        dmtree_get_many(index, asked.as_ptr(), 3, values.as_mut_ptr(), found.as_mut_ptr())
    };
    assert_eq!((read, found), (Status::Ok, [Status::Ok, Status::Absent, Status::Ok]));
    assert_eq!(unsafe { std::slice::from_raw_parts(values[0].data, values[0].len) }, [0, 7]);
    values.into_iter().for_each(|value| unsafe { dmtree_bytes_free(value) });

    let (low, high, none) = (slice(&keys[10]), slice(&keys[20]), slice(b""));
    let options = ScanOptions {
        low,
        low_bound: KeyBound::Excluded as i32,
        high,
        high_bound: KeyBound::Included as i32,
        prefix: none,
        reverse: true,
        limit: 4,
    };
    let mut scan = 0;
    assert_eq!(unsafe { dmtree_scan(index, &options, &mut scan) }, Status::Ok);
    let mut pair = Pair { key: none, value: none };
    let mut seen = Vec::new();
    while unsafe { dmtree_scan_next(scan, &mut pair) } == Status::Ok {
        seen.push(unsafe { std::slice::from_raw_parts(pair.key.data, pair.key.len) }[3]);
    }
    assert_eq!(seen, [20, 19, 18, 17]);
    assert_eq!(unsafe { dmtree_scan_next(scan, &mut pair) }, Status::End);
    assert_eq!(dmtree_scan_close(scan), Status::Ok);
    assert_eq!(unsafe { dmtree_scan_next(scan, &mut pair) }, Status::Closed);
    let odd = ScanOptions { low_bound: 3, ..options };
    assert_eq!(unsafe { dmtree_scan(index, &odd, &mut scan) }, Status::InvalidArgument);
}

#[test]
fn null_pointers_and_lengths_are_refused() {
    let (pool, index) = opened();
    let null_key = Slice { data: null(), len: 3 };
    let huge = Slice { data: b"a".as_ptr(), len: usize::MAX };
    unsafe {
        for key in [null_key, huge, slice(b"")] {
            assert_eq!(dmtree_put(index, key, slice(b"x")), Status::InvalidArgument);
            assert_eq!(dmtree_last_effect(), Effect::None);
        }
        assert_eq!(dmtree_put(index, slice(b"a"), null_key), Status::InvalidArgument);
        assert_eq!(dmtree_get(index, slice(b"a"), null_mut()), Status::InvalidArgument);
        assert_eq!(dmtree_pool_open(null(), null_mut()), Status::InvalidArgument);
        assert_eq!(dmtree_scan(index, null(), null_mut()), Status::InvalidArgument);
        assert_eq!(dmtree_load(index, null(), 2, true), Status::InvalidArgument);
        assert_eq!(dmtree_write_batch(index, null(), 0, null_mut()), Status::Ok, "nothing to do");
        let mut other = 0;
        let name = [0xffu8 as std::ffi::c_char, 0];
        let opened = dmtree_index_open(pool, name.as_ptr(), &mut other);
        assert_eq!(opened, Status::InvalidArgument, "no UTF-8");
        assert_eq!(dmtree_index_open(pool, null(), &mut other), Status::InvalidArgument);
        assert_eq!(dmtree_index_open(pool, c"b".as_ptr(), &mut other), Status::NameNotFound);
        let again = dmtree_index_create(pool, c"a".as_ptr(), null(), &mut other);
        assert_eq!(again, Status::NameExists);
        dmtree_bytes_free(Bytes { data: null_mut(), len: 0 });
    }
    assert!(last_error().contains('a'), "{}", last_error());
}

#[test]
fn what_is_closed_is_refused() {
    let (pool, index) = opened();
    assert_eq!(dmtree_pool_close(pool), Status::Ok);
    assert_eq!(dmtree_pool_close(pool), Status::Closed);
    assert_eq!(unsafe { dmtree_put(index, slice(b"a"), slice(b"x")) }, Status::Ok, "still open");
    let mut scan = 0;
    assert_eq!(unsafe { dmtree_scan(index, null(), &mut scan) }, Status::Ok);
    assert_eq!(dmtree_index_close(index), Status::Ok);
    assert_eq!(unsafe { dmtree_put(index, slice(b"a"), slice(b"x")) }, Status::Closed);
    let mut pair = Pair { key: slice(b""), value: slice(b"") };
    assert_eq!(unsafe { dmtree_scan_next(scan, &mut pair) }, Status::Ok, "still open");
    assert_eq!(dmtree_scan_close(scan), Status::Ok);
}

/// Every call that takes a handle, with one that is none, and whatever else it needs.
#[test]
fn every_call_refuses_a_handle_that_is_none() {
    const NONE: u64 = 99;
    let (k, mut other, mut number) = (slice(b"k"), 0, 0);
    let pair = Pair { key: k, value: k };
    let (keys, pairs, mut found) = ([k], [pair], [Status::Ok]);
    let writes = [Write { kind: 0, key: k, value: k, expected: k }];
    let (mut value, mut lent) = (Bytes { data: null_mut(), len: 0 }, pair);
    let said = unsafe {
        [
            dmtree_get(NONE, k, &mut value),
            dmtree_contains(NONE, k),
            dmtree_get_many(NONE, keys.as_ptr(), 1, &mut value, found.as_mut_ptr()),
            dmtree_put(NONE, k, k),
            dmtree_insert(NONE, k, k),
            dmtree_update(NONE, k, k),
            dmtree_delete(NONE, k),
            dmtree_compare_and_set(NONE, k, k, k),
            dmtree_compare_and_delete(NONE, k, k),
            dmtree_fetch_add(NONE, k, 1, &mut number),
            dmtree_write_batch(NONE, writes.as_ptr(), 1, found.as_mut_ptr()),
            dmtree_load(NONE, pairs.as_ptr(), 1, true),
            dmtree_scan(NONE, null(), &mut other),
            dmtree_scan_next(NONE, &mut lent),
            dmtree_scan_close(NONE),
            dmtree_index_close(NONE),
            dmtree_index_create(NONE, c"a".as_ptr(), null(), &mut other),
            dmtree_index_open(NONE, c"a".as_ptr(), &mut other),
            dmtree_index_open_or_create(NONE, c"a".as_ptr(), null(), &mut other),
            dmtree_index_drop(NONE, c"a".as_ptr()),
            dmtree_pool_close(NONE),
        ]
    };
    assert_eq!(said, [Status::Closed; 21]);
    assert_eq!((found, other, value.len), ([Status::Ok], 0, 0), "nothing was written");
    assert!(last_error().contains("0x63 is no open pool"), "{}", last_error());
}

/// Every pointer to a result, and every text and array that is needed, as null; keys without
/// memory.
#[test]
fn every_call_refuses_null_where_memory_is_needed() {
    let (pool, index) = opened();
    let (k, wrong) = (slice(b"k"), Slice { data: null(), len: 3 });
    let (keys, pairs) = ([wrong], [Pair { key: k, value: wrong }]);
    let writes = [Write { kind: 0, key: k, value: k, expected: wrong }];
    let mut value = Bytes { data: null_mut(), len: 0 };
    let (mut found, mut other, mut number, mut scan) = ([Status::Ok], 0, 0, 0);
    let odd = |low| ScanOptions {
        low,
        low_bound: 1,
        high: k,
        high_bound: 0,
        prefix: k,
        reverse: false,
        limit: 0,
    };
    let said = unsafe {
        assert_eq!(dmtree_scan(index, null(), &mut scan), Status::Ok);
        [
            dmtree_get(index, wrong, &mut value),
            dmtree_contains(index, wrong),
            dmtree_get_many(index, null(), 1, &mut value, found.as_mut_ptr()),
            dmtree_get_many(index, keys.as_ptr(), 1, &mut value, found.as_mut_ptr()),
            dmtree_get_many(index, &k, 1, null_mut(), found.as_mut_ptr()),
            dmtree_get_many(index, &k, 1, &mut value, null_mut()),
            dmtree_insert(index, k, wrong),
            dmtree_update(index, wrong, k),
            dmtree_delete(index, wrong),
            dmtree_compare_and_set(index, k, wrong, k),
            dmtree_compare_and_delete(index, k, wrong),
            dmtree_fetch_add(index, k, 1, null_mut()),
            dmtree_fetch_add(index, wrong, 1, &mut number),
            dmtree_replace(index, k, wrong, &mut value),
            dmtree_take(index, wrong, &mut value),
            dmtree_compare_and_swap(index, k, wrong, k, &mut value),
            dmtree_write_batch(index, null(), 1, found.as_mut_ptr()),
            dmtree_write_batch(index, writes.as_ptr(), 1, found.as_mut_ptr()),
            dmtree_write_batch(index, writes.as_ptr(), 1, null_mut()),
            dmtree_load(index, pairs.as_ptr(), 1, false),
            dmtree_load(index, pairs.as_ptr(), usize::MAX, false),
            dmtree_scan(index, &odd(wrong), &mut other),
            dmtree_scan_next(scan, null_mut()),
            dmtree_index_create(pool, c"b".as_ptr(), null(), null_mut()),
            dmtree_index_create(pool, null(), null(), &mut other),
            dmtree_index_open_or_create(pool, null(), null(), &mut other),
            dmtree_index_open_or_create(pool, c"b".as_ptr(), null(), null_mut()),
            dmtree_index_drop(pool, null()),
            dmtree_index_options_default(null_mut()),
            dmtree_pool_connect(null(), null(), &mut other),
            dmtree_pool_connect(c"127.0.0.1:1".as_ptr(), null(), null_mut()),
        ]
    };
    assert_eq!(said, [Status::InvalidArgument; 31]);
    assert_eq!(get(index, b"k").0, Status::Absent, "nothing was done");
    let opened = unsafe { dmtree_index_open(pool, c"b".as_ptr(), &mut other) };
    assert_eq!(opened, Status::NameNotFound, "nothing was created");
}

#[test]
fn threads_share_handles() {
    let (_, index) = opened();
    let key = slice(b"n").data as usize;
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(move || {
                let (key, mut before) = (Slice { data: key as *const u8, len: 1 }, 0);
                for _ in 0..500 {
                    assert_eq!(unsafe { dmtree_fetch_add(index, key, 1, &mut before) }, Status::Ok);
                }
            });
        }
    });
    assert_eq!(get(index, b"n").1, 2000i64.to_le_bytes());
}
