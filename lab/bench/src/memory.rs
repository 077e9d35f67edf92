//! Memory per key, on memory nodes and in caches, and the peak of the resident memory of this
//! process.

use dmtree_parts::{CacheStats, Shape};

use crate::results::{MemoryFigures, kibibytes};

/// Memory figures from the walked structure (`on_memory`: tables lie on memory nodes), and from the
/// caches of the compute nodes with clients.
pub fn figures(
    shape: &Shape,
    on_memory: bool,
    clients: &[u32],
    cache: impl Fn(usize) -> CacheStats,
) -> MemoryFigures {
    let keys = shape.keys.max(1) as f64;
    let tables = shape.table_bytes as f64;
    let mn =
        (shape.structure_bytes + shape.block_bytes) as f64 + if on_memory { tables } else { 0.0 };
    let with_clients: Vec<CacheStats> =
        clients.iter().enumerate().filter(|(_, n)| **n > 0).map(|(cn, _)| cache(cn)).collect();
    let nodes = with_clients.len().max(1) as f64;
    let mean =
        |of: fn(&CacheStats) -> u64| with_clients.iter().map(|s| of(s) as f64).sum::<f64>() / nodes;
    let used = mean(|s| s.used_bytes);
    let part = |(i, name): (usize, &str)| {
        let sum: u64 = with_clients.iter().map(|s| s.parts[i].1).sum();
        (name.to_owned(), sum / nodes as u64)
    };
    let names = with_clients.first().map_or_else(Vec::new, |s| s.parts.map(|p| p.0).to_vec());
    let named = names.into_iter().enumerate().filter(|(_, name)| !name.is_empty());
    let caches: u64 = (0..clients.len()).map(|cn| cache(cn).used_bytes).sum();
    let held = shape.structure_bytes + shape.block_bytes + shape.table_bytes + caches;
    let cached_share = (mean(|s| s.nodes) / shape.inner_nodes.max(1) as f64).min(1.0);
    let cached_keys = cached_share * keys;
    MemoryFigures {
        keys: shape.keys,
        mn_bytes_per_key: mn / keys,
        table_bytes_per_key: tables / keys,
        cached_share,
        cn_bytes_per_cached_key: if cached_keys > 0.0 { used / cached_keys } else { 0.0 },
        cache_used_bytes: used as u64,
        cache_parts: named.map(part).collect(),
        cache_budget_bytes: with_clients.first().map_or(0, |s| s.budget_bytes),
        leaves: shape.leaves.clone(),
        inner_nodes: shape.inner_nodes,
        levels: shape.levels,
        held_bytes: held,
        ..MemoryFigures::default()
    }
}

/// Bytes of the average leaf besides the keys and values of its slots, which take `pair` bytes;
/// none where leaves are not counted one by one, or do not have their pairs in them.
pub fn leaf_metadata(shape: &Shape, pair: u64) -> Option<f64> {
    let leaves: u64 = shape.leaves.iter().map(|(_, n)| n).sum();
    let slots: u64 = shape.leaves.iter().map(|(slots, n)| u64::from(*slots) * n).sum();
    let rest = shape.leaf_bytes.checked_sub(slots * pair)?;
    (leaves > 0).then(|| rest as f64 / leaves as f64)
}

/// Share of cache hits between two readings of (hits, misses). Every operation counts as at least
/// one lookup, also where an index does not count its hits.
pub fn hit_rate(before: (u64, u64), after: (u64, u64), ops: u64) -> f64 {
    let misses = after.1.saturating_sub(before.1);
    let lookups = (after.0.saturating_sub(before.0) + misses).max(ops).max(1);
    1.0 - misses as f64 / lookups as f64
}

/// Measures the peak from a time on.
#[derive(Clone, Copy, Debug)]
pub struct Peak(bool);

impl Peak {
    /// Resets the peak, where the system (Linux) can.
    pub fn begin() -> Self {
        // proc_pid_clear_refs(5): 5 sets the peak to what is resident now.
        Self(std::fs::write("/proc/self/clear_refs", "5").is_ok())
    }

    /// Resident bytes at the peak since then; `None` where the system does not tell.
    pub fn bytes(self) -> Option<u64> {
        let status = self.0.then(|| std::fs::read_to_string("/proc/self/status"))?;
        kibibytes(&status.ok()?, "VmHWM:")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_with_clients_count() {
        let shape = Shape {
            keys: 100,
            structure_bytes: 4000,
            block_bytes: 1000,
            table_bytes: 300,
            inner_nodes: 4,
            ..Shape::default()
        };
        let cache = |cn| CacheStats {
            used_bytes: if cn == 0 { 1000 } else { 0 },
            nodes: 2,
            ..CacheStats::default()
        };
        let f = figures(&shape, false, &[3, 0], cache);
        assert_eq!((f.mn_bytes_per_key, f.table_bytes_per_key), (50.0, 3.0));
        assert_eq!(f.held_bytes, 6300);
        assert_eq!((f.cached_share, f.cn_bytes_per_cached_key), (0.5, 20.0));
        assert_eq!(hit_rate((10, 5), (100, 15), 50), 0.9);
        assert_eq!(hit_rate((0, 5), (0, 15), 100), 0.9);
        let f = figures(&shape, true, &[3], cache);
        assert_eq!(f.mn_bytes_per_key, 53.0);
    }

    #[test]
    fn metadata_is_what_pairs_leave_of_a_leaf() {
        let mut shape = Shape::default();
        assert_eq!(leaf_metadata(&shape, 16), None);
        shape.add_leaf(4, 1, 100);
        shape.add_leaf(6, 6, 150);
        assert_eq!(leaf_metadata(&shape, 16), Some((250.0 - 160.0) / 2.0));
        assert_eq!(leaf_metadata(&shape, 26), None);
    }

    #[test]
    fn lines_of_a_status() {
        let peak = |status| kibibytes(status, "VmHWM:");
        assert_eq!(peak("VmPeak:\t 9 kB\nVmHWM:\t   12 kB\nVmRSS:\t 3 kB\n"), Some(12 << 10));
        assert_eq!(peak("VmRSS:\t 3 kB\n"), None);
        assert_eq!(peak("VmHWM:\t x kB\n"), None);
    }

    #[test]
    fn forgets_what_was_held_before() {
        const HELD: usize = 256 << 20;
        let held = vec![1u8; HELD];
        let all = Peak::begin();
        assert!(held.iter().all(|b| *b == 1));
        drop(held);
        let without = Peak::begin();
        if let (Some(all), Some(without)) = (all.bytes(), without.bytes()) {
            assert!(without + (HELD / 2) as u64 <= all.max(HELD as u64), "{without} of {all}");
        }
    }
}
