//! An index of any system for the shell and the tour.

use dmtree_bench::opened::PoolSpec;
use dmtree_bench::registry;
use dmtree_bench::simulated::FabricSpec;
use dmtree_bench::system::Tool;
use dmtree_check::client::Client;
use dmtree_command::Result;
use dmtree_fabric::{OpKind, Result as FabricResult};
use dmtree_parts::{Outcome, ScanRequest, Write};

use crate::args::{ShellArgs, ToolArgs};
use crate::store::{Report, Store};

/// The index that the arguments name.
///
/// # Errors
/// Unknown systems; a pool that cannot be joined.
pub fn open(a: &ShellArgs) -> Result<Box<dyn Store>> {
    let cns = if a.tool.connect.is_some() { 1 } else { 2 };
    let system = registry::find(&a.tool.system)?;
    let pool = Tool::open(&system, &pool(&a.tool, cns, Some(&a.index))?, 24, 24)?;
    let session = pool.client(0)?;
    Ok(Box::new(AnySystem { pool, session }))
}

/// The pool that is meant, of so many compute nodes of this process; in a running one with this
/// index, which stays, or one of its own.
pub fn pool(a: &ToolArgs, cns: u16, index: Option<&str>) -> Result<PoolSpec> {
    let small = PoolSpec::small(cns, a.memory_bytes.0);
    Ok(match &a.connect {
        None => small,
        Some(first) => PoolSpec {
            fabric: FabricSpec::Joined {
                first: first.clone(),
                data_path: None,
                nic_config: a.nic.nic_config(&a.access)?,
            },
            index: index.map(str::to_owned),
            ..small
        },
    })
}

/// An index of any system.
struct AnySystem {
    pool: Tool,
    session: Client,
}

impl Store for AnySystem {
    fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> FabricResult<()> {
        self.session.for_each(request, each)
    }

    fn get(&mut self, key: &[u8]) -> FabricResult<Option<Vec<u8>>> {
        self.session.get(key)
    }

    fn write(&mut self, key: &[u8], w: Write<'_>) -> FabricResult<Outcome> {
        self.session.write(key, w)
    }

    fn report(&mut self) -> FabricResult<Report> {
        let shape = self.session.walk()?;
        let total = self.session.counts().total(&OpKind::FOREGROUND);
        Ok(Report { shape, cache: self.pool.opened.cache_stats(0), total })
    }
}
