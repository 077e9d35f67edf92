//! The engines behind one trait. A worker is one thread's way to an engine. Reads copy the value
//! out, scans look at each pair.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::{PoisonError, RwLock};

use anyhow::{Result, ensure};
use bplustree::BPlusTree;
use crossbeam_skiplist::SkipMap;
use redb::{Database, ReadableDatabase, TableDefinition};
use scc::{Guard, TreeIndex};

use crate::keys::{Key, Value};

/// An engine with its data.
pub trait Engine: Sync {
    fn name(&self) -> &'static str;
    fn worker(&self) -> Result<Box<dyn Worker + '_>>;
}

pub trait Worker {
    /// Whether the key was there; its value replaces `out`.
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool>;
    /// How many of several keys were there; `None` for an engine that reads one by one.
    fn get_many(&mut self, _keys: &[Key]) -> Result<Option<usize>> {
        Ok(None)
    }
    /// Stores pairs, one by one.
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()>;
    /// How many pairs there are from a key on, at most `limit`.
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize>;
}

/// Looks at pairs and counts them.
fn count<K, V>(pairs: impl Iterator<Item = (K, V)>) -> usize {
    pairs.map(|pair| _ = black_box(pair)).count()
}

/// A map that threads share by reference, and its name.
pub struct Named<T>(pub &'static str, pub T);

impl<T: Sync> Engine for Named<T>
where
    for<'a> &'a T: Worker,
{
    fn name(&self) -> &'static str {
        self.0
    }
    fn worker(&self) -> Result<Box<dyn Worker + '_>> {
        Ok(Box::new(&self.1))
    }
}

pub struct Dmtree(dmtree::Index);

impl Dmtree {
    pub fn new(records: u64) -> Result<Self> {
        // Entries, leaves not quite full, inner nodes, room for splits.
        let bytes = (records * 200).max(64 << 20);
        let pool = dmtree::Pool::embedded().memory(bytes).cache(bytes / 2).open()?;
        Ok(Self(pool.create("compare", dmtree::Options::default())?))
    }
}

struct Session {
    session: dmtree::Session,
    values: dmtree::Values,
}

impl Engine for Dmtree {
    fn name(&self) -> &'static str {
        "dmtree"
    }
    fn worker(&self) -> Result<Box<dyn Worker + '_>> {
        let (session, values) = (self.0.session()?, dmtree::Values::new());
        Ok(Box::new(Session { session, values }))
    }
}

impl Worker for Session {
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        Ok(self.session.get_into(key, out)?)
    }
    fn get_many(&mut self, keys: &[Key]) -> Result<Option<usize>> {
        self.session.get_many_into(keys, &mut self.values)?;
        Ok(Some((0..keys.len()).filter(|i| self.values.get(*i).is_some()).count()))
    }
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        for (key, value) in pairs {
            ensure!(self.session.put(key, value)? == dmtree::Outcome::Done);
        }
        Ok(())
    }
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize> {
        let mut pairs = self.session.scan(&from[..]..).limit(limit as u64).pairs();
        let mut seen = 0;
        while let Some(pair) = pairs.next_ref()? {
            black_box(pair);
            seen += 1;
        }
        Ok(seen)
    }
}

/// Optimistic lock coupling.
impl Worker for &BPlusTree<Key, Value> {
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let found = self.lookup(key, |v| *v);
        out.extend(found.iter().flatten());
        Ok(found.is_some())
    }
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        pairs.iter().for_each(|(key, value)| _ = self.insert(*key, *value));
        Ok(())
    }
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize> {
        let mut pairs = self.raw_iter();
        pairs.seek(from);
        let mut seen = 0;
        while seen < limit && black_box(pairs.next()).is_some() {
            seen += 1;
        }
        Ok(seen)
    }
}

impl Worker for &TreeIndex<Key, Value> {
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        Ok(self.peek_with(key, |_, v| out.extend_from_slice(v)).is_some())
    }
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        pairs.iter().for_each(|(key, value)| self.upsert_sync(*key, *value));
        Ok(())
    }
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize> {
        Ok(count(self.range(*from.., &Guard::new()).take(limit)))
    }
}

/// A `BTreeMap` under a readers-writer lock; keys and values in its nodes.
impl Worker for &RwLock<BTreeMap<Key, Value>> {
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        let found = map.get(key);
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        for (key, value) in pairs {
            self.write().unwrap_or_else(PoisonError::into_inner).insert(*key, *value);
        }
        Ok(())
    }
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        Ok(count(map.range(*from..).take(limit)))
    }
}

/// A key or a value on the heap.
pub type Heap = Vec<u8>;

/// The same with keys and values on the heap.
impl Worker for &RwLock<BTreeMap<Heap, Heap>> {
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        let found = map.get(&key[..]);
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        for (key, value) in pairs {
            let mut map = self.write().unwrap_or_else(PoisonError::into_inner);
            map.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        Ok(count(map.range(from.to_vec()..).take(limit)))
    }
}

impl Worker for &SkipMap<Key, Value> {
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let found = SkipMap::get(self, key);
        found.iter().for_each(|e| out.extend_from_slice(e.value()));
        Ok(found.is_some())
    }
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        pairs.iter().for_each(|(key, value)| _ = self.insert(*key, *value));
        Ok(())
    }
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize> {
        Ok(count(self.range(*from..).take(limit).map(|e| (*e.key(), *e.value()))))
    }
}

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("compare");

/// redb on its in-memory backend, so no disk takes part. A read is a lookup in a table that the
/// worker has opened in a read transaction, which favours redb.
pub struct Redb(Database);

impl Redb {
    pub fn new() -> Result<Self> {
        let backend = redb::backends::InMemoryBackend::new();
        Ok(Self(redb::Builder::new().set_cache_size(1 << 30).create_with_backend(backend)?))
    }
}

type ReadTable = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

struct RedbWorker<'d> {
    db: &'d Database,
    table: Option<ReadTable>,
}

impl RedbWorker<'_> {
    fn table(&mut self) -> Result<&ReadTable> {
        if self.table.is_none() {
            self.table = Some(self.db.begin_read()?.open_table(TABLE)?);
        }
        Ok(self.table.as_ref().expect("just opened"))
    }
}

impl Engine for Redb {
    fn name(&self) -> &'static str {
        "redb (in memory)"
    }
    fn worker(&self) -> Result<Box<dyn Worker + '_>> {
        Ok(Box::new(RedbWorker { db: &self.0, table: None }))
    }
}

impl Worker for RedbWorker<'_> {
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let found = self.table()?.get(&key[..])?;
        found.iter().for_each(|v| out.extend_from_slice(v.value()));
        Ok(found.is_some())
    }
    /// Uses transactions of 10 000 pairs; one for each pair would measure commits.
    fn put(&mut self, pairs: &[(Key, Value)]) -> Result<()> {
        self.table = None;
        for pairs in pairs.chunks(10_000) {
            let tx = self.db.begin_write()?;
            let mut table = tx.open_table(TABLE)?;
            for (key, value) in pairs {
                table.insert(&key[..], &value[..])?;
            }
            drop(table);
            tx.commit()?;
        }
        Ok(())
    }
    fn scan(&mut self, from: &Key, limit: usize) -> Result<usize> {
        let mut seen = 0;
        for pair in self.table()?.range(&from[..]..)?.take(limit) {
            let (key, value) = pair?;
            black_box((key.value(), value.value()));
            seen += 1;
        }
        Ok(seen)
    }
}
