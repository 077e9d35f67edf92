//! The directory: the models of all segments, the trained keys, and where leaves are.
//!
//! The trained keys are on memory nodes, behind a header that the root word names. A compute node
//! READs them once, and trains: all get the same models. (As published every compute node trains on
//! the same file.) A directory never changes. A load puts another one in its place; the leaves of
//! the old one say that they have moved.
//!
//! *Placement.* A segment of n trained keys has n / span leaves, rounded up, and one more. A key
//! belongs to the segment of the first trained key that is not below it, and to leaf number
//! rank / span of that segment, where its rank is the number of trained keys of the segment below
//! it. So every key, trained or not, has one leaf for as long as the directory lives. Leaves are
//! dealt out to the memory nodes in turn; each node has its share in one region.
//!
//! *Window.* Where a model says position p, a key lies between p - error and p + error + 2.

use std::ops::RangeInclusive;

use dmtree_fabric::{Error, GlobalAddr, NodeId, Result, Role};
use dmtree_parts::bytes::{get_addr, get_u64, put_u64};
use dmtree_parts::hash::check64;
use dmtree_parts::plr::{Fit, Line};

use crate::form::Form;
use crate::options::Options;

const MAGIC: u64 = u64::from_le_bytes(*b"rolexdir");
const SEED: u64 = 0x64_69_72;
/// Bytes of a header in front of the regions.
const FIXED: usize = 64;
/// Room for the prefix of keys.
const PREFIX: usize = 256;
/// Bytes of a trained key.
pub const KEY_BYTES: usize = 16;

/// The model of a segment: 40 bytes with the last key.
#[derive(Clone, Copy, Debug)]
struct Model {
    line: Line,
    /// The rank of its first key among all trained ones.
    rank: u32,
    /// Its first leaf.
    leaf: u32,
}

/// Bytes of a model with its last key.
const MODEL_BYTES: u64 = (size_of::<Model>() + KEY_BYTES) as u64;

/// Models over trained keys.
#[derive(Debug)]
pub struct Models {
    span: u32,
    error: u32,
    /// A window reaches to the leaf behind the last key.
    whole_window: bool,
    keys: Vec<u128>,
    lasts: Vec<u128>,
    models: Vec<Model>,
    leaves: u32,
}

impl Models {
    /// Trains on ascending keys.
    ///
    /// # Errors
    /// `InvalidArgument` for keys that do not ascend, and for more than there can be leaves.
    pub fn train(o: &Options, keys: Vec<u128>) -> Result<Self> {
        let (mut fit, mut segments) = (Fit::new(o.error - 1, 0), Vec::new());
        keys.iter().try_for_each(|key| fit.push(*key, &mut segments))?;
        fit.end_segment(&mut segments);
        let (mut leaves, mut lasts, mut models) = (0u32, Vec::new(), Vec::new());
        for s in segments {
            models.push(Model { line: s.line, rank: s.ordinal, leaf: leaves });
            lasts.push(s.last);
            let more = s.points.div_ceil(o.span) + 1;
            let all = leaves.checked_add(more);
            leaves = all.ok_or_else(|| Error::invalid("an index of more than 2^32 leaves"))?;
        }
        let (span, error, whole_window) = (o.span, o.error, o.whole_window);
        // Without keys there is one leaf.
        Ok(Self { span, error, whole_window, keys, lasts, models, leaves: leaves.max(1) })
    }

    /// All trained keys.
    pub fn keys(&self) -> &[u128] {
        &self.keys
    }

    /// How many leaves there are.
    pub fn leaves(&self) -> u32 {
        self.leaves
    }

    /// How many models, and the bytes of all of them and of the keys.
    pub fn size(&self) -> (u64, u64, u64) {
        let models = self.models.len() as u64;
        (models, models * MODEL_BYTES, (self.keys.len() * KEY_BYTES) as u64)
    }

