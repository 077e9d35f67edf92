//! Scans.

use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use dmtree::{Index, Pairs, Result};

use crate::handles::Handles;
use crate::index::INDEXES;
use crate::memory::{Slice, given, result};
use crate::status::{Status, call};
use crate::writes::Pair;

static SCANS: Handles<Arc<Mutex<Running>>> = Handles::new("scan");

/// A scan, and the pair that it has lent.
struct Running {
    pairs: Pairs<Index>,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// How an end of a range counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyBound {
    /// There is no end.
    Unbounded = 0,
    /// The key itself belongs to the range.
    Included = 1,
    /// The key itself does not.
    Excluded = 2,
}

/// What a scan covers. All zero: everything, in ascending order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// Lower end.
    pub low: Slice,
    /// A `dmtree_bound`: how the lower end counts.
    pub low_bound: i32,
    /// Upper end.
    pub high: Slice,
    /// A `dmtree_bound`: how the upper end counts.
    pub high_bound: i32,
    /// Only keys that begin with this.
    pub prefix: Slice,
    /// From the upper end downwards.
    pub reverse: bool,
    /// Most pairs; 0 for no limit.
    pub limit: u64,
}

/// # Safety
/// The key is null or readable, for the time of the call.
unsafe fn bound<'a>(key: Slice, kind: i32, what: &str) -> Result<Bound<&'a [u8]>> {
    // SAFETY: by the contract of the call.
    let key = unsafe { key.bytes(what)? };
    match kind {
        0 => Ok(Bound::Unbounded),
        1 => Ok(Bound::Included(key)),
        2 => Ok(Bound::Excluded(key)),
        other => Err(dmtree::Error::invalid(format!("{other} is no bound of {what}: 0, 1 or 2"))),
    }
}

/// Begins a scan. `options` may be null: it covers everything then. Each pair was current at some
/// instant of the scan; it is no snapshot.
///
/// # Safety
/// Pointers are null or to what their types say, for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_scan(
    index: u64,
    options: *const ScanOptions,
    scan: *mut u64,
) -> Status {
    call(|| {
        let none = Slice { data: std::ptr::null(), len: 0 };
        let default = ScanOptions {
            low: none,
            low_bound: 0,
            high: none,
            high_bound: 0,
            prefix: none,
            reverse: false,
            limit: 0,
        };
        // SAFETY: by the contract of the call.
        let (to, o) = unsafe { (result(scan, "scan")?, given(options, default)?) };
        // SAFETY: as above.
        let (low, high) =
            unsafe { (bound(o.low, o.low_bound, "low")?, bound(o.high, o.high_bound, "high")?) };
        // SAFETY: as above.
        let mut plan =
            INDEXES.get(index)?.scan((low, high)).prefix(unsafe { o.prefix.bytes("prefix")? });
        if o.reverse {
            plan = plan.rev();
        }
        if o.limit > 0 {
            plan = plan.limit(o.limit);
        }
        let running = Running { pairs: plan.pairs(), key: Vec::new(), value: Vec::new() };
        *to = SCANS.put(Arc::new(Mutex::new(running)));
        Ok(Status::Ok)
    })
}

/// The next pair of a scan, lent until the scan's next call; `DMTREE_STATUS_END` behind the last.
///
/// # Safety
/// The pointer is null or to what its type says, for the time of the call. One thread at a time
/// uses the scan and what it has lent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dmtree_scan_next(scan: u64, pair: *mut Pair) -> Status {
    call(|| {
        // SAFETY: by the contract of the call.
        let to = unsafe { result(pair, "pair")? };
        let running = SCANS.get(scan)?;
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let Running { pairs, key, value } = &mut *running;
        let Some((k, v)) = pairs.next_ref()? else { return Ok(Status::End) };
        key.clear();
        key.extend_from_slice(k);
        value.clear();
        value.extend_from_slice(v);
        *to = Pair { key: Slice::of(key), value: Slice::of(value) };
        Ok(Status::Ok)
    })
}

/// Ends a scan. What it has lent is gone.
#[unsafe(no_mangle)]
pub extern "C" fn dmtree_scan_close(scan: u64) -> Status {
    call(|| SCANS.take(scan).map(|_| Status::Ok))
}
