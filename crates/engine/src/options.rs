//! Creation options: the layout, and the techniques.

mod stored;

use dmtree_fabric::Error;
use dmtree_parts::options::{Range, check_range};
use serde::{Deserialize, Serialize};

use crate::DmNode;
use crate::format::{Geometry, MAX_SLOTS, table};
use crate::hop::Places;
use crate::log::{LEAST_RECORDS, Layout};

/// Placement of the fingerprint tables (and so of the leaf locks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// Spread over the compute nodes.
    Compute,
    /// On the memory nodes.
    Memory,
    /// Nowhere: leaves are read whole, and their locks are words of the memory nodes.
    None,
}

/// What a compute node has in the place of cached inner nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Models {
    /// Nothing: it caches inner nodes.
    None,
    /// Models; a search READs all leaves that may hold its key together.
    Window,
    /// Models; a search READs the likeliest leaf.
    Likeliest,
}

/// The techniques of an index: what a laboratory switches to see what each is worth. Sound in every
/// position.
#[derive(Clone, Debug, PartialEq)]
pub struct Techniques {
    /// Copies of fingerprint tables in the cache.
    pub mirrors: bool,
    /// Where tables live.
    pub tables: Tables,
    /// Readers of one key share a READ.
    pub delegation: bool,
    /// Writers of one key share a WRITE.
    pub combining: bool,
    /// Leaves grow to 128 slots instead of splitting while the cache is short of room.
    pub adaptive_capacity: bool,
    /// Lock and table in one round trip; unlocks are not waited for.
    pub round_trip_combining: bool,
    /// Without tables: lock words of a memory node, where they are not on chip.
    pub locks: u32,
    /// Without tables: lock words lie in on-chip memory, where the fabric has any that no other
    /// index has taken.
    pub on_chip: bool,
    /// Without tables: models in the place of cached inner nodes.
    pub models: Models,
    /// With models: entries of a full leaf by which a prediction may be wrong, and one.
    pub error_bound: u32,
    /// With models: leaves of a page of them, which is trained as a whole.
    pub page_leaves: u32,
    /// With models: searches that take longer than their window, to a training of their page; 0 for
    /// none after the first.
    pub retrain_after: u32,
}

impl Default for Techniques {
    fn default() -> Self {
        Self {
            mirrors: true,
            tables: Tables::Compute,
            delegation: true,
            combining: true,
            adaptive_capacity: true,
            round_trip_combining: true,
            locks: 16_384,
            on_chip: true,
            models: Models::None,
            error_bound: 8,
            page_leaves: 512,
            retrain_after: 64,
        }
    }
}

/// Layout of an index, and its techniques. Stored in the catalog: the layout cannot change later.
///
/// Serialized, the techniques stand beside the layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Bytes of a key kept inside its entry; longer keys go to blocks of their own. A multiple of
    /// 8, 8 to 256.
    pub key_inline_bytes: u32,
    /// Bytes of a value kept inside its entry; longer values go to blocks of their own. A multiple
    /// of 8, 0 to 1024.
    pub value_inline_bytes: u32,
    /// Slots of a new leaf: 32, 64 or 128; without tables 4 to 128. With a neighbourhood: those in
    /// which one may begin.
    pub leaf_capacity: u32,
    /// Without tables: slots of a leaf in which a key may be, 2 to 16; 0 for all of them.
    pub neighbourhood: u32,
    /// Records of an inner node, 8 to 64.
    pub fanout: u32,
    /// Share of a compute node's cache budget that is for images of the leaves that it owns, 0 to
    /// 1. With 0 there are none.
    pub images: f64,
    /// KiB on each memory node of the log of each compute node, for writes to leaves with images:
    /// they are durable there before they are in their leaves. With 0 every write goes to its leaf.
    pub log_kib: u32,
    /// Groups of a compute node's clients with a ring of the log each, 1 to 64.
    pub log_groups: u32,
    /// Share of the leaves that are updated past a log with room, 0 to 1. Without a value each
    /// compute node follows the loads of owners and memory nodes.
    pub log_past: Option<f64>,
    /// What a laboratory switches.
    pub techniques: Techniques,
    /// Longest wait of one operation for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key_inline_bytes: 24,
            value_inline_bytes: 8,
            leaf_capacity: 32,
            neighbourhood: 0,
            fanout: 32,
            images: 0.0,
            log_kib: 0,
            log_groups: 4,
            log_past: None,
            techniques: Techniques::default(),
            timeout_ms: 10_000,
        }
    }
}

impl Options {
    /// Without tables: whole leaves are read, and locked by words of the memory nodes.
    #[must_use]
    pub fn without_tables(&self) -> Self {
        let techniques = Techniques {
            tables: Tables::None,
            mirrors: false,
            delegation: false,
            combining: false,
            adaptive_capacity: false,
            ..self.techniques.clone()
        };
        Self { techniques, ..self.clone() }
    }

