//! Indexes that others can open when they have their pairs, and not before.
//!
//! The catalog has the name in state `Creating` meanwhile, and the journal of a durable pool has
//! the index without a name. Publishing names all of them in the journal at once, then makes one
//! after the other ready in the catalog. What is dropped unpublished leaves neither.

use std::sync::Arc;

use dmtree_fabric::{Endpoint, Error, Result};
use dmtree_journal::IndexNumber;
use dmtree_pool::Creation;

use crate::durable::known;
use crate::open::OpenIndex;
use crate::pool::{PoolInner, locked};
use crate::{Index, Options};

/// An index that its creator alone uses.
pub(crate) struct Unpublished {
    pool: Arc<PoolInner>,
    open: Arc<OpenIndex>,
    options: Options,
    /// Of a pool that lasts.
    number: Option<IndexNumber>,
    /// Until it is published.
    creation: Option<Creation>,
    /// Whether the creator uses it when it is published.
    stays_open: bool,
    ep: Endpoint,
}

impl Unpublished {
    pub(crate) fn new(
        pool: &Arc<PoolInner>,
        creation: Creation,
        ep: Endpoint,
        options: &Options,
    ) -> Result<Self> {
        let begun = pool.durable.as_ref().map(|durable| durable.begin()).transpose()?;
        let (number, journal) = begun.unzip();
        let open = pool.open_with(creation.entry(), journal).inspect_err(|_| {
            pool.forget(number);
        })?;
        let (open, options) = (Arc::new(open), options.clone());
        let (pool, creation, stays_open) = (pool.clone(), Some(creation), true);
        Ok(Self { pool, open, options, number, creation, stays_open, ep })
    }

    /// One of the journal, which has no other until it is opened.
    pub(crate) fn reloaded(
        pool: &Arc<PoolInner>,
        creation: Creation,
        ep: Endpoint,
        options: &Options,
    ) -> Result<Self> {
        let open = Arc::new(pool.open_with(creation.entry(), None)?);
        let (options, creation) = (options.clone(), Some(creation));
        let (number, stays_open) = (None, false);
        Ok(Self { pool: pool.clone(), open, options, number, creation, stays_open, ep })
    }

    /// A handle of it.
    pub(crate) fn index(&self) -> Index {
        Index::new(self.pool.clone(), self.open.clone())
    }

    /// Makes indexes of one pool ready for all.
    ///
    /// # Errors
    /// Those of the journal and the fabric. Those that are not published are gone.
    pub(crate) fn publish(all: Vec<Self>) -> Result<()> {
        if let Some(durable) = all.first().and_then(|first| first.pool.durable.as_ref()) {
            let named = |one: &Self| Some(known(one.number?, &one.open.name, &one.options));
            let named: Vec<_> = all.iter().filter_map(named).collect();
            if !named.is_empty() {
                durable.name(&named)?;
            }
        }
        all.into_iter().try_for_each(|mut one| one.make_ready())
    }

    /// Makes it ready for all, and opens it.
    pub(crate) fn publish_alone(self) -> Result<Index> {
        let index = self.index();
        Self::publish(vec![self])?;
        Ok(index)
    }

    fn make_ready(&mut self) -> Result<()> {
        let creation = self.creation.take().ok_or_else(|| Error::closed("it is published"))?;
        // It has been filled meanwhile.
        self.ep.renew_deadline();
        // A thread that finds it in the catalog finds it here, too.
        if self.stays_open {
            locked(&self.pool.opened).insert(self.open.name.clone(), self.open.clone());
        }
        self.ep.block_on(creation.publish()).inspect_err(|_| {
            locked(&self.pool.opened).remove(&self.open.name);
        })?;
        self.number = None;
        Ok(())
    }
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        self.pool.forget(self.number.take());
    }
}

impl PoolInner {
    /// What is not published is not needed in the journal. It is gone when that is opened again,
    /// too.
    fn forget(&self, number: Option<IndexNumber>) {
        if let (Some(durable), Some(number)) = (&self.durable, number) {
            let _ = durable.remove(number);
        }
    }
}