    /// The segment of a key: its number, and its trained keys.
    fn segment(&self, key: u128) -> Option<(Model, &[u128])> {
        let last = self.models.len().checked_sub(1)?;
        let s = self.lasts.partition_point(|last| *last < key).min(last);
        let end = self.models.get(s + 1).map_or(self.keys.len(), |next| next.rank as usize);
        Some((self.models[s], &self.keys[self.models[s].rank as usize..end]))
    }

    /// The leaf of a key.
    pub fn home(&self, key: u128) -> u32 {
        let Some((model, keys)) = self.segment(key) else { return 0 };
        model.leaf + keys.partition_point(|k| *k < key) as u32 / self.span
    }

    /// The leaves in which a key can be, according to its model.
    pub fn window(&self, key: u128) -> RangeInclusive<u32> {
        let Some((model, keys)) = self.segment(key) else { return 0..=0 };
        let points = keys.len() as u32;
        let position = model.line.predict(key.saturating_sub(keys[0]), points);
        let last = if self.whole_window { points } else { points - 1 };
        let low = position.saturating_sub(self.error);
        let high = last.min(position + self.error + 2);
        model.leaf + low / self.span..=model.leaf + high / self.span
    }

    /// The rank of the first trained key of a leaf.
    pub fn first_rank(&self, leaf: u32) -> usize {
        let s = self.models.partition_point(|m| m.leaf <= leaf);
        let Some(model) = s.checked_sub(1).map(|s| self.models[s]) else { return 0 };
        (model.rank + (leaf - model.leaf) * self.span) as usize
    }

    /// How many trained keys are below a key.
    pub fn rank(&self, key: u128) -> usize {
        self.segment(key)
            .map_or(0, |(model, keys)| model.rank as usize + keys.partition_point(|k| *k < key))
    }
}

/// Where the parts of a directory are on memory nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How keys are numbers.
    pub form: Form,
    /// The trained keys: how many, where, and their check.
    pub keys: (u64, GlobalAddr, u64),
    /// Each memory node's share of the leaves.
    pub regions: Vec<GlobalAddr>,
}

impl Header {
    /// Bytes of the header of a pool with so many memory nodes.
    pub fn bytes(nodes: usize) -> usize {
        FIXED + PREFIX + 8 * nodes
    }

    /// Its bytes.
    pub fn encode(&self, image: &mut [u8]) {
        put_u64(image, 0, MAGIC);
        put_u64(image, 16, self.keys.0);
        put_u64(image, 24, self.keys.1.bits());
        put_u64(image, 32, self.keys.2);
        put_u64(image, 40, self.form.is_decimal.into());
        put_u64(image, 48, self.form.prefix.len() as u64);
        image[FIXED..FIXED + self.form.prefix.len()].copy_from_slice(&self.form.prefix);
        for (i, region) in self.regions.iter().enumerate() {
            put_u64(image, FIXED + PREFIX + 8 * i, region.bits());
        }
        put_u64(image, 8, check64(&image[16..], SEED));
    }

    /// Takes the bytes of a header; `None` for anything else.
    pub fn decode(image: &[u8]) -> Option<Self> {
        let checked =
            get_u64(image, 0) == MAGIC && get_u64(image, 8) == check64(&image[16..], SEED);
        let length = get_u64(image, 48) as usize;
        if !checked || length > PREFIX {
            return None;
        }
        let prefix = image[FIXED..FIXED + length].to_vec();
        let form = Form { prefix, is_decimal: get_u64(image, 40) != 0 };
        let keys = (get_u64(image, 16), get_addr(image, 24), get_u64(image, 32));
        let regions = (FIXED + PREFIX..image.len()).step_by(8).map(|at| get_addr(image, at));
        let regions: Vec<_> = regions.collect();
        let on_memory = |at: &GlobalAddr| at.node().role() == Role::Memory;
        (regions.iter().all(on_memory) && on_memory(&keys.1)).then_some(Self {
            form,
            keys,
            regions,
        })
    }
}

