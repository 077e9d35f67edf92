//! Indexes by name: an index is formatted while its name is being created, and is ready for others
//! afterwards.

use dmtree_fabric::{Endpoint, Result};
use dmtree_pool::{Creation, IndexEntry, NewIndex, Opening};

use crate::any::AnyOptions;
use crate::contract::{NodeContext, Root};

/// Creates an index that does not exist yet, with these options, which `new` has encoded.
///
/// # Errors
/// `Exists`; those of [`AnyOptions::check_for`] and [`AnyOptions::format`], after which the
/// name is free.
pub async fn create(
    ep: &Endpoint,
    cx: &NodeContext,
    new: NewIndex<'_>,
    options: &AnyOptions,
) -> Result<IndexEntry> {
    options.check_for(cx)?;
    let begun = cx.pool.begin_index(ep, new).await?;
    finish(ep, cx, options, begun).await
}

/// The index of a name, created if there is none; one that another node is creating is waited for.
/// Whether the options fit an index that exists is the caller's business.
///
/// # Errors
/// As [`create`], but for `Exists`; `Busy` when another creation takes too long.
pub async fn open_or_create(
    ep: &Endpoint,
    cx: &NodeContext,
    new: NewIndex<'_>,
    options: &AnyOptions,
) -> Result<IndexEntry> {
    options.check_for(cx)?;
    match cx.pool.open_or_begin_index(ep, new).await? {
        Opening::Ready(entry) => Ok(entry),
        Opening::Begun(begun) => finish(ep, cx, options, begun).await,
    }
}

async fn finish(
    ep: &Endpoint,
    cx: &NodeContext,
    options: &AnyOptions,
    begun: Creation,
) -> Result<IndexEntry> {
    let entry = begun.entry();
    let root = Root { index: entry.id, word: entry.root_word };
    match options.format(ep, cx, root).await {
        Ok(()) => begun.publish().await,
        Err(e) => {
            let what = format!("create index {:?}", entry.name);
            // The first error is the one to report.
            let _ = begun.abandon().await;
            Err(e.context(what))
        }
    }
}
