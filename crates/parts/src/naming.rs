//! Indexes by name: an index is formatted while its name is being created, and is ready for others
//! afterwards.

use dmtree_fabric::{Endpoint, Result};
use dmtree_pool::{Creation, IndexEntry, NewIndex, Opening};

use crate::any::Running;
use crate::contract::{NodeContext, RangeIndex, Root};

/// What an index is created with: its type and its options.
pub trait Creates {
    /// As [`RangeIndex::check_options`].
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn check_for(&self, cx: &NodeContext) -> Result<()>;

    /// As [`RangeIndex::format`].
    fn format<'a>(&'a self, ep: &'a Endpoint, cx: &'a NodeContext, root: Root) -> Running<'a, ()>;
}

/// Options of an index of this type.
#[derive(Debug)]
pub struct OptionsOf<'o, I: RangeIndex>(pub &'o I::Options);

impl<I: RangeIndex> Creates for OptionsOf<'_, I> {
    fn check_for(&self, cx: &NodeContext) -> Result<()> {
        I::check_options(self.0, cx)
    }

    fn format<'a>(&'a self, ep: &'a Endpoint, cx: &'a NodeContext, root: Root) -> Running<'a, ()> {
        Box::pin(I::format(ep, cx, self.0, root))
    }
}

/// Creates an index that does not exist yet, with these options, which `new` has encoded.
///
/// # Errors
/// As [`begin`].
pub async fn create(
    ep: &Endpoint,
    cx: &NodeContext,
    new: NewIndex<'_>,
    options: &impl Creates,
) -> Result<IndexEntry> {
    begin(ep, cx, new, options).await?.publish().await
}

/// As [`create`], for an index that has something to be done before others can open it: it is
/// formatted, and its creator can use it.
///
/// # Errors
/// `Exists`; those of [`Creates::check_for`] and [`Creates::format`], after which the
/// name is free.
pub async fn begin(
    ep: &Endpoint,
    cx: &NodeContext,
    new: NewIndex<'_>,
    options: &impl Creates,
) -> Result<Creation> {
    options.check_for(cx)?;
    let begun = cx.pool.creations().begin_index(ep, new).await?;
    format(ep, cx, options, begun).await
}

/// The index of a name, created if there is none; one that another node is creating is waited for.
/// Whether the options fit an index that exists is the caller's business.
///
/// # Errors
/// As [`begin`], but for `Exists`; `Busy` when another creation takes too long.
pub async fn open_or_create(
    ep: &Endpoint,
    cx: &NodeContext,
    new: NewIndex<'_>,
    options: &impl Creates,
) -> Result<IndexEntry> {
    match open_or_begin(ep, cx, new, options).await? {
        Opening::Ready(entry) => Ok(entry),
        Opening::Begun(begun) => begun.publish().await,
    }
}

/// As [`open_or_create`] and [`begin`].
///
/// # Errors
/// As [`open_or_create`].
pub async fn open_or_begin(
    ep: &Endpoint,
    cx: &NodeContext,
    new: NewIndex<'_>,
    options: &impl Creates,
) -> Result<Opening> {
    options.check_for(cx)?;
    match cx.pool.creations().open_or_begin_index(ep, new).await? {
        Opening::Begun(begun) => format(ep, cx, options, begun).await.map(Opening::Begun),
        ready => Ok(ready),
    }
}

async fn format(
    ep: &Endpoint,
    cx: &NodeContext,
    options: &impl Creates,
    begun: Creation,
) -> Result<Creation> {
    let entry = begun.entry();
    let root = Root { index: entry.id, word: entry.root_word };
    match options.format(ep, cx, root).await {
        Ok(()) => Ok(begun),
        Err(e) => {
            let what = format!("create index {:?}", entry.name);
            // The first error is the one to report.
            let _ = begun.abandon().await;
            Err(e.context(what))
        }
    }
}
