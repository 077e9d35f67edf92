//! A journal in a directory, by an engine (`engine.rs`).
//!
//! At the level `Process` an append is staged, and the committer moves it to the engine
//! (`staging.rs`). At the level `Sync` it goes to the engine, and the committer asks the device.
//! What changes indexes, and what reads, moves all staged records first.
//!
//! The engine's own rule is that a failed write or sync ends all writing. So does the journal's.
//! When the device was full the engine is opened again, once a second at most, until that succeeds:
//! what it had accepted is in its log, a record that was cut off is none, and what it had not taken
//! is staged. Any other failure lasts until the journal is opened again, because the system may
//! have forgotten what it could not write.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use dmtree_fabric::net::ShardMark;
use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Error, ErrorKind, Result};
use fjall::PersistMode;

use crate::committer::{Committer, Work};
use crate::directory::Directory;
use crate::engine::{Engine, Row, refused, rows, unknown};
use crate::staging::{Place, Staged, Staging};
use crate::{Cut, IndexNumber, Journal, KnownIndex, Level, Record, Ticket};

const ENGINE: &str = "fjall";
/// Between two tries to open the engine of a full device again.
const PAUSE: Duration = Duration::from_secs(1);

/// A journal in a directory.
pub struct DirectoryJournal {
    /// It ends first: what was appended is on the device then.
    committer: Committer,
    level: Level,
    /// When a full device was met, or the engine was last tried to be opened again; none while it
    /// works.
    met: Mutex<Option<Instant>>,
    store: Arc<Store>,
}

/// What sessions and the committer share.
struct Store {
    /// None when it could not be opened again.
    engine: RwLock<Option<Engine>>,
    /// At the level `Process`.
    staging: Option<Staging>,
    /// Held by what moves staged records, and by what opens the engine again.
    moving: Mutex<()>,
    /// It is unlocked last.
    directory: Directory,
}

impl fmt::Debug for DirectoryJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryJournal({}, {:?})", self.store.directory.path().display(), self.level)
    }
}

impl DirectoryJournal {
    /// Opens the journal of a directory; an empty directory, or one that is not there, becomes one.
    ///
    /// # Errors
    /// `InvalidArgument` for a part of a pool's journal, which is none by itself; those of
    /// [`DirectoryJournal::open_part`].
    pub fn open(path: &Path, level: Level) -> Result<Self> {
        let journal = Self::open_part(path, level)?;
        match journal.store.directory.part() {
            None => Ok(journal),
            Some(ShardMark { shard, shards, .. }) => Err(Error::invalid(format!(
                "journal {}: it is part {shard} of the {shards} of a pool's journal: start the \
                 pool with `dmtree journalnode`, or name another directory",
                path.display()
            ))),
        }
    }

    /// The same for a directory that is, or becomes, a part of a pool's journal.
    ///
    /// # Errors
    /// `Busy` when a process has it open, `Incompatible` for another format, `InvalidArgument` for
    /// a directory of something else and one that cannot be written, `Corrupt` for one that the
    /// engine cannot read.
    pub fn open_part(path: &Path, level: Level) -> Result<Self> {
        let directory = Directory::open(path, ENGINE)?;
        let context = |e: Error| e.context(format!("journal {}", path.display()));
        let engine = Engine::open(&directory)?;
        let staging = staged(&directory, &engine, level).map_err(context)?;
        let (engine, moving) = (RwLock::new(Some(engine)), Mutex::default());
        let store = Arc::new(Store { engine, staging, moving, directory });
        let (moves, syncs) = (store.clone(), store.clone());
        let work = Work {
            moves: Box::new(move || moves.move_many()),
            sync: Box::new(move || syncs.sync()),
        };
        let committer = Committer::start(level, work)?;
        Ok(Self { committer, level, met: Mutex::default(), store })
    }

    /// Which part of a pool's journal it is, if it is one.
    pub fn part(&self) -> Option<ShardMark> {
        self.store.directory.part()
    }

    /// Makes it a part of a pool's journal.
    ///
    /// # Errors
    /// `Full` and others of a file that cannot be written.
    pub fn set_part(&self, part: ShardMark) -> Result<()> {
        self.store.directory.set_part(ENGINE, part)
    }

