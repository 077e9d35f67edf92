//! Indexes by name: an index is formatted while its name is being created, and is ready for others
//! afterwards.

use dmtree_fabric::{Endpoint, Result};
use dmtree_pool::{Creation, IndexEntry, Opening};

use crate::any::AnyOptions;
use crate::contract::{NodeContext, Root};

/// The index to create.
#[derive(Clone, Copy, Debug)]
pub struct IndexRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// The kind of index.
    pub system: &'a str,
    /// Its options.
    pub options: &'a AnyOptions,
    /// The options as the catalog keeps them.
    pub encoded: &'a [u8],
}

/// Creates an index that does not exist yet.
///
/// # Errors
/// `Exists`; those of [`AnyOptions::check_for`] and [`AnyOptions::format`], after which the
/// name is free.
pub async fn create(
    ep: &Endpoint,
    cx: &NodeContext,
    request: IndexRequest<'_>,
) -> Result<IndexEntry> {
    request.options.check_for(cx)?;
    let IndexRequest { name, system, encoded, .. } = request;
    let begun = cx.pool.begin_index(ep, name, system, encoded).await?;
    finish(ep, cx, request.options, begun).await
}

/// The index of a name, created if there is none; one that another node is creating is waited for.
/// Whether the options fit an index that exists is the caller's business.
///
/// # Errors
/// As [`create`], but for `Exists`; `Busy` when another creation takes too long.
pub async fn open_or_create(
    ep: &Endpoint,
    cx: &NodeContext,
    request: IndexRequest<'_>,
) -> Result<IndexEntry> {
    request.options.check_for(cx)?;
    let IndexRequest { name, system, encoded, .. } = request;
    match cx.pool.open_or_begin_index(ep, name, system, encoded).await? {
        Opening::Ready(entry) => Ok(entry),
        Opening::Begun(begun) => finish(ep, cx, request.options, begun).await,
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