    /// Derived sizes and offsets.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            k: self.key_inline_bytes as usize,
            v: self.value_inline_bytes as usize,
            fanout: self.fanout as usize,
        }
    }

    /// Offset of the count word of a leaf that a log may have records of: behind the shadow.
    pub(crate) fn count_at(&self, capacity: usize) -> usize {
        let g = self.geometry();
        g.shadow_at(capacity) + 8 + g.entry()
    }

    /// Bytes of a leaf, in whole lines.
    pub(crate) fn leaf_bytes(&self, capacity: usize) -> usize {
        match self.log_kib {
            0 => self.geometry().leaf_bytes(capacity),
            _ => (self.count_at(capacity) + 8).next_multiple_of(64),
        }
    }

    /// The capacities that leaves may have.
    pub fn capacities(&self) -> Vec<usize> {
        match self.techniques.tables {
            Tables::None => vec![Places::of(self).capacity(self.leaf_capacity as usize)],
            Tables::Compute | Tables::Memory => vec![32, 64, 128],
        }
    }

    /// Rejects invalid options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> dmtree_fabric::Result<()> {
        let t = &self.techniques;
        let (k, v) = (self.key_inline_bytes, self.value_inline_bytes);
        let values = [k, v, self.fanout, t.locks, t.error_bound, t.page_leaves, self.log_groups];
        let mut all = RANGES.iter().zip(values);
        all.try_for_each(|(range, value)| range.check(value.into()))?;
        self.check_models()?;
        self.check_images()?;
        self.check_log()?;
        if t.tables == Tables::None {
            self.check_leaf()?;
            let technique = [
                (t.mirrors, "mirrors"),
                (t.adaptive_capacity, "adaptive_capacity"),
                (t.combining, "combining"),
            ];
            if let Some((_, name)) = technique.iter().find(|(on, _)| *on) {
                return Err(Error::invalid(format!("{name} is true, and tables is none")));
            }
        } else if self.neighbourhood != 0 {
            return Err(Error::invalid(format!(
                "neighbourhood is {}; leaves with tables have none, 0",
                self.neighbourhood
            )));
        } else if ![32, 64, 128].contains(&self.leaf_capacity) {
            return Err(Error::invalid(format!(
                "leaf_capacity is {}; it must be 32, 64 or 128",
                self.leaf_capacity
            )));
        }
        if self.timeout_ms == 0 {
            return Err(Error::invalid("timeout_ms is 0; every wait needs some time, 1 at least"));
        }
        Ok(())
    }

    /// The images of leaves.
    fn check_images(&self) -> dmtree_fabric::Result<()> {
        if !(0.0..=1.0).contains(&self.images) {
            return Err(Error::invalid(format!("images is {}; it must be 0 to 1", self.images)));
        }
        if self.images > 0.0 && self.techniques.tables != Tables::Compute {
            return Err(Error::invalid(format!(
                "images is {}; leaves without tables on compute nodes have none, 0",
                self.images
            )));
        }
        if self.images > 0.0 && self.cell_bytes().is_none() {
            return Err(Error::invalid(format!(
                "images is {}; a leaf of {} bytes has none, 0: {} bytes at most have one",
                self.images,
                self.geometry().leaf_image(self.leaf_capacity as usize),
                (usize::from(u8::MAX) - usize::from(table::lines(self.leaf_capacity as usize)))
                    * 64
            )));
        }
        Ok(())
    }

    /// The log of writes to leaves with images.
    fn check_log(&self) -> dmtree_fabric::Result<()> {
        let (kib, groups, layout) = (self.log_kib, self.log_groups, Layout::of(self));
        if kib > 0 && self.images <= 0.0 {
            return Err(Error::invalid(format!(
                "log_kib is {kib}; an index without images has no log, 0"
            )));
        }
        if kib > 0 && layout.segment < LEAST_RECORDS * layout.record as u64 {
            let least = (layout.least_bytes() * u64::from(groups)).div_ceil(1024);
            return Err(Error::invalid(format!(
                "log_kib is {kib}; {groups} groups with entries of {} bytes need {least} at least",
                self.geometry().entry()
            )));
        }
        match self.log_past {
            Some(past) if !(0.0..=1.0).contains(&past) => {
                Err(Error::invalid(format!("log_past is {past}; it must be 0 to 1")))
            }
            Some(past) if kib == 0 => {
                Err(Error::invalid(format!("log_past is {past}; an index without a log has none")))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of a cell with an image of a new leaf; `None` when such a leaf is too large.
    pub(crate) fn cell_bytes(&self) -> Option<u64> {
        let capacity = self.leaf_capacity as usize;
        let image = self.geometry().leaf_image(capacity);
        table::imaged_lines(capacity, image).map(|lines| u64::from(lines) * 64)
    }

    /// The smallest cache budget: one inner node with the mirrors of small leaves, and one image
    /// where there are any.
    pub(crate) fn least_cache_bytes(&self) -> u64 {
        let least = DmNode::least_cache_bytes(&self.geometry());
        match self.cell_bytes().filter(|_| self.images > 0.0) {
            None => least,
            Some(cell) => ((cell as f64 / self.images).ceil() as u64).max(least + cell),
        }
    }

    /// The part of a cache budget that is for images.
    pub(crate) fn image_bytes(&self, cache_bytes: u64) -> u64 {
        let least = DmNode::least_cache_bytes(&self.geometry());
        ((cache_bytes as f64 * self.images) as u64).min(cache_bytes.saturating_sub(least))
    }

    /// The models of an index without tables.
    fn check_models(&self) -> dmtree_fabric::Result<()> {
        let t = &self.techniques;
        if t.models == Models::None {
            return Ok(());
        }
        if t.tables != Tables::None || self.neighbourhood != 0 {
            return Err(Error::invalid(
                "models are given; they need tables none and neighbourhood 0",
            ));
        }
        let window = most_leaves(t.error_bound, self.leaf_capacity.max(1));
        if window > MAX_WINDOW {
            return Err(Error::invalid(format!(
                "error_bound is {}; with a leaf_capacity of {} a search reads {window} leaves, and {MAX_WINDOW} at most are allowed",
                t.error_bound, self.leaf_capacity
            )));
        }
        Ok(())
    }

    /// The leaves of an index without tables.
    fn check_leaf(&self) -> dmtree_fabric::Result<()> {
        let h = self.neighbourhood;
        if h == 0 {
            return check_range("leaf_capacity", self.leaf_capacity.into(), 4, MAX_SLOTS as u64);
        }
        check_range("neighbourhood", h.into(), 2, 16)?;
        // The slots behind the last home, and a replica for every neighbourhood.
        let most = MAX_SLOTS as u32 * h / (h + 1) - (h - 1);
        check_range("leaf_capacity", self.leaf_capacity.into(), (2 * h).into(), most.into())
    }

    /// A layout for a test, as `below(n)` draws it from 0 to `n - 1`: small nodes, keys and values
    /// inline or not. With `switches`, techniques are drawn too in half of the cases; otherwise
    /// they stay as they are here.
    #[must_use]
    pub fn drawn(&self, switches: bool, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u32]| choices[below(choices.len() as u64) as usize];
        let mut o = Self {
            fanout: of(&[8, 8, 16, 32]),
            leaf_capacity: of(&[32, 32, 64]),
            key_inline_bytes: of(&[24, 8, 40]),
            value_inline_bytes: of(&[8, 8, 64]),
            ..self.clone()
        };
        if self.techniques.tables == Tables::None {
            o.leaf_capacity = of(&[6, 8, 27, 32]);
            o.techniques.locks = of(&[1, 16, 16, 1024]);
        }
        if self.techniques.models != Models::None {
            let t = &mut o.techniques;
            t.error_bound = of(&[1, 4, 8, 8]);
            t.page_leaves = of(&[2, 4, 16, 512]);
            t.retrain_after = match self.techniques.retrain_after {
                0 => 0,
                _ => of(&[1, 2, 8]),
            };
        }
        if self.neighbourhood > 0 {
            o.neighbourhood = of(&[2, 4, 8]);
            o.leaf_capacity = of(&[2 * o.neighbourhood, 16, 32]).max(2 * o.neighbourhood);
        }
        if self.images > 0.0 && of(&[0, 1]) == 1 {
            // A few images, in a large cache.
            o.images = 0.01;
        }
        if self.log_kib > 0 {
            o.log_groups = of(&[1, 2]);
            // The smallest, which is full after some writes, and a larger one.
            o.log_kib = (Layout::of(&o).least_bytes() as u32 * o.log_groups).div_ceil(1024)
                * of(&[1, 4, 16]);
            o.log_past = [None, Some(0.5), Some(1.0)][of(&[0, 1, 2]) as usize];
        }
        let mut coin = || of(&[0, 1]) == 1;
        if switches && coin() {
            let t = &mut o.techniques;
            t.mirrors = coin();
            t.tables = match coin() || self.images > 0.0 {
                true => Tables::Compute,
                false => Tables::Memory,
            };
            t.delegation = coin();
            t.combining = coin();
            t.adaptive_capacity = coin();
            t.round_trip_combining = coin();
        }
        o
    }
}

/// Most leaves that a search READs together.
const MAX_WINDOW: u32 = 64;

/// Leaves of the widest window with this error bound.
fn most_leaves(error_bound: u32, leaf_capacity: u32) -> u32 {
    2 + (2 * error_bound - 1) / leaf_capacity
}

/// The ranges of the numbers that no other option bounds.
pub(crate) const RANGES: &[Range] = &[
    range("key_inline_bytes", 8, 256, 8),
    range("value_inline_bytes", 0, 1024, 8),
    range("fanout", 8, 64, 1),
    range("locks", 1, 1 << 20, 1),
    range("error_bound", 1, 4096, 1),
    range("page_leaves", 1, 1 << 12, 1),
    range("log_groups", 1, 64, 1),
];

const fn range(name: &'static str, low: u64, high: u64, step: u64) -> Range {
    Range { name, bounds: (low, high), step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        assert!(Options::default().check().is_ok());
        let bad = Options { key_inline_bytes: 12, ..Options::default() };
        assert!(bad.check().expect_err("not a multiple").to_string().contains("multiple of 8"));
        let bad = Options { leaf_capacity: 48, ..Options::default() };
        assert!(bad.check().expect_err("unknown").to_string().contains("leaf_capacity is 48"));
        let none = Options::default().without_tables();
        assert!(Options { leaf_capacity: 27, ..none.clone() }.check().is_ok());
        let techniques = Techniques { mirrors: true, ..none.techniques.clone() };
        let bad = Options { techniques, ..none.clone() };
        assert!(bad.check().expect_err("of what").to_string().contains("mirrors is true"));
        for (neighbourhood, leaf_capacity, words) in [
            (1, 32, "neighbourhood is 1; it must be 2 to 16"),
            (17, 64, "neighbourhood is 17; it must be 2 to 16"),
            (8, 15, "leaf_capacity is 15; it must be 16 to 106"),
            (8, 107, "leaf_capacity is 107; it must be 16 to 106"),
        ] {
            let bad = Options { neighbourhood, leaf_capacity, ..none.clone() };
            assert_eq!(bad.check().expect_err(words).to_string(), words);
        }
        for (neighbourhood, leaf_capacity) in [(2, 84), (8, 106), (16, 105)] {
            let o = Options { neighbourhood, leaf_capacity, ..none.clone() };
            assert!(o.check().is_ok() && o.capacities()[0] == 128);
        }
        for (bound, slots, words) in [
            (0, 8, "error_bound is 0; it must be 1 to 4096"),
            (4097, 8, "error_bound is 4097; it must be 1 to 4096"),
            (
                253,
                8,
                "error_bound is 253; with a leaf_capacity of 8 a search reads 65 leaves, and 64 at most are allowed",
            ),
            (8, 3, "leaf_capacity is 3; it must be 4 to 128"),
            (8, 129, "leaf_capacity is 129; it must be 4 to 128"),
        ] {
            let t = none.techniques.clone();
            let techniques = Techniques { models: Models::Window, error_bound: bound, ..t };
            let bad = Options { techniques, leaf_capacity: slots, ..none.clone() };
            assert_eq!(bad.check().expect_err(words).to_string(), words);
        }
        let techniques = Techniques { models: Models::Window, ..Techniques::default() };
        let bad = Options { techniques, ..Options::default() };
        assert!(bad.check().expect_err("tables").to_string().contains("models are given"));
        for (images, words) in [
            (-0.1, "images is -0.1; it must be 0 to 1"),
            (1.5, "images is 1.5; it must be 0 to 1"),
            (f64::NAN, "images is NaN; it must be 0 to 1"),
        ] {
            let bad = Options { images, ..Options::default() };
            assert_eq!(bad.check().expect_err(words).to_string(), words);
        }
        let logged = Options { images: 0.5, log_kib: 1024, ..Options::default() };
        for (past, log_kib, words) in [
            (1.5, 1024, "log_past is 1.5; it must be 0 to 1"),
            (f64::NAN, 1024, "log_past is NaN; it must be 0 to 1"),
            (0.5, 0, "log_past is 0.5; an index without a log has none"),
        ] {
            let bad = Options { log_past: Some(past), log_kib, ..logged.clone() };
            assert_eq!(bad.check().expect_err(words).to_string(), words);
        }
        let bad = Options { images: 0.5, ..none.clone() };
        assert!(
            bad.check().expect_err("no tables").to_string().contains("tables on compute nodes")
        );
        let bad = Options { images: 0.5, value_inline_bytes: 1024, ..Options::default() };
        assert!(bad.check().expect_err("large").to_string().contains("16256 bytes at most"));
        let bad = Options { neighbourhood: 8, ..Options::default() };
        assert!(bad.check().expect_err("tables").to_string().contains("neighbourhood is 8"));
    }
}
