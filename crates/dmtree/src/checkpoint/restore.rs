//! Loads a checkpoint into a pool that is empty.
//!
//! A row of the catalog marks a pool that is being restored, with the fingerprint of the manifest.
//! A restore that was killed leaves it, and some indexes: whole ones, because none is published
//! before all are filled. The same again takes those for done, and the row goes at the end.

use std::path::{Path, PathBuf};

use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_pool::IndexState;

use super::CheckpointSize;
use super::manifest::{Fingerprint, IndexFiles, Manifest, corrupt, damaged};
use crate::durable::{pair_bytes, too_small};
use crate::export::Merged;
use crate::feed::Feed;
use crate::filled::Unpublished;
use crate::{LoadOrder, Pool};

/// The name of the row that marks a pool, and the system that it names.
const MARK: &str = "(restore)";
const MARK_SYSTEM: &str = "dmtree-restore";

/// Restores.
pub(super) fn restore(pool: &Pool, from: &Path) -> Result<CheckpointSize> {
    let (manifest, fingerprint) = Manifest::read(from)?;
    let is_again = mark(pool, &fingerprint)?;
    let restored = fill_all(pool, from, &manifest, is_again).and_then(Unpublished::publish);
    if restored.is_ok() || !is_again {
        // Of a first try that fails nothing is left.
        pool.inner().remove_entry(MARK)?;
    }
    restored.map(|()| manifest.size())
}

/// Marks the pool, which must be empty. True when a restore of the same checkpoint has done so.
fn mark(pool: &Pool, fingerprint: &Fingerprint) -> Result<bool> {
    let there = pool.inner().entries()?;
    if let Some(mark) = there.iter().find(|entry| entry.system == MARK_SYSTEM) {
        if mark.options == fingerprint.0.as_bytes() {
            return Ok(true);
        }
        return Err(Error::exists(
            "another checkpoint was begun to be restored into the pool: restore that one, or found \
             the pool anew",
        ));
    }
    if let Some(first) = there.first() {
        let state = if first.state == IndexState::Ready { "" } else { ", which is being created" };
        return Err(Error::exists(format!(
            "the pool is not empty: it has the index {:?}{state}; restore into a new pool",
            first.name
        )));
    }
    pool.inner().add_entry(MARK, MARK_SYSTEM, fingerprint.0.as_bytes())?;
    Ok(false)
}

fn fill_all(
    pool: &Pool,
    from: &Path,
    manifest: &Manifest,
    is_again: bool,
) -> Result<Vec<Unpublished>> {
    let (mut filled, mut bytes) = (Vec::new(), 0);
    for index in &manifest.indexes {
        let what = |e: Error| e.context(format!("index {:?}", index.name));
        let begun = pool.inner().begin(&index.name, &index.options, is_again).map_err(what)?;
        let Some(new) = begun else { continue };
        fill(&new, from, index, &mut bytes).map_err(|e| match e.kind() {
            ErrorKind::Full => too_small(pool.inner(), bytes, manifest.load_bytes()),
            _ => what(e),
        })?;
        filled.push(new);
    }
    Ok(filled)
}

/// Loads an index; `bytes` counts what has been loaded.
fn fill(new: &Unpublished, from: &Path, index: &IndexFiles, bytes: &mut u64) -> Result<()> {
    if index.files.is_empty() {
        return Ok(());
    }
    let paths: Vec<PathBuf> = index.files.iter().map(|file| from.join(&file.file)).collect();
    let rows = index.files.iter().map(|file| file.rows).sum();
    let pairs = Merged::open(&paths).map_err(damaged)?.map(|pair| pair.map_err(damaged));
    let counted = pairs.inspect(|pair| {
        if let Ok((key, value)) = pair {
            *bytes += pair_bytes(key, value);
        }
    });
    let mut feed = Feed::new(counted, Some(rows));
    let loaded = new.index().session()?.load(&mut feed, LoadOrder::Sorted);
    let loaded = feed.ended(loaded)?.pairs;
    if loaded != rows {
        let what = format!("its files have {loaded} different keys, and should have {rows}");
        return Err(corrupt("MANIFEST.json", what));
    }
    Ok(())
}
