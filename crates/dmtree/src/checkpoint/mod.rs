//! Checkpoints: everything that a pool has at one cut, as files.
//!
//! ```text
//! DIR/index-0-shard-0-0.parquet    pairs of the first index, in key order: of a shard of its
//! DIR/index-0-shard-0-1.parquet    journal, in several files when they are many
//! DIR/MANIFEST.json                what the files are (`manifest.rs`)
//! ```
//!
//! - *A cut is closed*: with a write it has every write that was acknowledged before that one was
//!   called, over all keys and indexes (`dmtree_journal::Cut`), also when the journal has parts.
//!   These are read as one, so that a file may have keys of all of them.
//! - *The manifest comes last*, when every file is on the device under its name. A directory
//!   without it is no checkpoint, whatever else it has.
//! - *Nothing is restored of a checkpoint with anything wrong.* Sizes and hashes of all files are
//!   checked before the pool changes, then every row is.
//! - *An index appears whole.* Restored indexes are filled while nothing can open them
//!   (`filled.rs`), and published together when the last one is complete.

#[cfg(feature = "cloud")]
mod cloud;
#[cfg(not(feature = "cloud"))]
#[path = "no_cloud.rs"]
mod cloud;
mod manifest;
mod restore;
mod series;
mod write;

use std::path::Path;

use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_journal::Cut;

use crate::Pool;
use crate::durable::{Durable, DurableIndexes};
use cloud::Place;
use manifest::{MANIFEST, Manifest, corrupt};
pub use series::{CheckpointSeries, WrittenCheckpoint};

/// What a checkpoint has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointSize {
    /// Indexes.
    pub indexes: usize,
    /// Pairs of all indexes.
    pub pairs: u64,
    /// Bytes of all files but the manifest.
    pub file_bytes: u64,
}

/// Whether a writer has its place to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// It takes the place first.
    IsDue,
    /// It has.
    IsTaken,
}

impl Pool {
    /// Writes a checkpoint: what the pool has at one instant, over all indexes, while others write.
    /// With a write it has every write that was acknowledged before that one was called. The
    /// directory is new or empty, and is a checkpoint when `MANIFEST.json` is in it. With the
    /// feature `cloud` it may be `s3://BUCKET/PATH`: credentials, region and endpoint come from
    /// the environment, as for the AWS tools.
    ///
    /// # Errors
    /// `Unsupported` for a pool that is not durable, which has no cut: export its indexes; and
    /// without the feature `parquet`. `Exists` for a directory that has files, `Full` when the
    /// device is full, `InvalidArgument` when it cannot be written.
    pub fn checkpoint(&self, to: impl AsRef<Path>) -> Result<CheckpointSize> {
        self.write_checkpoint(to.as_ref(), Claim::IsDue)
    }

    fn write_checkpoint(&self, to: &Path, claim: Claim) -> Result<CheckpointSize> {
        let durable = self.inner().durable.as_ref().ok_or_else(|| {
            Error::unsupported(
                "the pool is not durable, so that there is no instant to write down: open it with \
                 `durable`, or export its indexes",
            )
        })?;
        let memory_bytes = self.stats()?.total_bytes();
        write(|| self.whole_cut(durable), Some(memory_bytes), (to, claim))
    }

    /// A cut of a journal that lacks nothing. Writes skip a part only when the membership says that
    /// it has a gap: so there is none in a cut when its state is the same before and after.
    fn whole_cut(&self, durable: &DurableIndexes) -> Result<Box<dyn Cut>> {
        let before = self.inner().journal_nodes()?;
        if let Some(m) = before.iter().find(|m| m.gap) {
            return Err(Error::busy(format!(
                "part {0} of the journal lacks acknowledged writes: `dmtree journal refill {0}` \
                 writes them",
                m.member.node.index()
            )));
        }
        let cut = durable.cut()?;
        match self.inner().journal_nodes()? == before {
            true => Ok(cut),
            false => Err(Error::busy("a journal node has come or gone: try again")),
        }
    }

    /// Loads everything that a checkpoint has into this pool, which is empty. Indexes appear
    /// together, when all of them are whole. What a restore that was killed has left is no obstacle
    /// for the same again.
    ///
    /// # Errors
    /// `NotFound` for a directory without a manifest, `Incompatible` for one of another format,
    /// `Corrupt` for files that are missing, or of another size or content than the manifest says:
    /// nothing has changed then. `Exists` for a pool that is not empty. `Full`, with the size that
    /// is needed, when the memory is too small.
    pub fn restore(&self, from: impl AsRef<Path>) -> Result<CheckpointSize> {
        let from = from.as_ref();
        let restored = match cloud::is_place(from) {
            false => restore::restore(self, from),
            true => fetch(from).and_then(|place| restore::restore(self, place.spool())),
        };
        restored.map_err(|e| named(from, e))
    }
}

/// Writes a checkpoint of a durable pool that no process has open, from its directory: without the
/// memory that the pool takes.
///
/// # Errors
/// Those of [`Pool::checkpoint`]; `Busy` for a directory that a process has open, `NotFound` when
/// there is none, those of [`PoolBuilder::durable`](crate::PoolBuilder::durable) for one that is no
/// pool's.
pub fn checkpoint_of(durable: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<CheckpointSize> {
    let (durable, to) = (durable.as_ref(), to.as_ref());
    if !durable.exists() {
        let what = format!("{}: there is no such directory", durable.display());
        return Err(Error::not_found(what));
    }
    let journal = Durable::new(durable.to_owned()).open()?;
    write(|| journal.cut(), None, (to, Claim::IsDue))
}

/// Writes to a directory, or to a place in an object store.
fn write(
    cut: impl Fn() -> Result<Box<dyn Cut>>,
    memory_bytes: Option<u64>,
    (to, claim): (&Path, Claim),
) -> Result<CheckpointSize> {
    let written = match cloud::is_place(to) {
        false => cut().and_then(|cut| write::write(&*cut, memory_bytes, to)),
        true => Place::open(to).and_then(|place| {
            if claim == Claim::IsDue {
                place.claim()?;
            }
            let write = || {
                let written = write::write(&*cut()?, memory_bytes, place.spool())?;
                place.put(&written.files())?;
                Ok(written)
            };
            write().inspect_err(|_| place.give_up())
        }),
    };
    written.map(|manifest| manifest.size()).map_err(|e| named(to, e))
}

/// The files of a checkpoint in an object store.
fn fetch(from: &Path) -> Result<Place> {
    let place = Place::open(from)?;
    place.get(MANIFEST).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::not_found(format!(
            "it has no {MANIFEST}: it is no checkpoint, or one that was not finished"
        )),
        _ => e,
    })?;
    let manifest = Manifest::parse(place.spool())?.0;
    for file in manifest.files() {
        place.get(file).map_err(|e| match e.kind() {
            ErrorKind::NotFound => corrupt(file, "it is missing"),
            _ => e,
        })?;
    }
    Ok(place)
}

fn named(at: &Path, e: Error) -> Error {
    e.context(format!("checkpoint {}", at.display()))
}
