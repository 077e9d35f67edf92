//! A journal in a directory, by the engine fjall: a log and a log-structured tree.
//!
//! Each index is a keyspace of its own, `pairs-N`. The keyspace `indexes` has a row an index: its
//! number, name and options. A keyspace without a row is of an index without a name, or of one that
//! was being removed: opening the journal removes it.
//!
//! The engine's own rule is that a failed write or sync ends all writing. So does the journal's.
//! When the device was full the engine is opened again, once a second at most, until that succeeds:
//! what it had accepted is in its log, and a record that was cut off is none. Any other failure
//! lasts until the journal is opened again, because the system may have forgotten what it could not
//! write.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use dmtree_fabric::net::ShardMark;
use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Error, ErrorKind, Result};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use serde::{Deserialize, Serialize};

use crate::committer::Committer;
use crate::directory::Directory;
use crate::{Cut, IndexNumber, Journal, KnownIndex, Level, Pairs, Record, Ticket};

const ENGINE: &str = "fjall";
/// Between two tries to open the engine of a full device again.
const PAUSE: Duration = Duration::from_secs(1);
const INDEXES: &str = "indexes";
/// Cache of blocks: the journal is read when it is opened, and not otherwise.
const CACHE_BYTES: u64 = 8 << 20;
/// Memory of the pairs that are not in tables yet, per index.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Bytes of the log behind which tables are written.
const LOG_BYTES: u64 = 256 << 20;

/// A row of `indexes`.
#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    options: Vec<u8>,
}

/// A journal in a directory.
pub struct DirectoryJournal {
    /// It ends first: what was appended is on the device then.
    committer: Committer,
    level: Level,
    engine: Arc<RwLock<Option<Engine>>>,
    /// When a full device was met, or the engine was last tried to be opened again; none while it
    /// works.
    met: Mutex<Option<Instant>>,
    /// It is unlocked last.
    directory: Arc<Directory>,
}

/// The open engine; none when it could not be opened again.
struct Engine {
    db: Database,
    indexes: Keyspace,
    pairs: BTreeMap<IndexNumber, Keyspace>,
}

impl fmt::Debug for DirectoryJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryJournal({}, {:?})", self.directory.path().display(), self.level)
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
        match journal.directory.part() {
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
        let directory = Arc::new(Directory::open(path, ENGINE)?);
        let engine = Arc::new(RwLock::new(Some(Engine::open(&directory)?)));
        let (its, at) = (engine.clone(), directory.clone());
        let sync = move || match &*reading(&its) {
            Some(engine) => engine.db.persist(PersistMode::SyncData).map_err(|e| refused(&at, &e)),
            None => Ok(()),
        };
        let committer = Committer::start(level, Box::new(sync))?;
        Ok(Self { committer, level, engine, met: Mutex::default(), directory })
    }

    /// Which part of a pool's journal it is, if it is one.
    pub fn part(&self) -> Option<ShardMark> {
        self.directory.part()
    }

    /// Makes it a part of a pool's journal.
    ///
    /// # Errors
    /// `Full` and others of a file that cannot be written.
    pub fn set_part(&self, part: ShardMark) -> Result<()> {
        self.directory.set_part(ENGINE, part)
    }

    /// Uses the engine.
    fn with<T>(&self, use_it: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        match &*reading(&self.engine) {
            Some(engine) => use_it(engine),
            None => Err(not_opened()),
        }
    }

    /// A call that changes the journal.
    fn change<T>(&self, change: impl FnOnce(&Engine) -> fjall::Result<T>) -> Result<T> {
        self.ready()?;
        self.with(|engine| change(engine).map_err(|e| self.fails(&e)))
    }

    fn fails(&self, e: &fjall::Error) -> Error {
        let e = refused(&self.directory, e);
        self.committer.fail(&e);
        e
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
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        if self.committer.check().is_ok() {
            return Ok(());
        }
        // All handles go before the engine can be opened again.
        *engine = None;
        *engine =
            Some(Engine::open(&self.directory).map_err(|again| e.context(again.to_string()))?);
        self.committer.restart();
        *met = None;
        Ok(())
    }
}

/// Why the engine of a directory refuses a write or a sync.
fn refused(directory: &Directory, e: &fjall::Error) -> Error {
    let e = match e {
        // A thread of the engine has met an error, which the engine does not report.
        fjall::Error::Poisoned if directory.is_full() => {
            Error::full("the device is full").effect_unknown()
        }
        e => failed(e),
    };
    e.context(format!("journal {}", directory.path().display()))
}

fn not_opened() -> Error {
    Error::full("the engine could not be opened again")
}

fn reading(engine: &RwLock<Option<Engine>>) -> RwLockReadGuard<'_, Option<Engine>> {
    engine.read().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "a pause between two tries on a real device")]
fn now() -> Instant {
    Instant::now()
}

