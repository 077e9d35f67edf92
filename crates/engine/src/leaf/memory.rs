//! Memory of leaves and of their tables.

use dmtree_fabric::{GlobalAddr, NodeId, Result, Role};
use dmtree_pool::{Grant, TableId};

use crate::client::{Client, Route};
use crate::format::Ver;
use crate::format::inner::Child;
use crate::format::table::lines;
use crate::mutants::Mutant;
use crate::options::Tables;

/// Memory of leaves and of their tables.
#[derive(Clone, Copy)]
pub(crate) struct LeafMemory<'c>(pub &'c Client);

impl LeafMemory<'_> {
    /// Closes a table's cell for later clients, where leaves have tables.
    pub(crate) fn retire_table(self, table: TableId) {
        let c = self.0;
        if c.node.has_tables() {
            c.node.pool.retire_table(c.node.root.index, table);
        }
    }

    pub(crate) fn retire(self, route: &Route) {
        let Route { leaf: addr, generation, table, capacity, .. } = *route;
        self.0.node.pool.retire(self.0.node.leaf_arena(capacity), Grant { addr, generation });
        self.retire_table(table);
    }

    pub(crate) async fn take(self, capacity: usize) -> Result<NewLeaf> {
        self.take_beside(capacity, &[]).await
    }

    /// A new leaf with a table at none of some owners.
    pub(crate) async fn take_beside(self, capacity: usize, silent: &[NodeId]) -> Result<NewLeaf> {
        let c = self.0;
        let node = &c.node;
        let arena = node.leaf_arena(capacity);
        let grant = node.pool.alloc(&c.ep, arena, None).await?;
        let side = match node.o.techniques.tables {
            Tables::Compute => Role::Compute,
            Tables::Memory => Role::Memory,
            Tables::None => {
                let (table, table_at) = (TableId::from_bits(0), GlobalAddr::NULL);
                return Ok(NewLeaf { grant, table, table_at, capacity });
            }
        };
        let table = node
            .pool
            .alloc_table_beside(&c.ep, node.root.index, (lines(capacity), side), silent)
            .await;
        let resolved = match table {
            Ok(t) => node.pool.resolve(&c.ep, t).await.map(|at| (t, at)),
            Err(e) => Err(e),
        };
        match resolved {
            Ok((table, table_at)) => Ok(NewLeaf { grant, table, table_at, capacity }),
            Err(e) => {
                node.pool.give_back(arena, grant);
                Err(e)
            }
        }
    }

    pub(crate) fn give_back(self, s: &NewLeaf) {
        let c = self.0;
        let mut grant = s.grant;
        if c.node.has(Mutant::NoNewGeneration) && grant.generation > 1 {
            grant.generation -= 1;
        }
        c.node.pool.give_back(c.node.leaf_arena(s.capacity), grant);
        if c.node.has_tables() {
            c.node.pool.give_back_table(c.node.root.index, s.table);
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
        let Grant { addr, generation } = self.grant;
        Child { addr, generation, table: self.table, slots: self.capacity }
    }
    pub fn route(&self, fence: u32) -> Route {
        let Grant { addr, generation } = self.grant;
        Route { leaf: addr, generation, table: self.table, capacity: self.capacity, fence }
    }
}
