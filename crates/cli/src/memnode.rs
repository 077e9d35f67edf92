//! `memnode`: be a memory node.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dmtree_command::bytes::Bytes;
use dmtree_command::{Failure, Result};
use dmtree_fabric::LeaseParameters;
use dmtree_fabric::net::{DataPath, KeptIn, NicConfig};
use dmtree_fabric::trace::{Event, report};
use dmtree_pool::{MemoryNode, Place, PoolJournal, PoolOptions};

use crate::args::{JournalLevel, JournalLoss, MemnodeArgs, carried};
use crate::metrics::Port;
use crate::{Hangup, lab, log, output, stop_flag};

/// Longest wait between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// The shortest lease of etcd with its own settings.
const ETCD_KEEPS_MS: u64 = 2_000;

/// Serves until the process is told to stop.
pub fn run(a: &MemnodeArgs) -> Result<()> {
    let stop = stop_flag(Hangup::GoesOn)?;
    lab::provide_services();
    log::begin(&a.log)?;
    let port = Port::open(&a.metrics)?;
    let data_path = a.fabric.as_deref().map(carried).transpose()?;
    let mut nic_config = a.nic.nic_config(&a.access)?;
    nic_config.huge_pages = !a.ordinary_pages;
    let limit = |Bytes(n): Bytes| u32::try_from(n).unwrap_or(u32::MAX);
    nic_config.cores = a.cores;
    nic_config.on_chip_bytes = a.on_chip_bytes.map(limit);
    let nic_config = &nic_config;
    let default = nic_config.access.any_port().replace(":0", ":7000");
    let listen = a.listen.as_deref().unwrap_or(&default);
    let node = match &a.join {
        None => found(a, listen, data_path.unwrap_or_default(), nic_config),
        Some(first) => {
            output::note(&format!("joining the pool of {first}"));
            let wanted = a.index;
            let within = Duration::from_secs(a.wait);
            let place = Place { first, listen, wanted, within, data_path, nic_config };
            MemoryNode::join(&place, a.memory_bytes.0)
        }
    };
    let node = node.map_err(Failure::refused)?;
    output::line(&format!(
        "{} serves {} at {}; what it holds is lost when it stops",
        node.node(),
        a.memory_bytes,
        node.listens()
    ));
    let fabric = node.fabric();
    let status = fabric.clone();
    port.serve(Arc::new(move || status.status()))?;
    if let Some((nic, on_chip)) = fabric.nic() {
        let exposed = match on_chip {
            0 => String::new(),
            bytes => format!(" and {bytes} bytes of on-chip memory"),
        };
        output::line(&format!("verbs over {nic}; a region on {}{exposed}", fabric.pages()));
    }
    if a.join.is_none() {
        output::line(&format!(
            "compute nodes: dmtree shell --connect {}{}",
            a.membership.as_deref().unwrap_or(node.listens()),
            lab::or_measure(node.listens(), fabric.data_path())
        ));
    }
    while !stop.load(Ordering::SeqCst) {
        for line in node.take_news() {
            match a.log.log {
                None => output::note(&line),
                Some(_) => report(Event::Membership, || line),
            }
        }
        std::thread::park_timeout(LOOK);
    }
    Ok(())
}

fn found(
    a: &MemnodeArgs,
    listen: &str,
    data_path: DataPath,
    nic_config: &NicConfig,
) -> dmtree_fabric::Result<MemoryNode> {
    let options = PoolOptions {
        memory_nodes: a.memory_nodes,
        compute_nodes: a.compute_nodes,
        memory_bytes_per_node: a.memory_bytes.0,
        compute_bytes_per_node: a.compute_bytes.0,
        chunk_bytes: a.chunk_bytes.map(|Bytes(n)| n),
        journal: a.journal.map(|nodes| PoolJournal {
            nodes,
            syncs: a.level == JournalLevel::Sync,
            goes_on: a.on_journal_loss == JournalLoss::GoOn,
            accepts_gaps: a.accept_gaps,
        }),
        ..PoolOptions::default()
    };
    let lease_parameters =
        LeaseParameters { lease_ns: a.lease_ms * 1_000_000, ..LeaseParameters::default() };
    let kept_in = a.membership.as_deref().map(|address| KeptIn { address, anew: a.anew });
    if kept_in.is_some() && a.lease_ms < ETCD_KEEPS_MS {
        output::note(&format!(
            "etcd keeps a lease for {ETCD_KEEPS_MS} ms at least: a process that hangs is dead to the others after that, not after {} ms",
            a.lease_ms
        ));
    }
    MemoryNode::found_in((listen, kept_in), &options, lease_parameters, data_path, nic_config)
}
