//! What a user chooses of an index.

use dmtree_fabric::{Error, Result};
use serde::{Deserialize, Serialize};

/// Layout of an index, and how long its operations wait. The layout is stored with the index and
/// cannot change later.
///
/// ```
/// let options = dmtree::Options::default().key_inline_bytes(32).timeout_ms(2_000);
/// assert_eq!(options.key_inline_bytes, 32);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Options {
    /// Bytes of a key kept inside its entry; longer keys go to blocks of their own. A multiple of
    /// 8, 8 to 256.
    pub key_inline_bytes: u32,
    /// Bytes of a value kept inside its entry; longer values go to blocks of their own. A multiple
    /// of 8, 0 to 1024.
    pub value_inline_bytes: u32,
    /// Slots of a new leaf: 32, 64 or 128.
    pub leaf_capacity: u32,
    /// Records of an inner node, 8 to 64.
    pub fanout: u32,
    /// Share of the cache of each compute node that is for images of leaves, 0 to 1; 0 by default.
    /// The compute node that keeps the table and the lock of a leaf keeps its image. Reads of such
    /// a leaf go there in place of a memory node, and where the node reads its own they cost no
    /// verb. Worth it in pools with busy memory nodes. The images lie in the memory that the pool
    /// gives compute nodes for tables: there are no more than fit there. In an embedded pool they
    /// cost instructions and save nothing.
    pub images: f64,
    /// KiB of memory that each compute node takes from each memory node for a log of its writes to
    /// leaves with images there; 0, the default, for none. A write is durable there before it is in
    /// its leaf, and writers that come together share one WRITE. After a death all logs are read,
    /// so a longer log means a longer pause then. Without maintenance a log fills up, and writes
    /// go to their leaves.
    pub log_kib: u32,
    /// Share of the leaves that are updated past a log with room, at the leaf itself, 0 to 1.
    /// `None`, the default: each compute node follows the loads of compute nodes and memory nodes.
    /// With 0 the log spares memory nodes as much as it can.
    pub log_past: Option<f64>,
    /// Longest wait of one operation for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self::of(&dmtree_engine::Options::default())
    }
}

impl Options {
    /// These, with another [`key_inline_bytes`](#structfield.key_inline_bytes).
    #[must_use]
    pub fn key_inline_bytes(self, key_inline_bytes: u32) -> Self {
        Self { key_inline_bytes, ..self }
    }

    /// These, with another [`value_inline_bytes`](#structfield.value_inline_bytes).
    #[must_use]
    pub fn value_inline_bytes(self, value_inline_bytes: u32) -> Self {
        Self { value_inline_bytes, ..self }
    }

    /// These, with another [`leaf_capacity`](#structfield.leaf_capacity).
    #[must_use]
    pub fn leaf_capacity(self, leaf_capacity: u32) -> Self {
        Self { leaf_capacity, ..self }
    }

    /// These, with another [`fanout`](#structfield.fanout).
    #[must_use]
    pub fn fanout(self, fanout: u32) -> Self {
        Self { fanout, ..self }
    }

    /// These, with another share of the cache for [`images`](#structfield.images).
    #[must_use]
    pub fn images(self, images: f64) -> Self {
        Self { images, ..self }
    }

    /// These, with another [`log_kib`](#structfield.log_kib).
    #[must_use]
    pub fn log_kib(self, log_kib: u32) -> Self {
        Self { log_kib, ..self }
    }

    /// These, with a fixed [`log_past`](#structfield.log_past).
    #[must_use]
    pub fn log_past(self, share: f64) -> Self {
        Self { log_past: Some(share), ..self }
    }

    /// These, with another [`timeout_ms`](#structfield.timeout_ms).
    #[must_use]
    pub fn timeout_ms(self, timeout_ms: u64) -> Self {
        Self { timeout_ms, ..self }
    }

    /// Those of an index.
    pub(crate) fn of(o: &dmtree_engine::Options) -> Self {
        Self {
            key_inline_bytes: o.key_inline_bytes,
            value_inline_bytes: o.value_inline_bytes,
            leaf_capacity: o.leaf_capacity,
            fanout: o.fanout,
            images: o.images,
            log_kib: o.log_kib,
            log_past: o.log_past,
            timeout_ms: o.timeout_ms,
        }
    }

    /// What the engine creates an index with: every technique is on.
    pub(crate) fn creation(&self) -> dmtree_engine::Options {
        dmtree_engine::Options {
            key_inline_bytes: self.key_inline_bytes,
            value_inline_bytes: self.value_inline_bytes,
            leaf_capacity: self.leaf_capacity,
            fanout: self.fanout,
            images: self.images,
            log_kib: self.log_kib,
            log_past: self.log_past,
            timeout_ms: self.timeout_ms,
            ..dmtree_engine::Options::default()
        }
    }

    /// Refuses to open an index of these options with another layout.
    pub(crate) fn check_layout(&self, name: &str, asked: &Self) -> Result<()> {
        let number = |name, of: fn(&Self) -> u32| (name, f64::from(of(self)), f64::from(of(asked)));
        let pairs = [
            number("key_inline_bytes", |o| o.key_inline_bytes),
            number("value_inline_bytes", |o| o.value_inline_bytes),
            number("leaf_capacity", |o| o.leaf_capacity),
            number("fanout", |o| o.fanout),
            ("images", self.images, asked.images),
            number("log_kib", |o| o.log_kib),
        ];
        match pairs.into_iter().find(|(_, has, wants)| has != wants) {
            None => Ok(()),
            Some((option, has, wants)) => Err(Error::incompatible(format!(
                "index {name:?} exists with {option} {has}, not {wants}: open it with that, or use another name"
            ))),
        }
    }
}
