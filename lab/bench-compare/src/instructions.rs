//! The operations of an embedded session, each in a function of its own, for a tool that counts
//! instructions per function: `cargo xtask instructions`.
//!
//! `dmtree-instructions KEYS [images|log]`: loads KEYS pairs, reads each leaf once, and then runs
//! [`OPS`] operations of each kind on keys drawn uniformly, with `images` on leaves that have their
//! images at the compute node, with `log` also through a log that is never full. The keys are made
//! before they are used, and every answer is checked, outside of the counted functions.

mod keys;

use std::hint::black_box;

use anyhow::{Context, Result, bail, ensure};
use dmtree::{LoadOrder, Options, Outcome, Pool, Session};
use dmtree_workload::Seed;

use keys::{Key, key, value};

/// Operations of each kind.
const OPS: u64 = 20_000;
const SCAN_PAIRS: u64 = 50;
/// Share of the cache for images: more than all leaves take.
const IMAGES: f64 = 0.8;
/// Room for all writes of a run.
const LOG_KIB: u32 = 64 << 10;
/// An image has 1472 bytes and 32 slots, and all leaves have one.
const IMAGE_BYTES_PER_KEY: u64 = 1472 / 32;
/// Keys of one call of `get_many`.
const BATCH: usize = 16;
/// Every so many keys a read warms the cache: a leaf holds more.
const WARM_STEP: u64 = 8;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let keys = arguments.next().context("dmtree-instructions KEYS [images|log]")?;
    let (has_images, log_kib) = match arguments.next().as_deref() {
        None => (false, 0),
        Some("images") => (true, 0),
        Some("log") => (true, LOG_KIB),
        Some(other) => bail!("{other:?} is neither \"images\" nor \"log\""),
    };
    let keys: u64 = keys.parse().context("a number of keys")?;
    ensure!(keys >= 2 * OPS, "at least {} keys", 2 * OPS);
    let bytes = (keys * 200).max(64 << 20);
    let memory = bytes + (u64::from(log_kib) << 10);
    let pool = Pool::embedded().memory(memory).cache(bytes).table_memory(bytes).open()?;
    let options = Options::default().images(if has_images { IMAGES } else { 0.0 }).log_kib(log_kib);
    // Every update has a record, whatever the loads are.
    let options = if log_kib > 0 { options.log_past(0.0) } else { options };
    let index = pool.create("instructions", options)?;
    let mut s = index.session()?;
    s.load((0..keys).map(|n| (key(n).to_vec(), value(n).to_vec())), LoadOrder::Unsorted)?;
    let mut out = Vec::with_capacity(64);
    for n in (0..keys).step_by(WARM_STEP as usize) {
        ensure!(s.get_into(&key(n), &mut out)?);
    }

    let images: u64 = index.stats()?.caches.iter().map(|c| c.image_bytes).sum();
    ensure!(!has_images || images > keys * IMAGE_BYTES_PER_KEY, "{images} bytes of images");

    let drawn = drawn(keys);
    let wanted: Vec<Key> = drawn.iter().map(|n| key(*n)).collect();
    // Keys above the loaded ones are not there yet.
    let new: Vec<Key> = (keys..keys + OPS).map(key).collect();
    ensure!(count_get(&mut s, &wanted, &mut out)? == OPS, "get");
    ensure!(count_absent(&mut s, &new, &mut out)? == 0, "absent");
    ensure!(count_get_many(&mut s, &wanted)? == OPS, "get_many");
    ensure!(count_scan(&mut s, &wanted)? > OPS / 20 * SCAN_PAIRS * 9 / 10, "scan");
    ensure!(count_update(&mut s, &wanted)? == OPS, "update");
    ensure!(count_insert(&mut s, &new)? == OPS, "insert");
    ensure!(count_delete(&mut s, &new)? == OPS, "delete");
    for n in drawn {
        ensure!(s.get_into(&key(n), &mut out)? && out == [1; 8], "record {n} was updated");
    }
    Ok(())
}

/// Numbers of records, drawn uniformly.
fn drawn(keys: u64) -> Vec<u64> {
    let mut draws = Seed(1).rng();
    (0..OPS).map(|_| draws.below(keys)).collect()
}

#[inline(never)]
fn count_get(s: &mut Session, keys: &[Key], out: &mut Vec<u8>) -> Result<u64> {
    let mut hits = 0;
    for key in keys {
        hits += u64::from(s.get_into(key, out)? && out.len() == 8);
    }
    Ok(hits)
}

/// Not word for word `count_get`: the compiler would make one function of both.
#[inline(never)]
fn count_absent(s: &mut Session, keys: &[Key], out: &mut Vec<u8>) -> Result<u64> {
    let mut hits = 0;
    for key in keys {
        hits += u64::from(s.get_into(key, out)?);
    }
    Ok(hits)
}

#[inline(never)]
fn count_get_many(s: &mut Session, keys: &[Key]) -> Result<u64> {
    let mut values = dmtree::Values::new();
    let mut hits = 0;
    for keys in keys.chunks(BATCH) {
        s.get_many_into(keys, &mut values)?;
        hits += (0..keys.len()).filter(|i| values.get(*i).is_some()).count() as u64;
    }
    Ok(hits)
}

/// A twentieth as many as of the others.
#[inline(never)]
fn count_scan(s: &mut Session, keys: &[Key]) -> Result<u64> {
    let mut pairs = 0;
    for key in keys.iter().step_by(20) {
        let mut scan = s.scan(&key[..]..).limit(SCAN_PAIRS).pairs();
        while let Some(pair) = scan.next_ref()? {
            black_box(pair);
            pairs += 1;
        }
    }
    Ok(pairs)
}

#[inline(never)]
fn count_update(s: &mut Session, keys: &[Key]) -> Result<u64> {
    let mut done = 0;
    for key in keys {
        done += u64::from(s.update(key, &[1; 8])? == Outcome::Done);
    }
    Ok(done)
}

#[inline(never)]
fn count_insert(s: &mut Session, keys: &[Key]) -> Result<u64> {
    let mut done = 0;
    for key in keys {
        done += u64::from(s.insert(key, &[1; 8])? == Outcome::Done);
    }
    Ok(done)
}

#[inline(never)]
fn count_delete(s: &mut Session, keys: &[Key]) -> Result<u64> {
    let mut done = 0;
    for key in keys {
        done += u64::from(s.delete(key)? == Outcome::Done);
    }
    Ok(done)
}
