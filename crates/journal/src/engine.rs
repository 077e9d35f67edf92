//! The engine of a journal: fjall, a log and a log-structured tree.
//!
//! Each index is a keyspace of its own, `pairs-N`. The keyspace `indexes` has a row an index: its
//! number, name and options. A keyspace without a row is of an index without a name, or of one that
//! was being removed: opening the engine removes it. The keyspace `staging` has one row, the end of
//! the staged records that the engine has (`staging.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dmtree_fabric::{Error, ErrorKind, Result};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use serde::{Deserialize, Serialize};

use crate::directory::Directory;
use crate::staging::{Moving, Place};
use crate::{Cut, IndexNumber, KnownIndex, Pairs, Record};

const INDEXES: &str = "indexes";
const STAGING: &str = "staging";
const PLACE: &str = "place";
/// Cache of blocks: the journal is read when it is opened, and not otherwise.
const CACHE_BYTES: u64 = 8 << 20;
/// Memory of the pairs that are not in tables yet, per index.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// Bytes of the log behind which tables are written.
const LOG_BYTES: u64 = 256 << 20;

/// A row of `indexes`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Row {
    pub name: String,
    pub options: Vec<u8>,
}

/// The open engine.
pub(crate) struct Engine {
    pub db: Database,
    pub indexes: Keyspace,
    pub pairs: BTreeMap<IndexNumber, Keyspace>,
    staging: Keyspace,
}

/// A snapshot of the engine.
pub(crate) struct EngineCut {
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

impl Engine {
    pub(crate) fn open(directory: &Directory) -> Result<Self> {
        let opened = catch_unwind(AssertUnwindSafe(|| open_engine(directory)));
        opened
            .map_err(|_| Error::corrupt("it is damaged: the engine cannot open it"))
            .and_then(|opened| opened)
            .map_err(|e| e.context(format!("journal {}", directory.path().display())))
    }

    pub(crate) fn keyspace(&self, index: IndexNumber) -> Result<&Keyspace> {
        self.pairs.get(&index).ok_or_else(|| unknown(index))
    }

    /// An index of this number, empty and without a row.
    pub(crate) fn create_numbered(&mut self, number: IndexNumber) -> fjall::Result<()> {
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
    pub(crate) fn create(&mut self) -> fjall::Result<IndexNumber> {
        let last = self.pairs.last_key_value().map_or(0, |(number, _)| number.0);
        let number = IndexNumber(next_number(&self.indexes)?.max(last + 1));
        let keyspace = self.db.keyspace(&keyspace_name(number), options_of_keyspace)?;
        self.pairs.insert(number, keyspace);
        Ok(number)
    }

    pub(crate) fn append(&self, keyspace: &Keyspace, records: &[Record<'_>]) -> fjall::Result<()> {
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

impl Engine {
    /// The end of the staged records that it has.
    pub(crate) fn place(&self) -> Result<Place> {
        let row = self.staging.get(PLACE).map_err(|e| failed(&e))?;
        let damaged = || Error::corrupt("its place in the staged records is damaged");
        row.map_or(Ok(Place::default()), |row| Place::of(&row).ok_or_else(damaged))
    }

    /// Takes staged records, and hands them to the system. Those of an index that was removed are
    /// dropped.
    pub(crate) fn take(&self, moving: &Moving, directory: &Directory) -> Result<()> {
        let records = moving.records()?;
        let mut batch = self.db.batch().durability(Some(PersistMode::Buffer));
        for of_index in records.chunk_by(|(a, _), (b, _)| a == b) {
            let Some(keyspace) = self.pairs.get(&of_index[0].0) else { continue };
            for (_, record) in of_index {
                match *record {
                    Record::Put { key, value } => batch.insert(keyspace, key, value),
                    Record::Delete { key } => batch.remove(keyspace, key),
                }
            }
        }
        batch.insert(&self.staging, PLACE, moving.end.bytes());
        batch.commit().map_err(|e| refused(directory, &e))
    }

    /// A generation of staged records begins, on the device.
    pub(crate) fn begin(&self, at: Place) -> Result<()> {
        let begun = self.staging.insert(PLACE, at.bytes());
        begun.and_then(|()| self.db.persist(PersistMode::SyncAll)).map_err(|e| failed(&e))
    }

    /// What it has now.
    pub(crate) fn cut(&self) -> Result<EngineCut> {
        // An index that is being created or removed meanwhile has no keyspace here, or no row.
        let (snapshot, keyspaces) = (self.db.snapshot(), self.pairs.clone());
        let known = |(number, row): (_, Option<Row>)| {
            let Row { name, options } = row?;
            keyspaces.contains_key(&number).then_some(KnownIndex { number, name, options })
        };
        let indexes = rows(snapshot.iter(&self.indexes))?.into_iter().filter_map(known).collect();
        Ok(EngineCut { snapshot, indexes, keyspaces })
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
    let open = |name: &str| db.keyspace(name, options_of_keyspace).map_err(|e| failed(&e));
    let (indexes, staging) = (open(INDEXES)?, open(STAGING)?);
    let mut pairs = BTreeMap::new();
    for (number, row) in rows(indexes.iter())? {
        let name = keyspace_name(number);
        if row.is_some() {
            pairs.insert(number, open(&name)?);
        }
    }
    let is_known = |name: &str| {
        [INDEXES, STAGING].contains(&name)
            || pairs.keys().any(|number| keyspace_name(*number) == name)
    };
    for name in db.list_keyspace_names() {
        if !is_known(&name) {
            let lost = open(&name)?;
            db.delete_keyspace(lost).map_err(|e| failed(&e))?;
        }
    }
    Ok(Engine { db, indexes, pairs, staging })
}

/// The rows of `indexes`; `None` for an index that was removed.
pub(crate) fn rows(indexes: fjall::Iter) -> Result<Vec<(IndexNumber, Option<Row>)>> {
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

/// Records are handed to the system by the journal, and not by the engine.
fn options_of_keyspace() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default().manual_journal_persist(true).max_memtable_size(MEMTABLE_BYTES)
}

pub(crate) fn unknown(index: IndexNumber) -> Error {
    Error::new(ErrorKind::Closed, format!("index {} was removed from the journal", index.0))
}

/// What the engine says.
pub(crate) fn failed(e: &fjall::Error) -> Error {
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
/// Why the engine of a directory refuses a write or a sync.
pub(crate) fn refused(directory: &Directory, e: &fjall::Error) -> Error {
    let e = match e {
        // A thread of the engine has met an error, which the engine does not report.
        fjall::Error::Poisoned if directory.is_full() => {
            Error::full("the device is full").effect_unknown()
        }
        e => failed(e),
    };
    e.context(format!("journal {}", directory.path().display()))
}
