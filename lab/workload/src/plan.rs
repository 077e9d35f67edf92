//! A prepared workload: the state that all its clients share.

use std::ops::Range;
use std::sync::Arc;

use crate::dist::Chooser;
use crate::error::{Error, Result};
use crate::inserts::InsertCounter;
use crate::keys::KeySpace;
use crate::permute::Permutation;
use crate::rng::Seed;
use crate::scan_len::ScanLengths;
use crate::slices::{Side, Slices};
use crate::spec::WorkloadSpec;
use crate::stream::OpStream;
use crate::values::{Mismatch, ValueMaker};

/// The version of a loaded value; writes of the run have other versions.
pub const LOADED: u32 = 0;

/// A checked [`WorkloadSpec`] with its tables and counters. The clients of a process share it;
/// every client takes its own [`OpStream`] from it.
#[derive(Debug)]
pub struct Plan {
    /// What it was built of, with the distribution in effect, which may be the workload's own.
    pub spec: WorkloadSpec,
    pub(crate) keys: KeySpace,
    /// `None` for a workload that only inserts into an empty index.
    pub(crate) chooser: Option<Chooser>,
    pub(crate) scans: ScanLengths,
    /// One for every slice of the key space.
    pub(crate) sides: Vec<Side>,
    value_lengths: Seed,
}

impl Plan {
    pub(crate) fn new(mut spec: WorkloadSpec) -> Result<Self> {
        spec.distribution = spec.workload.distribution.unwrap_or(spec.distribution);
        spec.value_size.checked()?;
        let scans = ScanLengths::new(spec.scan_length)?;
        let seed = spec.seed;
        let keys = KeySpace::new(&spec.keys, seed.child("keys"))?;
        if spec.records > keys.capacity() {
            return Err(Error::new(format!(
                "{} records are more than the {} that keys of form {} can name: load fewer, or take another form",
                spec.records,
                keys.capacity(),
                spec.keys
            )));
        }
        let chooser = if spec.records > 0 || spec.workload.mix().needs_records() {
            let scatter = seed.child("scatter");
            Some(Chooser::new(spec.distribution, spec.records, spec.nominal, scatter)?)
        } else {
            None
        };
        spec.check_slices()?;
        let side = || Side::whole(spec.records, keys.capacity(), seed.child("deletes"));
        let sides = match spec.slices {
            1 => vec![side()],
            n => {
                let all = Arc::new(Slices::new(&keys, spec.records, n));
                (0..n).map(|slice| Side::of(&all, slice, side(), seed.child("deletes"))).collect()
            }
        };
        Ok(Plan { sides, value_lengths: seed.child("value lengths"), keys, chooser, scans, spec })
    }

    /// The counter of inserts; of a key space in slices, that of the first. A driver that knows
    /// better when an insert is stored may acknowledge it there.
    pub fn inserts(&self) -> &InsertCounter {
        &self.sides[0].inserts
    }

    /// The operations of client `client`. The same client of the same plan settings
    /// draws the same operations. Clients share only the numbers of inserts and deletes, which they
    /// get in the order of arrival.
    pub fn stream(self: &Arc<Self>, client: u32) -> OpStream {
        self.stream_of(client, 0)
    }

    /// The same, with all keys in this slice of the key space; beyond the last slice, in the last.
    pub fn stream_of(self: &Arc<Self>, client: u32, slice: u32) -> OpStream {
        let slice = (slice as usize).min(self.sides.len() - 1);
        OpStream::new(self.clone(), slice, self.spec.seed.numbered("client", client.into()))
    }

    /// The loaded records of a slice of the key space, in the order of their keys; `None` where the
    /// key space is not cut.
    pub fn loaded_in(&self, slice: u32) -> Option<&[u64]> {
        self.sides.get(slice as usize)?.loaded()
    }

    /// Replaces the content of `out` by the key of `record`.
    pub fn key(&self, record: u64, out: &mut Vec<u8>) {
        self.keys.key(record, out);
    }

    /// Replaces the content of `out` by version `version` of the value of `record`; `key` is the
    /// record's key. A load uses version [`LOADED`].
    pub fn value(&self, record: u64, key: &[u8], version: u32, out: &mut Vec<u8>) {
        let len = self.spec.value_size.of(self.value_lengths, record, version);
        ValueMaker.fill(key, version, len, out);
    }

    /// Whether `value` can have been written for `key`, by any version, in one piece.
    ///
    /// # Errors
    /// [`Mismatch`] when it cannot.
    pub fn check_value(&self, key: &[u8], value: &[u8]) -> std::result::Result<(), Mismatch> {
        ValueMaker.check(key, value)
    }

    /// The records to load, in order.
    pub fn load(&self, order: LoadOrder) -> Load {
        let n = self.spec.records;
        let by = match order {
            LoadOrder::Random => By::Permutation(Permutation::new(n, self.spec.seed.child("load"))),
            LoadOrder::Sorted => {
                let mut records: Vec<u64> = (0..n).collect();
                records.sort_by_cached_key(|&record| self.keys.rank(record));
                By::Table(records.into())
            }
        };
        Load { n, by }
    }
}

/// The order in which records are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadOrder {
    /// A seeded permutation, for any key form: fills nodes as random inserts do.
    #[default]
    Random,
    /// Ascending by key, for bulk loads. Takes about 32 bytes of memory per record while it sorts,
    /// and 8 after.
    Sorted,
}

/// The records to load, each once. Cheap to clone: clients share one, and each takes a range of
/// positions.
///
/// ```
/// use dmtree_workload::{LOADED, LoadOrder, WorkloadSpec};
/// let plan = WorkloadSpec { records: 1000, ..Default::default() }.build()?;
/// let load = plan.load(LoadOrder::Random);
/// let (mut key, mut value) = (Vec::new(), Vec::new());
/// for record in load.records(0..500) {
///     plan.key(record, &mut key);
///     plan.value(record, &key, LOADED, &mut value);
///     // insert key and value
/// }
/// # Ok::<(), dmtree_workload::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Load {
    n: u64,
    by: By,
}

#[derive(Debug, Clone)]
enum By {
    Permutation(Permutation),
    Table(Arc<[u64]>),
}

impl Load {
    /// The records at a range of positions of the order; positions beyond the end are left out.
    pub fn records(&self, positions: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        (positions.start..positions.end.min(self.n)).map(|at| match &self.by {
            By::Permutation(order) => order.apply(at),
            By::Table(records) => records[at as usize],
        })
    }
}
