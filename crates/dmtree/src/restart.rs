//! What opening a pool that lasts does: it loads what the journal has, before the pool serves
//! anything.
//!
//! The indexes of the journal are loaded in key order. One that is loaded has no journal yet: its
//! pairs come from there. It can be opened when all of them are whole.
//!
//! Of a pool of several processes the first compute node does so, and the others wait: an entry of
//! the catalog is created meanwhile. When its creator dies the next compute node takes over. What
//! has been published by then is whole, and is not loaded again.

use std::sync::Arc;
#[cfg(feature = "tcp")]
use std::time::Duration;

use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_journal::{Cut, KnownIndex};

use crate::LoadOrder;
use crate::durable::{OpenProgress, Report, options_of, pair_bytes, too_small};
use crate::feed::{Feed, Pair};
use crate::filled::Unpublished;
use crate::pool::PoolInner;

/// Pairs between two reports of progress.
const REPORT_PAIRS: u64 = 1 << 16;
/// The entry of the catalog that is created while the pool is loaded, and the system that it names.
#[cfg(feature = "tcp")]
const MARK: &str = "(journal)";
pub(crate) const MARK_SYSTEM: &str = "dmtree-journal";
/// How long a creation is waited for at a time.
#[cfg(feature = "tcp")]
const ONE_WAIT: Duration = Duration::from_secs(30);

/// Lets this process in when everything is loaded, by this process if by no other.
///
/// # Errors
/// `Busy` when another process has not ended with it within this time; those of loading.
#[cfg(feature = "tcp")]
pub(crate) fn let_in(pool: &Arc<PoolInner>, within: Duration) -> Result<()> {
    let mut waited = Duration::ZERO;
    loop {
        match pool.begin_entry(MARK, MARK_SYSTEM) {
            Ok(None) => return Ok(()),
            Ok(Some(begun)) => {
                load(pool, None)?;
                return begun.publish();
            }
            Err(e) if e.kind() == ErrorKind::Busy && waited < within => waited += ONE_WAIT,
            Err(e) if e.kind() == ErrorKind::Busy => {
                return Err(e.context("another process loads what the journal of the pool has"));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Loads everything that the journal of a pool has.
pub(crate) fn load(pool: &Arc<PoolInner>, report: Option<&Report>) -> Result<()> {
    let Some(durable) = &pool.durable else { return Ok(()) };
    check_gaps(pool)?;
    let cut = durable.cut()?;
    let (mut filled, mut bytes) = (Vec::new(), 0);
    for known in cut.indexes() {
        let loaded = load_index(pool, &*cut, known, (report, &mut bytes));
        filled.extend(loaded.map_err(|e| match e.kind() {
            ErrorKind::Full => match bytes_of(&*cut) {
                Ok(all) => too_small(pool, bytes, all).context("the journal"),
                Err(e) => e,
            },
            _ => e.context(format!("index {:?} of the journal", known.name)),
        })?);
    }
    Unpublished::publish(filled)?;
    cut.indexes().iter().for_each(|known| durable.knows(&known.name, known.number));
    Ok(())
}

/// Refuses a journal that lacks acknowledged writes, unless the pool was founded to do without.
fn check_gaps(pool: &Arc<PoolInner>) -> Result<()> {
    let cluster = &pool.incarnation().cluster;
    let accepts = cluster.journal().is_none_or(|journal| journal.accepts_gaps);
    match cluster.compute_node(0)?.journal().journal_gaps().first() {
        Some(node) if !accepts => Err(Error::incompatible(format!(
            "part {} of the journal lacks acknowledged writes: restore a checkpoint into a new pool, \
             or found this one with `dmtree memnode --accept-gaps`, which loads what is there",
            node.index()
        ))),
        _ => Ok(()),
    }
}

/// Loads an index; `None` for one that is there already.
fn load_index(
    pool: &Arc<PoolInner>,
    cut: &dyn Cut,
    known: &KnownIndex,
    (report, bytes): (Option<&Report>, &mut u64),
) -> Result<Option<Unpublished>> {
    let options = options_of(known)?;
    let Some(new) = pool.begin_reloaded(&known.name, &options)? else { return Ok(None) };
    let mut pairs = 0;
    let counted = cut.pairs(known.number)?.inspect(|pair| {
        if let Ok((key, value)) = pair {
            *bytes += pair_bytes(key, value);
            pairs += 1;
            if pairs % REPORT_PAIRS == 0 {
                tell(report, known, pairs);
            }
        }
    });
    let mut feed = Feed::new(counted, None);
    let loaded = new.index().session()?.load(&mut feed, LoadOrder::Sorted);
    let loaded = feed.ended(loaded)?;
    tell(report, known, loaded.pairs);
    Ok(Some(new))
}

fn tell(report: Option<&Report>, known: &KnownIndex, pairs: u64) {
    if let Some(report) = report {
        report(&OpenProgress { index: known.name.clone(), pairs });
    }
}

/// The bytes of all pairs of a cut.
fn bytes_of(cut: &dyn Cut) -> Result<u64> {
    cut.indexes().iter().try_fold(0, |sum, known| {
        let of_pair = |pair: Result<Pair>| pair.map(|(key, value)| pair_bytes(&key, &value));
        let bytes: Result<u64> = cut.pairs(known.number)?.map(of_pair).sum();
        Ok(sum + bytes?)
    })
}
