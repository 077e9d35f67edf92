//! Reads and single writes.

use dmtree::{Index, Outcome, Result};

use crate::handles::Handles;
use crate::memory::{Bytes, Slice, items, result, results};
use crate::status::{Status, call};

pub(crate) static INDEXES: Handles<Index> = Handles::new("index");

/// Gives the caller what a key has, or had; `DMTREE_STATUS_ABSENT` when that is nothing.
fn given(to: &mut Bytes, value: Option<Vec<u8>>) -> Status {
    match value {
        Some(value) => {
            *to = Bytes::of(value);
            Status::Ok
        }
        None => Status::Absent,
    }
}

/// Reads the value of a key into `value`; `DMTREE_STATUS_ABSENT` without one.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_get(index: u64, key: Slice, value: *mut Bytes) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let (key, to) = unsafe { (key.bytes("key")?, result(value, "value")?) };
        *to = Bytes::NONE;
        Ok(given(to, INDEXES.get(index)?.get(key)?))
    })
}

/// Whether a key is there: `DMTREE_STATUS_OK` or `DMTREE_STATUS_ABSENT`.
///
/// # Safety
/// The key is null or readable, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_contains(index: u64, key: Slice) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let key = unsafe { key.bytes("key")? };
        Ok(if INDEXES.get(index)?.contains(key)? { Status::Ok } else { Status::Absent })
    })
}

/// Reads `count` keys at once, in any order: `values` and `found` have a place for each. A key that
/// is absent has `DMTREE_STATUS_ABSENT` in `found`, and no bytes.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_get_many(
    index: u64,
    keys: *const Slice,
    count: usize,
    values: *mut Bytes,
    found: *mut Status,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let keys = unsafe { items(keys, count, "keys")? };
        // SAFETY: as above.
        let (values, found) =
            unsafe { (results(values, count, "values")?, results(found, count, "found")?) };
        // SAFETY: as above.
        let keys =
            keys.iter().map(|key| unsafe { key.bytes("key") }).collect::<Result<Vec<_>>>()?;
        let read = INDEXES.get(index)?.get_many(&keys)?;
        for ((value, found), read) in values.iter_mut().zip(found).zip(read) {
            *found = if read.is_some() { Status::Ok } else { Status::Absent };
            *value = read.map_or(Bytes::NONE, Bytes::of);
        }
        Ok(Status::Ok)
    })
}

/// A write of one key, and one or two values.
///
/// # Safety
/// Keys and values are null or readable, for the time of the call.
unsafe fn write(
    index: u64,
    key: Slice,
    [first, second]: [Slice; 2],
    write: impl FnOnce(&Index, &[u8], [&[u8]; 2]) -> Result<Outcome>,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let key = unsafe { key.bytes("key")? };
        // SAFETY: as above.
        let values = unsafe { [first.bytes("value")?, second.bytes("value")?] };
        write(&INDEXES.get(index)?, key, values).map(Status::from)
    })
}

const NOTHING: Slice = Slice { data: std::ptr::null(), len: 0 };

/// Stores a value, whether or not the key is there.
///
/// # Safety
/// Key and value are null or readable, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_put(index: u64, key: Slice, value: Slice) -> Status {
    // SAFETY: by the contract of the call.
    unsafe { write(index, key, [value, NOTHING], |index, key, [value, _]| index.put(key, value)) }
}

/// Stores a value of a key that is absent; `DMTREE_STATUS_EXISTS` otherwise.
///
/// # Safety
/// Key and value are null or readable, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_insert(index: u64, key: Slice, value: Slice) -> Status {
    // SAFETY: by the contract of the call.
    unsafe {
        write(index, key, [value, NOTHING], |index, key, [value, _]| index.insert(key, value))
    }
}

/// Replaces the value of a key that is there; `DMTREE_STATUS_ABSENT` otherwise.
///
/// # Safety
/// Key and value are null or readable, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_update(index: u64, key: Slice, value: Slice) -> Status {
    // SAFETY: by the contract of the call.
    unsafe {
        write(index, key, [value, NOTHING], |index, key, [value, _]| index.update(key, value))
    }
}

