//! Indexes by name: an index is formatted while its name is being created, and is ready for others
//! afterwards.

use dmtree_fabric::{Endpoint, Result};
use dmtree_pool::{Creation, IndexEntry, Opening};

use crate::contract::{NodeContext, RangeIndex, Root};

/// The index to create.
#[derive(Clone, Copy, Debug)]
pub struct IndexRequest<'a, O> {
    /// Its name.
    pub name: &'a str,
    /// The kind of index.
    pub system: &'a str,
    /// Its options.
    pub options: &'a O,
    /// The options as the catalog keeps them.
    pub encoded: &'a [u8],
}

/// Creates an index that does not exist yet.
///
/// # Errors
/// `Exists`; those of [`RangeIndex::check_options`] and [`RangeIndex::format`], after which the
/// name is free.
pub async fn create<I: RangeIndex>(
    ep: &Endpoint,
    cx: &NodeContext,
    request: IndexRequest<'_, I::Options>,
) -> Result<IndexEntry> {
    I::check_options(request.options, cx)?;
    let IndexRequest { name, system, encoded, .. } = request;
    let begun = cx.pool.begin_index(ep, name, system, encoded).await?;
    finish::<I>(ep, cx, request.options, begun).await
}

/// The index of a name, created if there is none; one that another node is creating is waited for.
/// Whether the options fit an index that exists is the caller's business.
///
/// # Errors
/// As [`create`], but for `Exists`; `Busy` when another creation takes too long.
pub async fn open_or_create<I: RangeIndex>(
    ep: &Endpoint,
    cx: &NodeContext,
    request: IndexRequest<'_, I::Options>,
) -> Result<IndexEntry> {
    I::check_options(request.options, cx)?;
    let IndexRequest { name, system, encoded, .. } = request;
    match cx.pool.open_or_begin_index(ep, name, system, encoded).await? {
        Opening::Ready(entry) => Ok(entry),
        Opening::Begun(begun) => finish::<I>(ep, cx, request.options, begun).await,
    }
}

async fn finish<I: RangeIndex>(
    ep: &Endpoint,
    cx: &NodeContext,
    options: &I::Options,
    begun: Creation,
) -> Result<IndexEntry> {
    let entry = begun.entry();
    let root = Root { index: entry.id, word: entry.root_word };
    match I::format(ep, cx, options, root).await {
        Ok(()) => begun.publish().await,
        Err(e) => {
            let what = format!("create index {:?}", entry.name);
            // The first error is the one to report.
            let _ = begun.abandon().await;
            Err(e.context(what))
        }
    }
}
