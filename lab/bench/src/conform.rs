//! Runs the conformance suite on compute nodes of two processes.

use dmtree_check::checked::System;
use dmtree_check::conformance::{Part, parts};
use dmtree_check::remote_client::{Ask, Pipe, RemoteClient, read, serve};
use dmtree_check::test_cluster::TestCluster;
use dmtree_check::verdict::caught;
use dmtree_fabric::Error;
use dmtree_parts::AnyOptions;
use dmtree_pool::Cluster;

use crate::failure::{Failure, Result};
use crate::opened::remove_index;
use crate::registry::find;

/// Cache of each index: small, so that inner nodes are evicted.
const CACHE_BYTES: u64 = 8 << 20;

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Seed of all random choices.
    pub seed: u64,
    /// Operations of the longest part.
    pub steps: u64,
    /// Whether clients of both processes also work at the same time. Systems as published do not
    /// tolerate this. The compare-and-swap of Soft-RoCE writes the old value back when it fails: an
    /// unlock in between was undone, FPTree lost a lock, and both processes waited for it in vain.
    /// Checked runs without `cas_fail_is_readonly` find the same.
    pub together: bool,
}

/// Runs the suite on an index of this process that another process, behind the pipe, opens, too. A
/// system as published executes one operation at a time.
///
/// # Errors
/// A result that does not conform.
pub fn conform(
    system: &System,
    (cluster, other): (&Cluster, &RemoteClient),
    e: Extent,
) -> Result<()> {
    let options = system.options.with((system.conforming)(&system.options));
    let together = e.together && !system.published;
    for (name, part) in parts(options.ops(), e.seed, e.steps, together) {
        run_part(system.name, &options, (cluster, other), (name, part))
            .map_err(|e| e.context(&format!("{}: {name}", system.name)))?;
    }
    Ok(())
}

fn run_part(
    system: &str,
    options: &AnyOptions,
    (cluster, other): (&Cluster, &RemoteClient),
    (name, part): Part,
) -> Result<()> {
    // No other living process uses this name. A killed process of the same number may have left it.
    let index = format!("{system} {name} {}", cluster.compute_node(0)?.cn());
    remove_index(cluster, &index)?;
    let called = (&index[..], system);
    let test_cluster = TestCluster::open_or_create(cluster.clone(), CACHE_BYTES, options, called)?;
    other.open(system, &index).map_err(|e| e.context("the other process"))?;
    let test_cluster = test_cluster.with(other.clone());
    caught(|| part(&test_cluster)).map_err(Failure::violation)?;
    other.close()?;
    drop(test_cluster);
    remove_index(cluster, &index)
}

/// Runs the second compute node: opens indexes and executes requests until the pipe ends.
///
/// # Errors
/// The first process has ended in the middle of a request.
pub fn second(cluster: &Cluster, pipe: &mut Pipe) -> Result<()> {
    while let Some(message) = pipe.receive()? {
        let Ask::Open { system, index } = read(&message)? else {
            pipe.give::<()>(Err(Error::invalid("no index is open")))?;
            continue;
        };
        let opened = find(&system).map_err(|e| Error::invalid(e.to_string())).and_then(|system| {
            let found = TestCluster::find(cluster.clone(), CACHE_BYTES, &system.options, &index)?;
            Ok((found.client(0)?, found))
        });
        match opened {
            Ok((mut client, _test_cluster)) => {
                pipe.give(Ok(()))?;
                serve(&mut client, pipe)?;
            }
            Err(e) => pipe.give::<()>(Err(e))?,
        }
    }
    Ok(())
}