/// Deletes a key; `DMTREE_STATUS_ABSENT` if it is not there.
///
/// # Safety
/// The key is null or readable, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_delete(index: u64, key: Slice) -> Status {
    // SAFETY: by the contract of the call.
    unsafe { write(index, key, [NOTHING, NOTHING], |index, key, _| index.delete(key)) }
}

/// Replaces the value of a key if it is `expected`; `DMTREE_STATUS_MISMATCH` or
/// `DMTREE_STATUS_ABSENT` otherwise.
///
/// # Safety
/// Key and values are null or readable, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_compare_and_set(
    index: u64,
    key: Slice,
    expected: Slice,
    value: Slice,
) -> Status {
    let set = |index: &Index, key: &[u8], [expected, value]: [&[u8]; 2]| {
        index.compare_and_set(key, expected, value)
    };
    // SAFETY: by the contract of the call.
    unsafe { write(index, key, [expected, value], set) }
}

/// Deletes a key if its value is `expected`; `DMTREE_STATUS_MISMATCH` or `DMTREE_STATUS_ABSENT`
/// otherwise.
///
/// # Safety
/// Key and value are null or readable, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_compare_and_delete(
    index: u64,
    key: Slice,
    expected: Slice,
) -> Status {
    let delete = |index: &Index, key: &[u8], [expected, _]: [&[u8]; 2]| {
        index.compare_and_delete(key, expected)
    };
    // SAFETY: by the contract of the call.
    unsafe { write(index, key, [expected, NOTHING], delete) }
}

/// Stores a value, whether or not the key is there, and gives the former one, without another round
/// trip. `DMTREE_STATUS_ABSENT`: there was none, and the value is stored. Atomic.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_replace(
    index: u64,
    key: Slice,
    value: Slice,
    before: *mut Bytes,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let (key, value) = unsafe { (key.bytes("key")?, value.bytes("value")?) };
        // SAFETY: as above.
        let to = unsafe { result(before, "before")? };
        *to = Bytes::NONE;
        Ok(given(to, INDEXES.get(index)?.replace(key, value)?))
    })
}

/// Deletes a key and gives its value, without another round trip; `DMTREE_STATUS_ABSENT` if it is
/// not there. Atomic.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_take(index: u64, key: Slice, before: *mut Bytes) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let (key, to) = unsafe { (key.bytes("key")?, result(before, "before")?) };
        *to = Bytes::NONE;
        Ok(given(to, INDEXES.get(index)?.take(key)?))
    })
}

/// As `dmtree_compare_and_set`, and gives the value that the key had, whether it was `expected` or
/// not, without another round trip. Atomic.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_compare_and_swap(
    index: u64,
    key: Slice,
    expected: Slice,
    value: Slice,
    before: *mut Bytes,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let (key, expected) = unsafe { (key.bytes("key")?, expected.bytes("expected")?) };
        // SAFETY: as above.
        let (value, to) = unsafe { (value.bytes("value")?, result(before, "before")?) };
        *to = Bytes::NONE;
        let found = INDEXES.get(index)?.compare_and_swap(key, expected, value)?;
        let differs = found.as_deref().is_some_and(|found| found != expected);
        let status = given(to, found);
        Ok(if differs { Status::Mismatch } else { status })
    })
}

/// About how many keys there are, from samples: some hundred READs for any size.
///
/// # Safety
/// The pointer is null or to what its type says, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_len_estimate(index: u64, keys: *mut u64) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let to = unsafe { result(keys, "keys")? };
        *to = INDEXES.get(index)?.len_estimate()?;
        Ok(Status::Ok)
    })
}

/// Adds to the number that a key has, 8 bytes little endian, 0 if it is absent; `before` is the
/// number before.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_fetch_add(
    index: u64,
    key: Slice,
    add: i64,
    before: *mut i64,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let (key, to) = unsafe { (key.bytes("key")?, result(before, "before")?) };
        *to = INDEXES.get(index)?.fetch_add(key, add)?;
        Ok(Status::Ok)
    })
}