/// The check of the trained keys.
pub fn check_of(keys: &[u128]) -> u64 {
    keys.iter().fold(SEED, |check, key| check64(&key.to_le_bytes(), check))
}

/// A directory on a compute node.
#[derive(Debug)]
pub struct Directory {
    /// Where its header is.
    pub at: GlobalAddr,
    /// The header.
    pub header: Header,
    /// The models.
    pub models: Models,
    stride: u64,
}

impl Directory {
    /// With leaves so many bytes apart.
    pub fn new(at: GlobalAddr, header: Header, models: Models, stride: u64) -> Self {
        Self { at, header, models, stride }
    }

    /// Where a leaf is.
    pub fn leaf(&self, ordinal: u32) -> GlobalAddr {
        let regions = &self.header.regions;
        let (node, at) = (ordinal as usize % regions.len(), ordinal as usize / regions.len());
        regions[node].plus(at as u64 * self.stride)
    }

    /// The number of a key.
    pub fn number(&self, key: &[u8]) -> u128 {
        self.header.form.number(key)
    }
}

/// Bytes of one memory node's share of the leaves.
pub fn share(leaves: u32, stride: u64, nodes: usize) -> u64 {
    u64::from(leaves).div_ceil(nodes as u64) * stride
}

/// The memory nodes of a pool, in the order of the shares.
pub fn memory_nodes(nodes: usize) -> impl Iterator<Item = NodeId> {
    (0..nodes).map(|n| NodeId::memory(n as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(prefix: Vec<u8>, regions: Vec<u64>) -> Header {
        let at = |offset| GlobalAddr::new(NodeId::memory(1), offset);
        let form = Form { prefix, is_decimal: true };
        Header { form, keys: (5, at(64), 7), regions: regions.into_iter().map(at).collect() }
    }

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            prefix in prop::collection::vec(any::<u8>(), 0..256),
            regions in prop::collection::vec(0u64..1 << 40, 1..5),
            (at, bit) in (any::<usize>(), 0u8..8),
        ) {
            let h = header(prefix, regions);
            let mut image = vec![0; Header::bytes(h.regions.len())];
            h.encode(&mut image);
            prop_assert_eq!(Header::decode(&image), Some(h));
            let at = at % image.len();
            image[at] ^= 1 << bit;
            prop_assert_eq!(Header::decode(&image), None);
        }

        #[test]
        fn garbage_is_no_header(bytes in prop::collection::vec(any::<u8>(), 400)) {
            prop_assert_eq!(Header::decode(&bytes), None);
        }

        /// Every key, trained or not, has its home in its window; and a home has as many trained
        /// keys as a leaf has slots at most.
        #[test]
        fn the_window_has_the_home(
            keys in prop::collection::btree_set(0u128..1 << 40, 0..400),
            probes in prop::collection::vec(0u128..1 << 40, 50),
            span in 4u32..20, error in 1u32..12,
        ) {
            let o = Options { span, error, whole_window: true, ..Options::published() };
            let models = Models::train(&o, keys.iter().copied().collect()).expect("ascending");
            let mut counts = vec![0; models.leaves() as usize];
            for key in keys.iter().chain(&probes) {
                prop_assert!(models.window(*key).contains(&models.home(*key)), "key {key}");
            }
            keys.iter().for_each(|key| counts[models.home(*key) as usize] += 1);
            prop_assert!(counts.iter().all(|n| *n <= span));
            prop_assert!(keys.iter().map(|key| models.home(*key)).is_sorted());
            for (rank, key) in keys.iter().enumerate() {
                prop_assert_eq!(models.rank(*key), rank);
            }
        }
    }

    #[test]
    fn a_model_takes_forty_bytes() {
        let keys: Vec<u128> = (0..1_000).map(|n| n * n).collect();
        let models = Models::train(&Options::published(), keys).expect("ascending");
        let (count, bytes, keys) = models.size();
        assert!(count > 1 && bytes == 40 * count && keys == 16_000);
    }
}
