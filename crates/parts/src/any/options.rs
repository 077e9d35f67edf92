//! Creation options of an index of any type, as JSON.

use std::ops::Deref;

use dmtree_fabric::{Capabilities, Endpoint, Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{AnyNode, Running};
use crate::contract::{NodeContext, OpSet, RangeIndex, Root};
use crate::naming::Creates;

/// A type of indexes; its options are JSON objects.
struct IndexType {
    ops: fn(&Value) -> OpSet,
    needs: Capabilities,
    pairs_per_leaf: u64,
    check: fn(&Value) -> Result<(), serde_json::Error>,
    carries: fn(&Value) -> Result<bool>,
    any_node: fn(&Value) -> Result<bool>,
    workers: fn(&Value) -> Result<u32>,
    check_options: fn(&Value, &NodeContext) -> Result<()>,
    format: for<'a> fn(&'a Endpoint, &'a NodeContext, &Value, Root) -> Running<'a, ()>,
    node: fn(&NodeContext, &Value, Root) -> Result<AnyNode>,
}

impl IndexType {
    const fn of<I: RangeIndex>() -> &'static Self {
        const {
            &Self {
                ops: |o| options_of::<I>(o).map_or(I::OPS, |o| I::ops(&o)),
                needs: I::NEEDS,
                pairs_per_leaf: I::PAIRS_PER_LEAF,
                check: |o| serde_json::from_value::<I::Options>(o.clone()).map(drop),
                carries: |o| Ok(I::carries(&options_of::<I>(o)?)),
                any_node: |o| Ok(I::any_node(&options_of::<I>(o)?)),
                workers: |o| Ok(I::workers(&options_of::<I>(o)?)),
                check_options: |o, cx| I::check_options(&options_of::<I>(o)?, cx),
                format: |ep, cx, o, root| {
                    let o = options_of::<I>(o);
                    Box::pin(async move { I::format(ep, cx, &o?, root).await })
                },
                node: |cx, o, root| Ok(AnyNode::of::<I>(I::node(cx, &options_of::<I>(o)?, root)?)),
            }
        }
    }
}

fn options_of<I: RangeIndex>(o: &Value) -> Result<I::Options> {
    let other = |e| Error::invalid(format!("options of another index: {e}"));
    serde_json::from_value(o.clone()).map_err(other)
}

/// The creation options of an index, with its type: as JSON, to which it derefs.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct AnyOptions {
    #[serde(skip)]
    index: &'static IndexType,
    value: Value,
}

dmtree_fabric::debug_line!(AnyOptions, it => "{}", it.value);

impl std::fmt::Display for AnyOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl PartialEq for AnyOptions {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Deref for AnyOptions {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

/// Makes options of a crate's index types convertible to [`AnyOptions`]: `Options => Index`. The
/// index is compiled where this stands.
#[macro_export]
macro_rules! any_options {
    ($($options:ty => $index:ty),*) => {$(
        impl From<&$options> for $crate::AnyOptions {
            #[inline(never)]
            fn from(options: &$options) -> Self {
                Self::of::<$index>(options)
            }
        }

        impl From<$options> for $crate::AnyOptions {
            fn from(options: $options) -> Self {
                Self::from(&options)
            }
        }
    )*};
}

impl From<&Self> for AnyOptions {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}

impl AnyOptions {
    /// Options of index type `I`; by [`any_options`](crate::any_options).
    #[doc(hidden)]
    pub fn of<I: RangeIndex>(options: &I::Options) -> Self {
        Self { index: IndexType::of::<I>(), value: value(options) }
    }

    /// The same with other options of this type.
    #[must_use]
    pub fn with(&self, options: Value) -> Self {
        Self { value: options, ..self.clone() }
    }

    /// The options themselves.
    ///
    /// # Panics
    /// When they are of another type.
    pub fn typed<O: DeserializeOwned>(&self) -> O {
        typed(&self.value)
    }

    /// The same, changed.
    #[must_use]
    pub fn changed<O: Serialize + DeserializeOwned>(&self, change: impl FnOnce(O) -> O) -> Self {
        self.with(value(&change(self.typed())))
    }

    /// As [`RangeIndex::ops`].
    pub fn ops(&self) -> OpSet {
        (self.index.ops)(&self.value)
    }

    /// As [`RangeIndex::NEEDS`].
    pub fn needs(&self) -> Capabilities {
        self.index.needs
    }

    /// As [`RangeIndex::PAIRS_PER_LEAF`].
    pub fn pairs_per_leaf(&self) -> u64 {
        self.index.pairs_per_leaf
    }

    /// Refuses what are no options of this type: an unknown field, a value of another type.
    ///
    /// # Errors
    /// The field.
    pub fn check(&self) -> Result<(), serde_json::Error> {
        (self.index.check)(&self.value)
    }

    /// As [`RangeIndex::carries`].
    pub fn carries(&self) -> Result<bool> {
        (self.index.carries)(&self.value)
    }

    /// As [`RangeIndex::any_node`].
    pub fn any_node(&self) -> Result<bool> {
        (self.index.any_node)(&self.value)
    }

    /// As [`RangeIndex::workers`].
    pub fn workers(&self) -> Result<u32> {
        (self.index.workers)(&self.value)
    }

    /// As [`RangeIndex::node`].
    pub fn node(&self, cx: &NodeContext, root: Root) -> Result<AnyNode> {
        (self.index.node)(cx, &self.value, root)
    }
}

impl Creates for AnyOptions {
    fn check_for(&self, cx: &NodeContext) -> Result<()> {
        (self.index.check_options)(&self.value, cx)
    }

    fn format<'a>(&'a self, ep: &'a Endpoint, cx: &'a NodeContext, root: Root) -> Running<'a, ()> {
        (self.index.format)(ep, cx, &self.value, root)
    }
}

/// Options as their JSON form.
pub fn value(options: &impl Serialize) -> Value {
    serde_json::to_value(options).unwrap_or_default()
}

/// Options from the JSON form that [`value`] gave.
///
/// # Panics
/// On the options of another index.
pub fn typed<O: DeserializeOwned>(options: &Value) -> O {
    serde_json::from_value(options.clone()).expect("options of this index")
}