impl Journal for DirectoryJournal {
    fn append(&self, index: IndexNumber, records: &[Record<'_>]) -> Result<Ticket> {
        self.ready()?;
        self.with(|engine| {
            let keyspace = engine.keyspace(index)?;
            let appended = engine.append(keyspace, records).and_then(|()| match self.level {
                // Records that another session has handed over meanwhile are not handed over again.
                Level::Process { .. } => engine.db.persist(PersistMode::Buffer),
                Level::Sync => Ok(()),
            });
            appended.map_err(|e| self.fails(&e))
        })?;
        Ok(self.committer.appended())
    }

    fn is_accepted(&self, ticket: Ticket) -> Result<bool> {
        self.committer.is_accepted(ticket)
    }

    fn news(&self) -> &WaitQueue {
        self.committer.news()
    }

    fn create(&self) -> Result<IndexNumber> {
        self.ready()?;
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.as_mut() else { return Err(not_opened()) };
        engine.create().map_err(|e| self.fails(&e))
    }

    fn create_numbered(&self, index: IndexNumber) -> Result<()> {
        self.ready()?;
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = engine.as_mut() else { return Err(not_opened()) };
        engine.create_numbered(index).map_err(|e| self.fails(&e))
    }

    fn name(&self, indexes: &[KnownIndex]) -> Result<()> {
        let known = self.with(|engine| rows(engine.indexes.iter()))?;
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
        let keyspace = self.change_pairs(|pairs| pairs.remove(&index)).flatten();
        let keyspace = keyspace.ok_or_else(|| unknown(index))?;
        self.change(|engine| {
            // The number stays: no other index may get it, or records of this one would be its.
            engine.indexes.insert(index.0.to_be_bytes(), [])?;
            engine.db.persist(PersistMode::SyncAll)?;
            engine.db.delete_keyspace(keyspace)
        })
    }

    fn clear(&self, index: IndexNumber) -> Result<()> {
        let keyspace = self.with(|engine| engine.keyspace(index).cloned())?;
        self.change(|engine| {
            keyspace.clear()?;
            engine.db.persist(PersistMode::Buffer)
        })
    }

    fn cut(&self) -> Result<Box<dyn Cut>> {
        // An index that is being created or removed meanwhile has no keyspace here, or no row.
        let (snapshot, rows, keyspaces) = self.with(|engine| {
            let snapshot = engine.db.snapshot();
            let rows = rows(snapshot.iter(&engine.indexes))?;
            Ok((snapshot, rows, engine.pairs.clone()))
        })?;
        let known = |(number, row): (_, Option<Row>)| {
            let Row { name, options } = row?;
            keyspaces.contains_key(&number).then_some(KnownIndex { number, name, options })
        };
        let indexes = rows.into_iter().filter_map(known).collect();
        Ok(Box::new(EngineCut { snapshot, indexes, keyspaces }))
    }
}

/// A snapshot of the engine.
struct EngineCut {
    snapshot: Snapshot,
    indexes: Vec<KnownIndex>,
    keyspaces: BTreeMap<IndexNumber, Keyspace>,
}

impl fmt::Debug for EngineCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineCut({:?})", self.indexes)
    }
}

impl Cut for EngineCut {
    fn number(&self) -> u64 {
        self.snapshot.seqno()
    }

    fn indexes(&self) -> &[KnownIndex] {
        &self.indexes
    }

    fn pairs(&self, index: IndexNumber) -> Result<Pairs> {
        let keyspace = self.keyspaces.get(&index).ok_or_else(|| unknown(index))?;
        Ok(Box::new(self.snapshot.iter(keyspace).map(|pair| {
            let (key, value) = pair.into_inner().map_err(|e| failed(&e))?;
            Ok((key.to_vec(), value.to_vec()))
        })))
    }
}

impl DirectoryJournal {
    fn change_pairs<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<IndexNumber, Keyspace>) -> T,
    ) -> Option<T> {
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        engine.as_mut().map(|engine| change(&mut engine.pairs))
    }
}

impl Engine {
    fn open(directory: &Directory) -> Result<Self> {
        let opened = catch_unwind(AssertUnwindSafe(|| open_engine(directory)));
        opened
            .map_err(|_| Error::corrupt("it is damaged: the engine cannot open it"))
            .and_then(|opened| opened)
            .map_err(|e| e.context(format!("journal {}", directory.path().display())))
    }

    fn keyspace(&self, index: IndexNumber) -> Result<&Keyspace> {
        self.pairs.get(&index).ok_or_else(|| unknown(index))
    }

    /// An index of this number, empty and without a row.
    fn create_numbered(&mut self, number: IndexNumber) -> fjall::Result<()> {
        self.indexes.remove(number.0.to_be_bytes())?;
        let keyspace = match self.pairs.get(&number) {
            Some(keyspace) => keyspace.clone(),
            None => self.db.keyspace(&keyspace_name(number), options_of_keyspace)?,
        };
        keyspace.clear()?;
        self.pairs.insert(number, keyspace);
        Ok(())
    }

