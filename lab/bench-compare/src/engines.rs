//! The engines behind one trait of two calls. A read copies the value into a buffer of the caller.

use std::collections::BTreeMap;
use std::sync::RwLock;

use anyhow::{Result, ensure};
use crossbeam_skiplist::SkipMap;
use redb::{Database, ReadableDatabase, TableDefinition};

use crate::keys::Key;

pub trait Engine {
    fn name(&self) -> &'static str;
    /// Whether the key was there; its value replaces `out`.
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool>;
    /// Stores many pairs.
    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Key, [u8; 8])>) -> Result<()>;
}

pub struct Dmtree {
    session: dmtree::Session,
    pub index: dmtree::Index,
}

impl Dmtree {
    pub fn new(records: u64) -> Result<Self> {
        // Entries, leaves not quite full, inner nodes, room for splits.
        let bytes = (records * 200).max(64 << 20);
        let pool = dmtree::Pool::embedded().memory(bytes).cache(bytes / 2).open()?;
        let index = pool.create("compare", dmtree::Options::default())?;
        Ok(Self { session: index.session()?, index })
    }
}

impl Engine for Dmtree {
    fn name(&self) -> &'static str {
        "dmtree"
    }
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        Ok(self.session.get_into(key, out)?)
    }
    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Key, [u8; 8])>) -> Result<()> {
        for (key, value) in pairs {
            ensure!(self.session.put(&key, &value)? == dmtree::Outcome::Done);
        }
        Ok(())
    }
}

#[derive(Default)]
pub struct Skiplist(SkipMap<Vec<u8>, Vec<u8>>);

impl Engine for Skiplist {
    fn name(&self) -> &'static str {
        "crossbeam-skiplist"
    }
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let found = self.0.get(&key[..]);
        found.iter().for_each(|e| out.extend_from_slice(e.value()));
        Ok(found.is_some())
    }
    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Key, [u8; 8])>) -> Result<()> {
        for (key, value) in pairs {
            self.0.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }
}

#[derive(Default)]
pub struct LockedBTree(RwLock<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Engine for LockedBTree {
    fn name(&self) -> &'static str {
        "RwLock<BTreeMap>"
    }
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let map = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = map.get(&key[..]);
        found.iter().for_each(|v| out.extend_from_slice(v));
        Ok(found.is_some())
    }
    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Key, [u8; 8])>) -> Result<()> {
        for (key, value) in pairs {
            let mut map = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            map.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }
}

const TABLE: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("compare");

/// redb on its in-memory backend, so no disk takes part. A read is a read transaction and a lookup
/// in an opened table. The transaction is kept over a round, which favours redb.
pub struct Redb {
    db: Database,
    table: Option<redb::ReadOnlyTable<&'static [u8], &'static [u8]>>,
}

impl Redb {
    pub fn new() -> Result<Self> {
        let backend = redb::backends::InMemoryBackend::new();
        let db = redb::Builder::new().set_cache_size(1 << 30).create_with_backend(backend)?;
        Ok(Self { db, table: None })
    }
}

impl Engine for Redb {
    fn name(&self) -> &'static str {
        "redb (in memory)"
    }
    fn get(&mut self, key: &Key, out: &mut Vec<u8>) -> Result<bool> {
        if self.table.is_none() {
            self.table = Some(self.db.begin_read()?.open_table(TABLE)?);
        }
        out.clear();
        let found = match &self.table {
            Some(table) => table.get(&key[..])?,
            None => None,
        };
        found.iter().for_each(|v| out.extend_from_slice(v.value()));
        Ok(found.is_some())
    }
    /// Uses transactions of 10 000 pairs; one for each pair would measure commits.
    fn fill(&mut self, pairs: &mut dyn Iterator<Item = (Key, [u8; 8])>) -> Result<()> {
        self.table = None;
        loop {
            let mut stored = 0;
            let tx = self.db.begin_write()?;
            {
                let mut table = tx.open_table(TABLE)?;
                for (key, value) in pairs.take(10_000) {
                    table.insert(&key[..], &value[..])?;
                    stored += 1;
                }
            }
            tx.commit()?;
            if stored < 10_000 {
                return Ok(());
            }
        }
    }
}
