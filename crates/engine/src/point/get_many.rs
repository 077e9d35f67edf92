//! Several reads with fewer round trips than one by one: one batch of READs for the first slot that
//! each key's mirror names. A hit of the route's generation is the answer, as in step 1 of
//! `get.rs`. Every other key runs alone.

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, OpKind, OpOutcome, Result, Step};
use dmtree_parts::{Values, check_key};

use crate::format::Place;
use crate::leaf::{Entries, Images, Looked, image_at};
use crate::point::{MAX_ENTRY, Reads};
use crate::router::Router;
use crate::{Client, KeyHash, is_away};

/// Keys of one batch of READs.
const READ_TOGETHER: usize = 64;

/// The first slot that the mirror of a key names.
struct FirstSlot {
    /// Number of the key.
    key: usize,
    place: Place,
    generation: u16,
    /// Where it is READ.
    at: GlobalAddr,
}

/// The first candidate of a key.
enum First {
    /// It has the key, and its value was copied out.
    Done,
    /// It has not, or it takes a block to tell; the generation of the route.
    Looked(Looked, u16),
}

/// Reads the first slot that each key's mirror names in one batch; the rest goes one by one.
pub(crate) async fn get_many(c: &Client, keys: &[&[u8]], out: &mut Values) -> Result<()> {
    for key in keys {
        check_key(key)?;
    }
    out.reset(keys.len());
    let scope = c.ep.begin(OpKind::GetMany);
    let _pin = c.pin()?;
    let mut value = Vec::new();
    for (n, chunk) in keys.chunks(READ_TOGETHER).enumerate() {
        let hashes: Vec<KeyHash> = chunk.iter().map(|key| KeyHash::of(key)).collect();
        let mut seen = first_candidates(c, chunk, &hashes, n * READ_TOGETHER, out).await?;
        for (i, (key, hash)) in chunk.iter().zip(hashes).enumerate() {
            let done = match seen.get_mut(i).and_then(Option::take) {
                None => false,
                Some(First::Done) => continue,
                Some(First::Looked(looked, generation)) => {
                    let probe =
                        Entries(c).judge_looked((looked, generation), key, &mut value).await?;
                    probe.is_some_and(|p| p.is_hit_of(generation))
                }
            };
            if done || Reads(c).pinned((key, hash), &mut value).await? {
                out.set(n * READ_TOGETHER + i, &value);
            }
        }
    }
    scope.end(OpOutcome::Other);
    Ok(())
}

/// READs the first candidate of each key together. Inline values of hits go to `out`, where the
/// first key has this number.
async fn first_candidates(
    c: &Client,
    keys: &[&[u8]],
    hashes: &[KeyHash],
    number: usize,
    out: &mut Values,
) -> Result<Vec<Option<First>>> {
    let g = &c.node.g;
    let mut firsts = Vec::with_capacity(keys.len());
    Router(c).cached_routes(keys, hashes, |key, (route, candidates)| {
        if let Some(slot) = candidates.and_then(|mut slots| slots.next()) {
            let leaf = match route.is_imaged() {
                false => Some(route.leaf),
                true => {
                    let cell = c.node.pool.resolve_cached(route.table);
                    cell.map(|cell| image_at(cell, route.capacity))
                }
            };
            let Some(leaf) = leaf else { return };
            let (place, at) = (Place { leaf: route.leaf, slot }, leaf.plus(g.slot_at(slot) as u64));
            firsts.push(FirstSlot { key, place, generation: route.generation, at });
        }
    });
    let mut seen: Vec<Option<First>> = keys.iter().map(|_| None).collect();
    let mut value = Vec::new();
    let mut look = |first: &FirstSlot, bytes: &[u8]| {
        let FirstSlot { key: i, place, generation, .. } = *first;
        let looked = Entries(c).look(place, bytes, (keys[i], hashes[i]), &mut value);
        seen[i] = Some(match looked.probe() {
            Some(probe) if probe.is_hit_of(generation) => {
                out.set(number + i, &value);
                First::Done
            }
            _ => First::Looked(looked, generation),
        });
    };
    c.ep.step(Step::Entry);
    if !firsts.is_empty() && read_direct(c, &firsts, &mut look).is_none() {
        let mut batch = VerbVec::new();
        firsts.iter().for_each(|first| _ = batch.read(first.at, g.entry() as u32));
        let mut results = match c.ep.batch(batch).await {
            // An owner: its keys, and the others, go alone.
            Err(e) if is_away(&e) && c.node.has_images() => return Ok(Vec::new()),
            results => results?,
        };
        for (read, first) in firsts.iter().enumerate() {
            results.take_sampled(read).extract(|bytes| look(first, bytes));
        }
    }
    if c.node.has_images() {
        Images(c).vouch()?;
    }
    Ok(seen)
}

/// READs slots of one memory node on memory of this process, as one list; `None` when they have to
/// be posted.
fn read_direct(
    c: &Client,
    firsts: &[FirstSlot],
    mut look: impl FnMut(&FirstSlot, &[u8]),
) -> Option<()> {
    let node = firsts[0].at.node();
    if firsts.iter().any(|first| first.at.node() != node) {
        return None;
    }
    let mut op = c.begin_direct(OpKind::GetMany)?;
    firsts.iter().for_each(|first| op.prefetch(first.at, c.entry));
    op.list();
    let read = op.list_at(node, |verbs| {
        let mut entry = [0; MAX_ENTRY];
        let entry = &mut entry[..c.entry];
        for first in firsts {
            verbs.read(first.at, entry)?;
            look(first, entry);
        }
        Ok(())
    });
    op.end(OpOutcome::Other);
    read.ok()
}
