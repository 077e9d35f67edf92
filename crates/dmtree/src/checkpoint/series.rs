//! A series of checkpoints in one place, of which the last ones stay.
//!
//! ```text
//! PLACE/000016/MANIFEST.json ...    a checkpoint
//! PLACE/000017/...                  one that was not finished, or is being written
//! PLACE/000018/MANIFEST.json ...    the next
//! ```
//!
//! - *Numbers are given once.* A writer claims the number above all that are there, in a step of
//!   which one of two writers fails; that one takes the next.
//! - *What stays is whole.* A checkpoint is removed when as many whole ones as are kept are above
//!   it, the unfinished ones with it. So a writer that ends early costs no whole checkpoint.
//! - *A removal begins with the manifest*, without which a directory is no checkpoint: one that is
//!   cut off leaves nothing that looks whole, and the next removal ends it.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use dmtree_fabric::{Error, ErrorKind, Result};

use super::cloud::{self, Store};
use super::manifest::MANIFEST;
use super::{CheckpointSize, Claim, named};
use crate::Pool;

/// Digits of a number in a name: names are in the order of numbers.
const DIGITS: usize = 6;
/// The largest number.
const LAST: u64 = 999_999;
/// How often a number is taken by another writer before one gives up.
const CLAIMS: usize = 8;

/// Numbered checkpoints in a directory, or below `s3://BUCKET/PATH`, of which the last ones stay.
#[derive(Clone, Debug)]
pub struct CheckpointSeries {
    place: PathBuf,
    keep: NonZeroUsize,
}

/// A checkpoint of a series that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrittenCheckpoint {
    /// Its directory or URL, for [`Pool::restore`].
    pub at: PathBuf,
    /// What it has.
    pub size: CheckpointSize,
    /// The ones that were removed for it, unfinished ones included.
    pub removed: Vec<PathBuf>,
}

/// What a series has under a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    number: u64,
    is_whole: bool,
}

impl CheckpointSeries {
    /// The series in a place, of which `keep` whole checkpoints stay.
    pub fn new(place: impl Into<PathBuf>, keep: NonZeroUsize) -> Self {
        Self { place: place.into(), keep }
    }

    /// Its whole checkpoints, the oldest first.
    ///
    /// # Errors
    /// `InvalidArgument` for a place that cannot be read, `Unreachable` for a store that does not
    /// answer.
    pub fn list(&self) -> Result<Vec<PathBuf>> {
        let entries = self.site()?.entries()?;
        let whole = entries.iter().filter(|entry| entry.is_whole);
        Ok(whole.map(|entry| self.at(entry.number)).collect())
    }

    /// Writes the next checkpoint, and then removes those that no longer stay.
    ///
    /// # Errors
    /// Those of [`Pool::checkpoint`]: nothing is removed then. `Busy` where other writers take one
    /// number after the other. An error of the removal, when the checkpoint is written.
    pub fn write(&self, pool: &Pool) -> Result<WrittenCheckpoint> {
        let site = self.site()?;
        let number = self.claim(&*site)?;
        let at = self.at(number);
        let size = pool.write_checkpoint(&at, Claim::IsTaken).inspect_err(|_| {
            // If it cannot be, it goes with the older ones of a later checkpoint.
            let _ = site.remove(number);
        })?;
        let removed = self.remove_old(&*site).map_err(|e| {
            e.context(format!("{} is written, and older ones could not be removed", at.display()))
        })?;
        Ok(WrittenCheckpoint { at, size, removed })
    }

    fn at(&self, number: u64) -> PathBuf {
        self.place.join(name(number))
    }

    fn site(&self) -> Result<Box<dyn Site>> {
        let site: Result<Box<dyn Site>> = match cloud::is_place(&self.place) {
            true => Store::open(&self.place).map(|store| Box::new(store) as Box<dyn Site>),
            false => Ok(Box::new(Directory(self.place.clone()))),
        };
        site.map_err(|e| named(&self.place, e))
    }

