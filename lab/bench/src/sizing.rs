//! The memory that a cell needs, and whether it is available.

use dmtree_parts::peer::leaf_bytes_per_key;
use dmtree_pool::PoolOptions;
use dmtree_workload::{KeyForm, OpKind, Workload};
use serde_json::Value;

use crate::bytes::Bytes;
use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::registry;
use crate::results::meminfo;
use crate::system::{bytes_per_key, fit_of};

const MIB: u64 = 1 << 20;
/// The smallest scaled cache budget, bytes.
pub const LEAST_CACHE: u64 = 64 << 10;

/// The smallest scaled table chunk, bytes.
pub const LEAST_TABLE_CHUNK: u64 = 4 << 10;

/// Least number of inserts that a cell has room for, and bytes that they may take at most.
const LEAST_INSERTS: (u64, u64) = (20_000, 256 * MIB);

/// The next multiple. Settings may be of any size: what no machine has is refused later, and must
/// not overflow here.
fn rounded_up(bytes: u64, to: u64) -> u64 {
    bytes.checked_next_multiple_of(to).unwrap_or(u64::MAX - u64::MAX % to)
}

/// Bytes for 1e9 keys, scaled to `keys`, but at least `least`.
pub fn scaled(at_billion: Bytes, keys: u64, least: u64) -> u64 {
    ((at_billion.0 as f64 * (keys as f64 / 1e9)) as u64).max(least)
}

/// Longest key of a form, bytes; for a key file the longest possible key.
pub fn longest_key(form: &KeyForm) -> u64 {
    match form {
        KeyForm::Hashed24 | KeyForm::Sequential24 => 24,
        KeyForm::U64 | KeyForm::Sequential | KeyForm::Shifting(_) => 8,
        KeyForm::Sosd(_) => 8,
        KeyForm::DbBench => 20,
        KeyForm::Random { max, .. } => u64::from(*max),
        KeyForm::File(_) => 64,
        _ => 256,
    }
}

/// A cache budget that holds all inner nodes and copies of tables.
pub fn default_cache(keys: u64, form: &KeyForm) -> Bytes {
    let per_key = 8 + (longest_key(form) + 96) / 8;
    Bytes(rounded_up(keys.saturating_mul(per_key).saturating_add(16 * MIB), MIB))
}

/// Number of inserts that a cell has room for, with `per_key` bytes per key.
pub fn insert_room(c: &Config, w: &Workload, per_key: u64) -> u64 {
    let mix = w.mix();
    if mix.weight(OpKind::Insert) == 0 {
        return 0;
    }
    let share = f64::from(mix.weight(OpKind::Insert)) / mix.total() as f64;
    let per_key = per_key.max(1);
    let (least, bytes) = LEAST_INSERTS;
    let least = least.min(bytes / per_key).max(1);
    let by_ops = c.ops.map(|ops| ((ops as f64 * share * 1.1) as u64).saturating_add(least / 2));
    let by_time =
        c.duration.or(c.budget).map(|s| ((s * 1.5e6 * share) as u64).saturating_add(20_000));
    let room = by_ops.or(by_time).unwrap_or(c.keys);
    let third_free = available() / 3;
    room.min(40_000_000).min((third_free / per_key).max(least))
}

/// Bytes per key of an ordinary index for these settings.
pub fn usual(c: &Config) -> u64 {
    leaf_bytes_per_key(&fit_of(c))
}

/// Bytes that each memory node needs for `keys` keys of `per_key` bytes.
pub fn memory_for(c: &Config, keys: u64, per_key: u64) -> u64 {
    // Every compute node holds chunks of its own.
    let held = u64::from(c.cns) * 4 * MIB + 64 * MIB;
    let all = keys.saturating_mul(per_key).saturating_add(held);
    rounded_up(all / u64::from(c.mns.max(1)), MIB).max(64 * MIB)
}

/// Bytes of each memory node for a cell: as given, or computed.
pub fn memory(c: &Config, w: &Workload, per_key: u64) -> u64 {
    c.memory_bytes.map_or_else(
        || memory_for(c, c.keys.saturating_add(insert_room(c, w, per_key)), per_key),
        |b| b.0,
    )
}

