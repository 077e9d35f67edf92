//! Memory of leaves and of their tables: taken together, written together, and given back or
//! retired together.

use dmtree_fabric::verb::{VerbVec, write as write_verb};
use dmtree_fabric::{Buf, Error, ErrorKind, GlobalAddr, NodeId, Result, Role, Step};
use dmtree_pool::{Grant, TableId};

use crate::format::table::lines;
use crate::format::{BODY_AT, Child, Table, Ver};
use crate::leaf::{Images, image_at};
use crate::lock::{Locked, TableLocks, WordLocks};
use crate::{Client, Mark, Mutant, Route, Tables};

/// The cell of a new leaf's table.
#[derive(Clone, Copy)]
pub(crate) enum CellKind<'n> {
    /// With an image where an owner has room for one, at none of some owners.
    Any(&'n [NodeId]),
    /// Without an image.
    Plain,
    /// This one, which is given back where there is no memory for its leaf.
    Taken(TableId),
}

/// Memory of leaves and of their tables.
#[derive(Clone, Copy)]
pub(crate) struct LeafMemory<'c>(pub &'c Client);

impl LeafMemory<'_> {
    /// Memory for a new leaf and its table.
    pub(crate) async fn take(self, capacity: usize, cell: CellKind<'_>) -> Result<NewLeaf> {
        let node = &self.0.node;
        let arena = node.leaf_arena(capacity);
        let free_cell = |table| node.pool.give_back_table(node.root.index, table);
        let grant = node.pool.alloc(&self.0.ep, arena, None).await.inspect_err(|_| {
            if let CellKind::Taken(table) = cell {
                free_cell(table);
            }
        })?;
        let side = match node.o.techniques.tables {
            Tables::Compute => Role::Compute,
            Tables::Memory => Role::Memory,
            Tables::None => {
                let (table, table_at) = (TableId::from_bits(0), GlobalAddr::NULL);
                return Ok(NewLeaf { grant, table, table_at, capacity });
            }
        };
        let free_leaf = |_: &Error| node.pool.give_back_unwritten(arena, grant);
        let table = self.take_cell(capacity, side, cell).await.inspect_err(free_leaf)?;
        let table_at = node.pool.resolve(&self.0.ep, table).await;
        // Its partition may have lost its owner since.
        let table_at = table_at.inspect_err(|_| free_cell(table)).inspect_err(free_leaf)?;
        Ok(NewLeaf { grant, table, table_at, capacity })
    }

    async fn take_cell(self, capacity: usize, side: Role, kind: CellKind<'_>) -> Result<TableId> {
        let (node, ep, index) = (&self.0.node, &self.0.ep, self.0.node.root.index);
        let silent = match kind {
            CellKind::Any(silent) => silent,
            CellKind::Plain => &[],
            CellKind::Taken(table) => return Ok(table),
        };
        if let (CellKind::Any(_), Some(lines)) = (kind, node.imaged_lines(capacity)) {
            match node.pool.alloc_table_beside(ep, index, (lines, side), silent).await {
                Err(e) if matches!(e.kind(), ErrorKind::Full | ErrorKind::Unreachable) => {
                    Mark::ImagesFull.hit();
                }
                cell => return cell,
            }
        }
        node.pool.alloc_table_beside(ep, index, (lines(capacity), side), silent).await
    }

    /// Gives back memory that may have been written, and to which no pointer leads.
    pub(crate) fn give_back(self, s: &NewLeaf) {
        let (pool, arena) = (&self.0.node.pool, self.0.node.leaf_arena(s.capacity));
        match self.0.node.has(Mutant::NoNewGeneration) && s.grant.generation > 1 {
            false => pool.give_back(arena, s.grant),
            true => pool.give_back_unwritten(arena, s.grant),
        }
        self.give_back_cell(s);
    }

    /// The same for memory that was not written: it uses up no generation.
    pub(crate) fn give_back_unwritten(self, s: &NewLeaf) {
        let arena = self.0.node.leaf_arena(s.capacity);
        self.0.node.pool.give_back_unwritten(arena, s.grant);
        self.give_back_cell(s);
    }

    fn give_back_cell(self, s: &NewLeaf) {
        if self.0.node.has_tables() {
            self.0.node.pool.give_back_table(self.0.node.root.index, s.table);
        }
    }

    /// WRITEs a new leaf and its table, awaited: no pointer leads there before both have landed
    /// (B). Under a lock word the WRITE of the leaf announces the change of the locked leaf, too.
    /// Of the mutants, the first commits before the leaf has landed, the second before the table.
    pub(crate) async fn write(
        self,
        (l, s): (&mut Locked, &NewLeaf),
        image: Buf,
        table: &mut Table,
        (leaf_late, table_late): (Mutant, Option<Mutant>),
    ) -> Result<()> {
        let c = self.0;
        if l.is_word() {
            return WordLocks(c).begin_change(&mut [l], Some((s.grant, image))).await;
        }
        if c.node.has_images() {
            return self.write_with_images(l, s, image, table).await;
        }
        let body = TableLocks(c).body(table, s.table).await?;
        c.ep.step(Step::Structure);
        let leaf = write_verb(s.grant.addr, image);
        let table = write_verb(s.table_at.plus(BODY_AT as u64), body);
        if c.node.has(leaf_late) {
            c.ep.detach(leaf, None);
            return c.ep.chain(table).await.map(|_| ());
        }
        if table_late.is_some_and(|mutant| c.node.has(mutant)) {
            c.ep.detach(table, None);
            return c.ep.chain(leaf).await.map(|_| ());
        }
        c.ep.batch((leaf, table)).await.map(|_| ())
    }

    /// The same where leaves may have images: the new leaf's image lands with it, and the image of
    /// the locked leaf, which is to lose keys, is closed.
    async fn write_with_images(
        self,
        l: &Locked,
        s: &NewLeaf,
        image: Buf,
        table: &mut Table,
    ) -> Result<()> {
        let (c, mut batch) = (self.0, VerbVec::new());
        if s.route(0).is_imaged() {
            let copy = Images(c).image_of(&image, s.capacity).await?;
            batch.write(image_at(s.table_at, s.capacity), copy);
        }
        if l.route.is_imaged() && !c.node.has(Mutant::ImagedNotClosed) {
            let (at, zeros) = Images(c).closing(l).await?;
            batch.write(at, zeros);
        }
        let body = TableLocks(c).body(table, s.table).await?;
        batch.write(s.table_at.plus(BODY_AT as u64), body);
        batch.write(s.grant.addr, image);
        c.ep.step(Step::Structure);
        c.ep.batch(batch).await.map(|_| ())
    }

    /// A leaf that no pointer leads to any more.
    pub(crate) fn retire(self, route: &Route) {
        let Route { leaf: addr, generation, table, capacity, .. } = *route;
        self.0.node.pool.retire(self.0.node.leaf_arena(capacity), Grant { addr, generation });
        self.retire_table(table);
    }

    /// Closes a table's cell for later clients, where leaves have tables.
    pub(crate) fn retire_table(self, table: TableId) {
        if self.0.node.has_tables() {
            self.0.node.pool.retire_table(self.0.node.root.index, table);
        }
    }
}

/// Memory for a new leaf and its table.
pub(crate) struct NewLeaf {
    pub grant: Grant,
    pub table: TableId,
    pub table_at: GlobalAddr,
    pub capacity: usize,
}

impl NewLeaf {
    pub fn ver(&self) -> Ver {
        Ver { generation: self.grant.generation, range: 0 }
    }

    pub fn child(&self) -> Child {
        self.route(0).child()
    }

    pub fn route(&self, fence: u32) -> Route {
        let Grant { addr, generation } = self.grant;
        Route { leaf: addr, generation, table: self.table, capacity: self.capacity, fence }
    }
}