    fn claim(&self, site: &dyn Site) -> Result<u64> {
        let claim = || {
            for _ in 0..CLAIMS {
                let last = site.entries()?.last().map_or(0, |entry| entry.number);
                if last >= LAST {
                    return Err(Error::full(format!(
                        "{LAST} is the last number: name another place"
                    )));
                }
                if site.claim(last + 1)? {
                    return Ok(last + 1);
                }
            }
            Err(Error::busy("other writers take one number after the other: give each a place"))
        };
        claim().map_err(|e| named(&self.place, e))
    }

    fn remove_old(&self, site: &dyn Site) -> Result<Vec<PathBuf>> {
        let entries = site.entries()?;
        let whole = entries.iter().rev().filter(|entry| entry.is_whole);
        let Some(oldest) = whole.map(|entry| entry.number).nth(self.keep.get() - 1) else {
            return Ok(Vec::new());
        };
        let old = entries.iter().map(|entry| entry.number).take_while(|number| *number < oldest);
        let remove = |number| site.remove(number).map(|()| self.at(number));
        old.map(remove).collect()
    }
}

fn name(number: u64) -> String {
    format!("{number:0DIGITS$}")
}

/// The number of a name that this gives.
fn number(of: &str) -> Option<u64> {
    let number = of.parse().ok()?;
    (name(number) == of && of.len() == DIGITS && number > 0).then_some(number)
}

/// Where a series is.
trait Site {
    /// What is there, in the order of numbers. Other names are not looked at.
    fn entries(&self) -> Result<Vec<Entry>>;
    /// Takes a number; false when another writer has.
    fn claim(&self, number: u64) -> Result<bool>;
    /// Removes what is under a number, its manifest first.
    fn remove(&self, number: u64) -> Result<()>;
}

/// A directory with a directory for each number.
struct Directory(PathBuf);

impl Site for Directory {
    fn entries(&self) -> Result<Vec<Entry>> {
        let unread = |e: io::Error| Error::file("read the directory", &e);
        let found = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found.map_err(unread)?,
        };
        let mut entries = Vec::new();
        for entry in found {
            let entry = entry.map_err(unread)?;
            let Some(number) = entry.file_name().to_str().and_then(number) else { continue };
            entries.push(Entry { number, is_whole: entry.path().join(MANIFEST).exists() });
        }
        entries.sort_unstable_by_key(|entry| entry.number);
        Ok(entries)
    }

    fn claim(&self, number: u64) -> Result<bool> {
        let made =
            fs::create_dir_all(&self.0).and_then(|()| fs::create_dir(self.0.join(name(number))));
        match made {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(Error::file("make a directory", &e)),
        }
    }

    fn remove(&self, number: u64) -> Result<()> {
        let at = self.0.join(name(number));
        let removed = absent_is_removed(fs::remove_file(at.join(MANIFEST)))
            .and_then(|()| sync(&at))
            .and_then(|()| absent_is_removed(fs::remove_dir_all(&at)));
        removed.map_err(|e| Error::file(&format!("remove {}", at.display()), &e))
    }
}

/// Another process may remove the same.
fn absent_is_removed(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The order of removals is that of the device.
fn sync(directory: &Path) -> io::Result<()> {
    match fs::File::open(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened?.sync_all(),
    }
}

impl Site for Store {
    fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for number in self.folders()?.iter().filter_map(|folder| number(folder)) {
            let is_whole = self.has(&self.manifest(&name(number)))?;
            entries.push(Entry { number, is_whole });
        }
        entries.sort_unstable_by_key(|entry| entry.number);
        Ok(entries)
    }

    fn claim(&self, number: u64) -> Result<bool> {
        match Store::claim(self, &name(number)) {
            Err(e) if e.kind() == ErrorKind::Exists => Ok(false),
            claimed => claimed.map(|()| true),
        }
    }

    fn remove(&self, number: u64) -> Result<()> {
        Store::remove(self, &name(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers_and_back() {
        assert_eq!(name(17), "000017");
        for good in [1, 42, LAST] {
            assert_eq!(number(&name(good)), Some(good));
        }
        for bad in ["", "17", "0000017", "000000", "+00017", "00001a", "MANIFEST.json"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }
}
