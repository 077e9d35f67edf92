//! Several writes in one call.

use dmtree::{Batch, LoadOrder, Result};

use crate::index::INDEXES;
use crate::memory::{Slice, items, results};
use crate::status::{Status, call, failed};

/// What a write of a batch does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// As `dmtree_put`.
    Put = 0,
    /// As `dmtree_insert`.
    Insert = 1,
    /// As `dmtree_update`.
    Update = 2,
    /// As `dmtree_delete`: without a value.
    Delete = 3,
    /// As `dmtree_compare_and_set`.
    CompareAndSet = 4,
    /// As `dmtree_compare_and_delete`: without a value.
    CompareAndDelete = 5,
}

/// A write of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// A `dmtree_write_kind`.
    pub kind: i32,
    /// Its key.
    pub key: Slice,
    /// The new value.
    pub value: Slice,
    /// The value that must be there, for `DMTREE_WRITE_KIND_COMPARE_AND_SET` and
    /// `DMTREE_WRITE_KIND_COMPARE_AND_DELETE`.
    pub expected: Slice,
}

/// A key with its value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The key.
    pub key: Slice,
    /// The value.
    pub value: Slice,
}

/// Applies `count` writes with fewer round trips than one by one. Not atomic: `outcomes` has a
/// place for what each has done. Writes of one key happen in their order. The status is
/// `DMTREE_STATUS_OK` when none of them failed, and else that of the first that did.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_write_batch(
    index: u64,
    writes: *const Write,
    count: usize,
    outcomes: *mut Status,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let writes = unsafe { items(writes, count, "writes")? };
        // SAFETY: as above.
        let outcomes = unsafe { results(outcomes, count, "outcomes")? };
        let mut batch = Batch::new();
        for write in writes {
            // SAFETY: as above.
            unsafe { add(&mut batch, write)? };
        }
        let mut status = Status::Ok;
        for (to, outcome) in outcomes.iter_mut().zip(INDEXES.get(index)?.write_batch(&batch)?) {
            *to = match outcome {
                Ok(outcome) => outcome.into(),
                Err(e) if status == Status::Ok => {
                    status = failed(&e);
                    status
                }
                Err(e) => e.kind().into(),
            };
        }
        Ok(status)
    })
}

/// # Safety
/// Key and values are null or readable, for the time of the call.
unsafe fn add(batch: &mut Batch, write: &Write) -> Result<()> {
    // SAFETY: by the contract of the call.
    let (key, value) = unsafe { (write.key.bytes("key")?, write.value.bytes("value")?) };
    // SAFETY: as above.
    let expected = unsafe { write.expected.bytes("expected")? };
    let is = |kind: WriteKind| write.kind == kind as i32;
    match () {
        () if is(WriteKind::Put) => batch.put(key, value),
        () if is(WriteKind::Insert) => batch.insert(key, value),
        () if is(WriteKind::Update) => batch.update(key, value),
        () if is(WriteKind::Delete) => batch.delete(key),
        () if is(WriteKind::CompareAndSet) => batch.compare_and_set(key, expected, value),
        () if is(WriteKind::CompareAndDelete) => batch.compare_and_delete(key, expected),
        () => {
            let e = format!("{} is no kind of write: they are 0 to 5", write.kind);
            return Err(dmtree::Error::invalid(e));
        }
    };
    Ok(())
}

/// Stores `count` pairs: the fastest way to fill an index that is empty. With `sorted` their keys
/// ascend strictly.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_load(
    index: u64,
    pairs: *const Pair,
    count: usize,
    sorted: bool,
) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let pairs = unsafe { items(pairs, count, "pairs")? };
        for pair in pairs {
            // SAFETY: as above.
            unsafe { (pair.key.bytes("key")?, pair.value.bytes("value")?) };
        }
        let order = if sorted { LoadOrder::Sorted } else { LoadOrder::Unsorted };
        let pairs = pairs.iter().map(|pair| {
            // SAFETY: as above; they were checked.
            let (key, value) = unsafe { (pair.key.bytes("key"), pair.value.bytes("value")) };
            (key.unwrap_or_default().to_vec(), value.unwrap_or_default().to_vec())
        });
        INDEXES.get(index)?.load(pairs, order)?;
        Ok(Status::Ok)
    })
}