/// Bytes of each memory node for the largest cell.
pub fn largest(c: &Config) -> u64 {
    let systems = registry::select(&c.systems).unwrap_or_default();
    let per_key = systems.iter().map(|system| bytes_per_key(system, c)).max();
    let per_key = per_key.unwrap_or_else(|| usual(c));
    c.workloads.iter().map(|w| memory(c, w, per_key)).max().unwrap_or(0)
}

/// Bytes of each compute node's region, which stores tables.
pub fn tables(c: &Config, memory: u64) -> u64 {
    let all = memory.saturating_mul(u64::from(c.mns));
    rounded_up((all / 6 / u64::from(c.cns) + 8 * MIB).max(all / 32), 64)
}

/// Bytes of each compute node's region for images of leaves: the share of the cache budget that
/// the options of a system give them, twice, since the segments of a region double.
pub fn images(options: &Value, c: &Config) -> u64 {
    let share = options.get("images").and_then(Value::as_f64).unwrap_or(0.0);
    rounded_up((c.cache_bytes.0 as f64 * share * 2.0) as u64, 64)
}

/// Bytes of each memory node for the logs of the compute nodes. Each ring is a run of whole chunks:
/// `memory`, what a memory node has besides, tells how large these are at most.
pub fn logs(options: &Value, c: &Config, memory: u64) -> u64 {
    let of = |name| options.get(name).and_then(Value::as_u64).unwrap_or(0);
    if of("log_kib") == 0 {
        return 0;
    }
    let (groups, pool) = (of("log_groups").max(1), PoolOptions::default());
    let ring = (of("log_kib") * 1024 / groups).saturating_add(64);
    let rings = groups * u64::from(c.cns);
    let memory_bytes_per_node = memory.saturating_add(rings.saturating_mul(ring));
    let chunk = PoolOptions { memory_bytes_per_node, ..pool }.chosen_chunk_bytes();
    rings.saturating_mul(rounded_up(ring, chunk))
}

/// Bytes of memory that this machine has available; a default when unknown.
pub fn available() -> u64 {
    meminfo("MemAvailable:").unwrap_or(8 << 30)
}

/// Refuses keys that do not fit the memory nodes, or this machine, and says what would fit.
pub fn check(c: &Config) -> Result<()> {
    let (k, v) = (longest_key(&c.key_form), u64::from(c.value_size.max()));
    // The lower bound of the memory: the bytes of keys and values.
    let least = c.keys.saturating_mul(k.clamp(8, 24) + v);
    let given = c.memory_bytes.map(|b| b.0.saturating_mul(u64::from(c.mns)));
    if let Some(given) = given
        && given < least
    {
        return Err(Failure::input(format!(
            "{} keys of {k} bytes with values of {v} do not fit {} of memory: give --memory-bytes {} or fewer --keys",
            c.keys,
            Bytes(given),
            Bytes(memory_for(c, c.keys, usual(c))),
        )));
    }
    let need = c.keys.saturating_mul(usual(c) * 6 / 10);
    let have = available();
    if need > have {
        return Err(Failure::input(format!(
            "{} keys of {k} bytes with values of {v} need about {} of memory, and this machine has {} left: give fewer --keys or shorter values",
            c.keys,
            Bytes(rounded_up(need, MIB)),
            Bytes(have / MIB * MIB)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What inserts of long values reserve is what this machine has.
    #[test]
    fn room_for_inserts_follows_their_length() {
        let c = Config { ops: Some(1000), budget: None, duration: None, ..Config::default() };
        let insert: Workload = "insert".parse().unwrap();
        assert_eq!(insert_room(&c, &insert, 100), 1100 + 10_000);
        assert!(insert_room(&c, &insert, 2 * MIB) * 2 * MIB < 3 << 30);
        let timed = Config { ops: None, duration: Some(100.0), ..c };
        assert!(insert_room(&timed, &insert, 2 * MIB) * 2 * MIB <= available().max(768 * MIB) / 3);
    }

    #[test]
    fn more_keys_need_a_larger_cache() {
        assert!(default_cache(10_000_000, &KeyForm::U64) > default_cache(1000, &KeyForm::U64));
    }
}