    /// The next index, without a row.
    fn create(&mut self) -> fjall::Result<IndexNumber> {
        let last = self.pairs.last_key_value().map_or(0, |(number, _)| number.0);
        let number = IndexNumber(next_number(&self.indexes)?.max(last + 1));
        let keyspace = self.db.keyspace(&keyspace_name(number), options_of_keyspace)?;
        self.pairs.insert(number, keyspace);
        Ok(number)
    }

    fn append(&self, keyspace: &Keyspace, records: &[Record<'_>]) -> fjall::Result<()> {
        match records {
            [Record::Put { key, value }] => keyspace.insert(*key, *value),
            [Record::Delete { key }] => keyspace.remove(*key),
            records => {
                let mut batch = self.db.batch().durability(None);
                for record in records {
                    match *record {
                        Record::Put { key, value } => batch.insert(keyspace, key, value),
                        Record::Delete { key } => batch.remove(keyspace, key),
                    }
                }
                batch.commit()
            }
        }
    }
}

fn open_engine(directory: &Directory) -> Result<Engine> {
    let db = Database::builder(directory.engine())
        .worker_threads(1)
        .cache_size(CACHE_BYTES)
        .max_journaling_size(LOG_BYTES)
        .manual_journal_persist(true)
        .open()
        .map_err(|e| failed(&e))?;
    let open = || -> fjall::Result<Keyspace> { db.keyspace(INDEXES, options_of_keyspace) };
    let indexes = open().map_err(|e| failed(&e))?;
    let mut pairs = BTreeMap::new();
    for (number, row) in rows(indexes.iter())? {
        let name = keyspace_name(number);
        if row.is_some() {
            let keyspace = db.keyspace(&name, options_of_keyspace).map_err(|e| failed(&e))?;
            pairs.insert(number, keyspace);
        }
    }
    let is_known =
        |name: &str| name == INDEXES || pairs.keys().any(|number| keyspace_name(*number) == name);
    for name in db.list_keyspace_names() {
        if !is_known(&name) {
            let lost = db.keyspace(&name, options_of_keyspace).map_err(|e| failed(&e))?;
            db.delete_keyspace(lost).map_err(|e| failed(&e))?;
        }
    }
    Ok(Engine { db, indexes, pairs })
}

/// The rows of `indexes`; `None` for an index that was removed.
fn rows(indexes: fjall::Iter) -> Result<Vec<(IndexNumber, Option<Row>)>> {
    let damaged = || Error::corrupt("its list of indexes is damaged");
    let mut rows = Vec::new();
    for row in indexes {
        let (number, row) = row.into_inner().map_err(|e| failed(&e))?;
        let number = <[u8; 4]>::try_from(&number[..]).map_err(|_| damaged())?;
        let row = match &row[..] {
            [] => None,
            row => Some(postcard::from_bytes(row).map_err(|_| damaged())?),
        };
        rows.push((IndexNumber(u32::from_be_bytes(number)), row));
    }
    Ok(rows)
}

fn next_number(indexes: &Keyspace) -> fjall::Result<u32> {
    let Some(last) = indexes.last_key_value() else { return Ok(1) };
    let (number, _) = last.into_inner()?;
    let number = number.get(..4).and_then(|n| n.try_into().ok()).map_or(0, u32::from_be_bytes);
    Ok(number + 1)
}

fn keyspace_name(number: IndexNumber) -> String {
    format!("pairs-{}", number.0)
}

/// Records are handed to the system by [`Journal::append`], and not by the engine.
fn options_of_keyspace() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default().manual_journal_persist(true).max_memtable_size(MEMTABLE_BYTES)
}

fn unknown(index: IndexNumber) -> Error {
    Error::new(ErrorKind::Closed, format!("index {} was removed from the journal", index.0))
}

/// What the engine says.
fn failed(e: &fjall::Error) -> Error {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let io = match e {
        fjall::Error::Io(io) => Some(io.kind()),
        _ => None,
    };
    let kind = match (e, io) {
        (_, Some(StorageFull | QuotaExceeded)) => ErrorKind::Full,
        (fjall::Error::Locked, _) => ErrorKind::Busy,
        (fjall::Error::InvalidVersion(_), _) => ErrorKind::Incompatible,
        (fjall::Error::Poisoned | fjall::Error::KeyspaceDeleted, _) | (_, Some(_)) => {
            ErrorKind::Closed
        }
        _ => ErrorKind::Corrupt,
    };
    let said = match e {
        fjall::Error::Io(io) => io.to_string(),
        e => e.to_string(),
    };
    Error::new(kind, format!("the engine fails: {said}"))
}