    /// A call that changes the journal.
    fn change<T>(&self, change: impl FnOnce(&Engine) -> fjall::Result<T>) -> Result<T> {
        self.ready()?;
        self.move_all()?;
        self.store.with(|engine| change(engine).map_err(|e| self.fails(&e)))
    }

    fn fails(&self, e: &fjall::Error) -> Error {
        self.failed_with(refused(&self.store.directory, e))
    }

    fn failed_with(&self, e: Error) -> Error {
        self.committer.fail(&e);
        e
    }

    /// The engine has every append that has returned.
    fn move_all(&self) -> Result<()> {
        if self.store.is_all_moved() {
            return Ok(());
        }
        self.ready()?;
        self.store.move_all().map_err(|e| self.failed_with(e))
    }

    /// Stages records; waits for the engine where there is no room.
    fn stage(&self, staging: &Staging, index: IndexNumber, records: &[Record<'_>]) -> Result<()> {
        loop {
            match staging.append(index, records) {
                Staged::Done { calls } => {
                    if calls {
                        self.committer.call();
                    }
                    return Ok(());
                }
                Staged::NoRoom => {
                    self.store.move_some().map_err(|e| self.failed_with(e))?;
                }
                Staged::TooLong => {
                    return staging.alone(|| {
                        self.store.move_all().map_err(|e| self.failed_with(e))?;
                        self.engine_append(index, records, Some(PersistMode::Buffer))
                    });
                }
            }
        }
    }

    fn engine_append(
        &self,
        index: IndexNumber,
        records: &[Record<'_>],
        mode: Option<PersistMode>,
    ) -> Result<()> {
        self.store.with(|engine| {
            let keyspace = engine.keyspace(index)?;
            let appended = engine.append(keyspace, records);
            let handed =
                appended.and_then(|()| mode.map_or(Ok(()), |mode| engine.db.persist(mode)));
            handed.map_err(|e| self.fails(&e))
        })
    }

    /// Refuses when the journal has failed. When its device was full, it may have room now.
    fn ready(&self) -> Result<()> {
        let Err(e) = self.committer.check() else { return Ok(()) };
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = met.get_or_insert_with(now).elapsed() >= PAUSE;
        if e.kind() != ErrorKind::Full || !is_due {
            return Err(e);
        }
        *met = Some(now());
        let _moving = self.store.moving();
        let mut engine = self.store.engine.write().unwrap_or_else(PoisonError::into_inner);
        if self.committer.check().is_ok() {
            return Ok(());
        }
        // All handles go before the engine can be opened again.
        *engine = None;
        let again = Engine::open(&self.store.directory).and_then(|opened| {
            if let Some(staging) = &self.store.staging {
                staging.is_moved(opened.place()?);
            }
            Ok(opened)
        });
        *engine = Some(again.map_err(|again| e.context(again.to_string()))?);
        self.committer.restart();
        *met = None;
        Ok(())
    }
}

fn not_opened() -> Error {
    Error::full("the engine could not be opened again")
}

impl Store {
    /// Uses the engine.
    fn with<T>(&self, use_it: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        match &*self.engine.read().unwrap_or_else(PoisonError::into_inner) {
            Some(engine) => use_it(engine),
            None => Err(not_opened()),
        }
    }

    fn moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_all_moved(&self) -> bool {
        self.staging.as_ref().is_none_or(|staging| staging.moved() == staging.end())
    }

    /// Moves the next staged records, if there are any.
    fn move_some(&self) -> Result<()> {
        let Some(staging) = &self.staging else { return Ok(()) };
        let _moving = self.moving();
        let Some(moving) = staging.next() else { return Ok(()) };
        self.with(|engine| engine.take(&moving, &self.directory))?;
        staging.is_moved(moving.end);
        Ok(())
    }

    /// Moves all that were staged when this was called.
    fn move_all(&self) -> Result<()> {
        let Some(staging) = &self.staging else { return Ok(()) };
        let end = staging.end();
        while staging.moved() < end {
            self.move_some()?;
        }
        Ok(())
    }

    /// Moves until few are left.
    fn move_many(&self) -> Result<()> {
        let Some(staging) = &self.staging else { return Ok(()) };
        while staging.has_many() {
            self.move_some()?;
        }
        Ok(())
    }

    /// All that was appended is on the device.
    fn sync(&self) -> Result<()> {
        self.move_all()?;
        match &*self.engine.read().unwrap_or_else(PoisonError::into_inner) {
            Some(engine) => {
                let synced = engine.db.persist(PersistMode::SyncData);
                synced.map_err(|e| refused(&self.directory, &e))
            }
            None => Ok(()),
        }
    }
}

/// Moves what a former process has staged, and begins a generation at the level `Process`.
fn staged(directory: &Directory, engine: &Engine, level: Level) -> Result<Option<Staging>> {
    let path = directory.staging();
    let is_used = matches!(level, Level::Process { .. });
    if !is_used && !path.exists() {
        return Ok(None);
    }
    let staging = Staging::open(&path)?;
    let place = engine.place()?;
    staging.begin(place);
    while let Some(moving) = staging.next() {
        engine.take(&moving, directory)?;
        staging.is_moved(moving.end);
    }
    let begins = Place { generation: place.generation + 1, position: 0 };
    engine.begin(begins)?;
    staging.begin(begins);
    Ok(is_used.then_some(staging))
}

#[expect(clippy::disallowed_methods, reason = "a pause between two tries on a real device")]
fn now() -> Instant {
    Instant::now()
}

impl Journal for DirectoryJournal {
    fn append(&self, index: IndexNumber, records: &[Record<'_>]) -> Result<Ticket> {
        self.ready()?;
        match &self.store.staging {
            Some(staging) => {
                self.store.with(|engine| engine.keyspace(index).map(|_| ()))?;
                self.stage(staging, index, records)?;
            }
            None => self.engine_append(index, records, None)?,
        }
        Ok(self.committer.appended())
    }

    fn is_accepted(&self, ticket: Ticket) -> Result<bool> {
        self.committer.is_accepted(ticket)
    }

    fn news(&self) -> &WaitQueue {
        self.committer.news()
    }

    fn create(&self) -> Result<IndexNumber> {
        self.change_indexes(Engine::create)
    }

    fn create_numbered(&self, index: IndexNumber) -> Result<()> {
        self.change_indexes(|engine| engine.create_numbered(index))
    }

    fn name(&self, indexes: &[KnownIndex]) -> Result<()> {
        let known = self.store.with(|engine| rows(engine.indexes.iter()))?;
        self.change(|engine| {
            // What was appended to them comes before their names in the engine's log.
            let mut rows = engine.db.batch().durability(Some(PersistMode::SyncAll));
            for KnownIndex { number, name, options } in indexes {
                for (other, _) in known.iter().filter(|(other, row)| {
                    other != number && row.as_ref().is_some_and(|row| row.name == *name)
                }) {
                    rows.insert(&engine.indexes, other.0.to_be_bytes(), []);
                }
                let row = Row { name: name.clone(), options: options.clone() };
                let row = postcard::to_stdvec(&row).expect("plain fields have bytes");
                rows.insert(&engine.indexes, number.0.to_be_bytes(), row);
            }
            rows.commit()
        })
    }

    fn remove(&self, index: IndexNumber) -> Result<()> {
        let keyspace = self.change_indexes(|engine| Ok(engine.pairs.remove(&index)))?;
        let keyspace = keyspace.ok_or_else(|| unknown(index))?;
        self.change(|engine| {
            // The number stays: no other index may get it, or records of this one would be its.
            engine.indexes.insert(index.0.to_be_bytes(), [])?;
            engine.db.persist(PersistMode::SyncAll)?;
            engine.db.delete_keyspace(keyspace)
        })
    }

    fn clear(&self, index: IndexNumber) -> Result<()> {
        let keyspace = self.store.with(|engine| engine.keyspace(index).cloned())?;
        self.change(|engine| {
            keyspace.clear()?;
            engine.db.persist(PersistMode::Buffer)
        })
    }

    fn cut(&self) -> Result<Box<dyn Cut>> {
        self.move_all()?;
        Ok(Box::new(self.store.with(Engine::cut)?))
    }
}

impl DirectoryJournal {
    /// A change of the indexes that the engine has open.
    fn change_indexes<T>(&self, change: impl FnOnce(&mut Engine) -> fjall::Result<T>) -> Result<T> {
        self.ready()?;
        self.move_all()?;
        let mut engine = self.store.engine.write().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.as_mut() else { return Err(not_opened()) };
        change(engine).map_err(|e| self.fails(&e))
    }
}
