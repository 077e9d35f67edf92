//! The directory of a journal: what is in it, and that one process has it open.
//!
//! ```text
//! dmtree-journal.json    {"format":2,"engine":"fjall"}; of a journal node also which part it is
//! lock                   locked by the process that has the journal open; its number is in it
//! engine/                the engine's
//! staged                 records that the engine does not have yet (staging.rs)
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dmtree_fabric::net::ShardMark;
use dmtree_fabric::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

const MARK: &str = "dmtree-journal.json";
const LOCK: &str = "lock";
const ENGINE: &str = "engine";
const STAGED: &str = "staged";
const FORMAT: u32 = 2;
const LEAST_ROOM_BYTES: u64 = 32 << 20;
/// How often, and how long each time, the lock of a pool that ends is waited for.
const MOST_PAUSES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Serialize, Deserialize)]
struct Marked {
    format: u32,
    engine: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<ShardMark>,
}

/// A directory that this process has open.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    part: Mutex<Option<ShardMark>>,
    /// Unlocked when it is closed.
    _lock: File,
}

impl Directory {
    /// Opens one, or makes one of a directory that is empty or not there.
    pub(crate) fn open(path: &Path, engine: &str) -> Result<Self> {
        Self::begin(path, engine).map_err(|e| e.context(format!("journal {}", path.display())))
    }

    fn begin(path: &Path, engine: &str) -> Result<Self> {
        fs::create_dir_all(path).map_err(|e| Error::file("make the directory", &e))?;
        let marked = read_mark(path)?;
        if marked.is_none() {
            check_empty(path)?;
        }
        let lock = lock(path)?;
        let part = match marked {
            Some(marked) => {
                check_mark(&marked, engine)?;
                marked.part
            }
            None => {
                write_mark(path, engine, None).map_err(|e| Error::file("write to it", &e))?;
                None
            }
        };
        Ok(Self { path: path.to_owned(), part: Mutex::new(part), _lock: lock })
    }

    /// Which part of a pool's journal it is.
    pub(crate) fn part(&self) -> Option<ShardMark> {
        *self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it a part.
    pub(crate) fn set_part(&self, engine: &str, part: ShardMark) -> Result<()> {
        let written = write_mark(&self.path, engine, Some(part));
        written.map_err(|e| Error::file("write to it", &e))?;
        *self.part.lock().unwrap_or_else(PoisonError::into_inner) = Some(part);
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its device has no room for the files that an engine makes in one go.
    pub(crate) fn is_full(&self) -> bool {
        let space = rustix::fs::statvfs(&self.path);
        space.is_ok_and(|space| space.f_bavail * space.f_frsize < LEAST_ROOM_BYTES)
    }

    /// Where staged records are.
    pub(crate) fn staging(&self) -> PathBuf {
        self.path.join(STAGED)
    }

    /// Where the engine has its files.
    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join(ENGINE)
    }
}

fn read_mark(path: &Path) -> Result<Option<Marked>> {
    let text = match fs::read(path.join(MARK)) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::file("read it", &e)),
    };
    serde_json::from_slice(&text).map(Some).map_err(|e| {
        Error::corrupt(format!("{MARK} is damaged ({e}): is it the directory of a journal?"))
    })
}

/// What an interrupted first opening leaves does not count.
fn check_empty(path: &Path) -> Result<()> {
    for entry in fs::read_dir(path).map_err(|e| Error::file("read it", &e))? {
        let name = entry.map_err(|e| Error::file("read it", &e))?.file_name();
        if name != LOCK && *name != *temporary() {
            return Err(Error::invalid(format!(
                "it has {name:?} and is no journal: name an empty directory, or a new one"
            )));
        }
    }
    Ok(())
}

fn check_mark(marked: &Marked, engine: &str) -> Result<()> {
    if marked.format != FORMAT {
        return Err(Error::incompatible(format!(
            "it has format {}, and this release opens format {FORMAT}: export it with the release that wrote it",
            marked.format
        )));
    }
    if marked.engine != engine {
        return Err(Error::incompatible(format!(
            "it is written by {:?}, and this program has {engine:?}",
            marked.engine
        )));
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File> {
    let at = path.join(LOCK);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(at);
    let mut file = file.map_err(|e| Error::file("write to it", &e))?;
    for pauses in 0.. {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if pauses < MOST_PAUSES && is_own(path) => pause(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("process {} has it open: end that one first", owner(path)),
                ));
            }
            Err(TryLockError::Error(e)) => return Err(Error::file("lock it", &e)),
        }
    }
    let number = |file: &mut File| {
        file.set_len(0)?;
        writeln!(file, "{}", std::process::id())
    };
    number(&mut file).map_err(|e| Error::file("write to it", &e))?;
    Ok(file)
}

fn owner(path: &Path) -> String {
    let text = fs::read_to_string(path.join(LOCK)).unwrap_or_default();
    text.trim().to_owned()
}

/// Threads of a pool that this process has just dropped may still be ending.
fn is_own(path: &Path) -> bool {
    owner(path) == std::process::id().to_string()
}

#[expect(clippy::disallowed_methods, reason = "opening a journal blocks its thread")]
fn pause() {
    std::thread::sleep(PAUSE);
}

fn temporary() -> String {
    format!("{MARK}.new")
}

fn write_mark(path: &Path, engine: &str, part: Option<ShardMark>) -> io::Result<()> {
    let marked = Marked { format: FORMAT, engine: engine.to_owned(), part };
    let new = path.join(temporary());
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec(&marked)?)?;
    file.sync_all()?;
    fs::rename(new, path.join(MARK))?;
    File::open(path)?.sync_all()
}
