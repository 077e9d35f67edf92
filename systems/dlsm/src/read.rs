//! Reads of a key: MemTables, then tables, the newest first.

use std::sync::Arc;

use dmtree_fabric::{Result, Stage};
use dmtree_parts::SnapshotId;

use crate::bloom;
use crate::calls::{Answer, Asked, Calls, What, unexpected};
use crate::client::Client;
use crate::fetch::{Fetch, InUse};
use crate::format::Format;
use crate::key::Tag;
use crate::mutants::Mutant;
use crate::opened::{Found, Opened};
use crate::shard::{Shard, View};
use crate::table::Table;

/// How much a read wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whether the key is there.
    Presence,
    /// Its value, too.
    Value,
}

/// Reads of a key.
pub(crate) struct Reads<'c>(pub(crate) &'c Client);

impl Reads<'_> {
    /// The shard of a key; `None` while there is none.
    async fn shard_of(&self, user: &[u8]) -> Result<Option<Arc<Shard>>> {
        let node = &self.0.node;
        let Some(router) = node.opened(&self.0.ep).await? else { return Ok(None) };
        let own = router.shard(user, &node.o, node.pool.cn())?;
        Ok(router.shards[own].get())
    }

    /// Reads a key. Returns whether it is there; its value is in `out` then.
    pub(crate) async fn read(&self, user: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.0.ep.stage_cost(Stage::Operation, 1);
        out.clear();
        if self.0.node.o.any_node {
            let Some(router) = self.0.node.opened(&self.0.ep).await? else { return Ok(false) };
            let what = What::Get { key: user };
            return match Calls(self.0).ask_owner(router, router.range(user), &what).await? {
                Asked::Here(shard, _) => self.read_in(&shard, user, out).await,
                Asked::There(Answer::Value(value)) => {
                    out.extend_from_slice(value.as_deref().unwrap_or_default());
                    Ok(value.is_some())
                }
                Asked::There(_) => Err(unexpected()),
            };
        }
        let Some(shard) = self.shard_of(user).await? else { return Ok(false) };
        self.read_in(&shard, user, out).await
    }

    /// The same of a key of a shard of this node.
    pub(crate) async fn read_in(
        &self,
        shard: &Shard,
        user: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let view = shard.view();
        let newest = match self.0.node.mutants.has(Mutant::ReadUnlogged) {
            true => Tag::NEWEST,
            false => view.newest(&self.0.node.o),
        };
        let found = self.find(&view, (user, newest), Wanted::Value, out).await?;
        if !found {
            out.clear();
        }
        self.may_answer(shard)?;
        Ok(found)
    }

    /// Fails when this node may be fenced: another one may have taken the shard over.
    pub(crate) fn may_answer(&self, shard: &Shard) -> Result<()> {
        match shard.recorder.is_some() && !self.0.node.mutants.has(Mutant::NoLease) {
            true => self.0.node.pool.check_lease_untouched(&self.0.ep),
            false => Ok(()),
        }
    }

    /// Whether the newest version of a key up to a tag is a value.
    pub(crate) async fn find(
        &self,
        view: &View,
        (user, newest): (&[u8], Tag),
        wanted: Wanted,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        for table in [&view.active].into_iter().chain(&view.immutables) {
            self.0.ep.stage_cost(Stage::MemTableProbe, 1);
            if let Some(tag) = table.get(user, newest, out) {
                return Ok(tag.is_value());
            }
        }
        let hash = bloom::hash(user);
        for table in view.version.candidates(user) {
            self.0.ep.stage_cost(Stage::TableProbe, 1);
            if !table.may_have(hash) {
                continue;
            }
            self.0.ep.stage_cost(Stage::TableProbe, 1);
            let table = self.opened(table, (user, newest)).await?;
            let found = match table.find(user, newest) {
                Found::Nothing => None,
                Found::Version(tag, unit) => {
                    let needs_value = wanted == Wanted::Value
                        && (tag.is_value() || self.0.node.o.reads_deletions);
                    if needs_value {
                        self.unit(&table, unit..unit + 1, (user, newest), out).await?;
                    }
                    Some(tag)
                }
                Found::Somewhere(units) => self.unit(&table, units, (user, newest), out).await?,
            };
            if let Some(tag) = found {
                return Ok(tag.is_value());
            }
        }
        Ok(false)
    }

    /// A table with the records around a key: its index, or a page of it, which is READ.
    async fn opened(&self, table: &Arc<Table>, version: (&[u8], Tag)) -> Result<Opened> {
        let node = &self.0.node;
        if let Some(index) = table.index() {
            node.lookups.count_hit();
            return Ok(Opened { table: table.clone(), index });
        }
        node.lookups.count_miss();
        let _in_use = InUse(&self.0.ep, table);
        let (index, is_worth_it) = table.page(&node.remote(&self.0.ep), version).await?;
        if is_worth_it {
            node.indexes.want(table);
            node.signal.raise();
        }
        Ok(Opened { table: table.clone(), index })
    }

    /// READs units of a table, and finds a version there.
    async fn unit(
        &self,
        table: &Opened,
        units: std::ops::Range<usize>,
        (user, newest): (&[u8], Tag),
        out: &mut Vec<u8>,
    ) -> Result<Option<Tag>> {
        let places: Vec<_> = units.clone().map(|unit| table.unit(unit)).collect();
        let _in_use = InUse(&self.0.ep, &table.table);
        let read = self.0.node.remote(&self.0.ep).fetch(&places).await?;
        let (mut found, mut passed): (Option<Tag>, u32) = (None, 0);
        for (unit, bytes) in units.zip(&read) {
            table.decode(unit..unit + 1, bytes, &mut |its, tag, value| {
                passed += 1;
                if found.is_none() && its == user && tag <= newest {
                    found = Some(tag);
                    out.clear();
                    out.extend_from_slice(value);
                }
            })?;
        }
        if let Format::Blocks(_) = table.table.meta.format {
            self.0.ep.stage_cost(Stage::IterEntry, passed);
        }
        Ok(found)
    }

    /// Reads a key at a snapshot.
    pub(crate) async fn read_at(
        &self,
        s: SnapshotId,
        user: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let number = self.0.node.snapshots.note(s)?;
        out.clear();
        let Some(shard) = self.shard_of(user).await? else { return Ok(false) };
        let newest = (user, Tag::up_to(number));
        let found = self.find(&shard.view(), newest, Wanted::Value, out).await?;
        if !found {
            out.clear();
        }
        Ok(found)
    }
}
