//! The systems of this crate: dLSM as published, its relatives, and its techniques, one left out
//! of each.

use dmtree_parts::peer::{Fit, Mutant, NodeFaultSet, Soon, SystemSpec, typed, value};

use crate::defects::defects;
use crate::format::Format;
use crate::index::Dlsm;
use crate::mutants;
use crate::node;
use crate::options::{Merging, Options};

/// Every system of this crate. Memory nodes of this process have their service from then on.
pub fn systems() -> Vec<SystemSpec> {
    node::provide_service();
    let base = Options::published;
    vec![
        sound("dlsm", "dLSM made sound: any key from any node, a log, take-over", Options::sound()),
        sound(
            "dlsm-no-log",
            "the same without a log: what the owner's memory had dies with it",
            Options { log: false, ..Options::sound() },
        ),
        spec("dlsm-published", "dLSM as published: tables on memory nodes, merged there", base()),
        spec("rocksdb-rdma-8k", "RocksDB over RDMA, blocks of 8 KiB", Options::rocksdb(8192)),
        spec("rocksdb-rdma-2k", "RocksDB over RDMA, blocks of 2 KiB", Options::rocksdb(2048)),
        spec("memory-rocksdb-rdma", "RocksDB over RDMA, a pair a block", Options::rocksdb(1)),
        spec("nova-lsm", "Nova-LSM: 64 ranges, reads and writes by calls", Options::nova()),
        spec(
            "dlsm-no-queue",
            "dLSM without its removal of the queue of writers",
            Options { queue: true, ..base() },
        ),
        spec(
            "dlsm-blocks",
            "dLSM with blocks of 8 KiB",
            Options { format: Format::Blocks(8192), ..base() },
        ),
        spec(
            "dlsm-local",
            "dLSM that merges at the owner",
            Options { merging: Merging::Owner, ..base() },
        ),
        spec(
            "dlsm-adaptive",
            "dLSM that merges where a core is free",
            Options { merging: Merging::Adaptive, ..base() },
        ),
        spec(
            "dlsm-sync-flush",
            "dLSM that awaits every WRITE of a flush",
            Options { ring: false, ..base() },
        ),
    ]
}

fn sound(name: &'static str, about: &'static str, options: Options) -> SystemSpec {
    let recovers = options.log;
    SystemSpec {
        published: false,
        sound: true,
        recovers,
        mutants: match recovers {
            true => Mutant::list(mutants::Mutant::ALL.iter().map(|m| m.name()), &soon()),
            false => Vec::new(),
        },
        enable: mutants::Mutant::enable_named,
        ..spec(name, about, options)
    }
}

/// Mutants that few seeds find.
fn soon() -> [(&'static str, Soon); 3] {
    let soon = |node_faults, seeds, kind| Soon { node_faults, seeds, kind };
    [
        ("AcknowledgeEarly", soon(NodeFaultSet::Crash, 40, "history")),
        ("LogForgotten", soon(NodeFaultSet::Crash, 20, "history")),
        ("SegmentEarly", soon(NodeFaultSet::Crash, 80, "failed")),
    ]
}

dmtree_parts::any_options! { Options => Dlsm }

fn spec(name: &'static str, about: &'static str, options: Options) -> SystemSpec {
    SystemSpec {
        published: true,
        ranges: Options::RANGES,
        bytes_per_key: |_, fit| bytes_per_key(fit),
        draw: |options, below| value(&typed::<Options>(options).drawn(below)),
        least_cache_bytes: |_| 1 << 20,
        conforming: |options| value(&typed::<Options>(options).repaired()),
        defects: defects(name),
        ..SystemSpec::of((name, "dlsm"), about, options)
    }
}

/// Data, index and filter, twice while they are merged, and levels of stale versions.
fn bytes_per_key(fit: &Fit) -> u64 {
    let (key, value) = (u64::from(fit.key_bytes), u64::from(fit.value_bytes));
    3 * (16 + key + value + 18 + key + 2)
}
