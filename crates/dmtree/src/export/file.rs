//! A file that appears when it is complete.
//!
//! It is written as `NAME.part` beside its place, under a lock of the system, so that two exports
//! do not write one file. The lock ends with the process; what a crash leaves of a file is written
//! over by the next export to it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dmtree_fabric::{Error, ErrorKind, Result};

use super::at;

/// Bytes that are written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// A file on its way.
pub(crate) struct WholeFile {
    file: Arc<File>,
    part: PathBuf,
    to: PathBuf,
    published: bool,
}

/// Writes to it.
pub(crate) struct Shared(Arc<File>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.0).flush()
    }
}

impl WholeFile {
    /// Begins one.
    pub(crate) fn create(to: &Path) -> Result<Self> {
        Self::begin(to).map_err(|e| at(to, e))
    }

    fn begin(to: &Path) -> Result<Self> {
        refuse_existing(to)?;
        let mut part = to.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let open = OpenOptions::new().write(true).create(true).truncate(false).open(&part);
        let file = open.map_err(|e| Error::file("write it", &e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "another export is writing it: wait for that one, or name another file",
                ));
            }
            Err(TryLockError::Error(e)) => return Err(Error::file("lock it", &e)),
        }
        let file = Self { file: Arc::new(file), part, to: to.to_owned(), published: false };
        // The other export may have ended between the two steps.
        refuse_existing(to)?;
        file.file.set_len(0).map_err(|e| Error::file("write it", &e))?;
        Ok(file)
    }

    pub(crate) fn writer(&self) -> BufWriter<Shared> {
        BufWriter::with_capacity(BUFFER_BYTES, Shared(self.file.clone()))
    }

    /// It is complete: its bytes are on the device before its name is there.
    pub(crate) fn publish(mut self) -> Result<()> {
        let place = || {
            self.file.sync_all()?;
            std::fs::rename(&self.part, &self.to)
        };
        place().map_err(|e| at(&self.to, Error::file("write it", &e)))?;
        self.published = true;
        Ok(())
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if !self.published {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

fn refuse_existing(to: &Path) -> Result<()> {
    match to.try_exists() {
        Ok(false) => Ok(()),
        Ok(true) => Err(Error::exists("it is there already: remove it, or name another file")),
        Err(e) => Err(Error::file("write it", &e)),
    }
}
