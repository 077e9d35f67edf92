//! Runs a case: a pool on the adversarial fabric, the clients, a check of their history, a phase
//! without fabric faults in which every operation must end, and a walk of the structure.

use std::sync::Arc;

use dmtree_fabric::sim::{Choice, FabricFaults, Order, SimFabric};
use dmtree_fabric::{Error, LeaseParameters, Membership, Result, Worker};
use dmtree_parts::{AnyNode, AnyOptions, Fill, Shape};
use dmtree_pool::{ChunkUse, block_class_bytes};

use crate::actors::Actors;
use crate::case::Case;
use crate::client::Client;
use crate::drive::{Bounds, RunContext, found_as};
use crate::fault::{Happened, NodeFault};
use crate::harness::{self, Harness};
use crate::log::{Call, Log, loaded};
use crate::plan;
use crate::quiesce::quiesce;
use crate::server::Server;
use crate::test_cluster::TestCluster;
use crate::verdict::{Finding, Verdict, caught};

/// Buffers of all clients together.
const SLAB_BYTES: u64 = 16 << 20;
/// Virtual time within which the phase with faults must end, ns: longer than an operation waits.
const FAULTS_NS: u64 = 30_000_000_000;
/// Bounds of the phase with fabric faults.
const SAFETY: Bounds = Bounds { until_ns: 120_000_000_000, steps: 20_000_000 };
/// Bounds of a small case with an order of verbs from a list: a client may poll for ever for a verb
/// that the list holds back.
const LISTED: Bounds = Bounds { until_ns: 120_000_000_000, steps: 100_000 };
/// A node acknowledges an epoch within this time of virtual time, ns: its operations may be stalled
/// that long.
const ACKNOWLEDGE_NS: u64 = 1_000_000_000;
/// Steps within which each operation must end that judges the structure: time stands still.
const JUDGED_STEPS: u64 = 2_000_000;
/// Virtual time within which the phase without fabric faults must end, ns.
const LIVENESS_NS: u64 = 5_000_000_000;
/// The same when operations may wait until their deadline.
const LIVENESS_AFTER_LOSS_NS: u64 = 15_000_000_000;

/// Runs a case with an index of the type of these options; its options are those of the case, and
/// `order` is the order of the verbs. Also returns the choices made on the way, when they are
/// listed. An error is of a case that cannot be run; failures of a run are in the verdict.
pub fn run(index: &AnyOptions, case: &Case, order: &Order) -> Result<(Verdict, Vec<Choice>)> {
    case.check()?;
    let options = index.with(case.options.clone());
    options.check().map_err(|e| Error::invalid(format!("options of {}: {e}", case.system)))?;
    let fabric = SimFabric::adversarial(case.fabric_faults, case.grants, case.order)?;
    let server = Arc::new(Server::new());
    if case.rejoins() {
        server.judge().set_agents(case.pool.memory_nodes);
    }
    let way = (server.judge().clone(), server.clone() as Arc<dyn Membership>);
    let (pool, cache_bytes) = (case.pool.options(), case.pool.cache_bytes);
    let test_cluster = TestCluster::served(&fabric, &pool, cache_bytes, &options, way)?;
    fabric.sanitize();
    load(&test_cluster, case)?;
    let harness = Harness::on(test_cluster, fabric.clone(), SLAB_BYTES)?;
    let until_ns = if case.node_faults.is_empty() { SAFETY.until_ns } else { FAULTS_NS };
    let bounds = match order {
        Order::Listed { .. } => LISTED,
        _ => Bounds { until_ns, ..SAFETY },
    };
    let shared = RunContext::new((harness, case), server, bounds)?;
    let mut choices = Vec::new();
    let mut verdict = match caught(|| phases(&shared, order, &mut choices)) {
        Ok(verdict) => verdict?,
        Err(panic) => Verdict { finding: Some(Finding::panic(None, &panic)), ..Verdict::default() },
    };
    verdict.operations = verdict.log.records().len() as u64;
    verdict.trace_hash = fabric.trace_hash() ^ verdict.log.hash().rotate_left(32);
    verdict.virtual_ns = fabric.now();
    Ok((verdict, choices))
}

/// The keys that are present at first; those that clients will write are foretold.
fn load(test_cluster: &TestCluster, case: &Case) -> Result<()> {
    let written = (0..case.numbers()).filter(|n| case.is_written(*n));
    test_cluster.client(0)?.foretell(written.map(|n| plan::key(case.key_form, n)))?;
    let there = (0..case.numbers()).filter(|n| !case.is_written(*n));
    let pair =
        |n| (plan::key(case.key_form, n), plan::value(loaded(n), plan::length(case, loaded(n))));
    let pairs: Vec<_> = there.map(pair).collect();
    if !pairs.is_empty() {
        let fill = Fill::Even(f64::from(case.fill_percent) / 100.0);
        test_cluster.client(0)?.load(pairs, true, fill)?;
    }
    Ok(())
}

/// The index on the compute nodes that are up.
type Living = Vec<(usize, AnyNode)>;

fn phases(shared: &RunContext<'_>, order: &Order, choices: &mut Vec<Choice>) -> Result<Verdict> {
    let fabric = &shared.fabric;
    fabric.set_timed(true);
    fabric.set_order(order);
    let finished = clients(shared, choices);
    fabric.set_timed(false);
    let (mut verdict, living) = finished?;
    if let Some(finding) = verdict.finding.take() {
        // A wrong answer says more than the failures that follow from it.
        verdict.finding = match (finding, verdict.log.check()) {
            (torn, _) if torn.kind() == "torn" => Some(torn),
            (_, Err(wrong)) => Some(Finding::History(wrong)),
            (finding, Ok(())) => Some(finding),
        };
        return Ok(verdict);
    }
    let lost = |h: &Happened| matches!(h.fault, NodeFault::LoseMemory { .. });
    let mut broken = None;
    if !verdict.happened.iter().any(lost) {
        let log = &mut verdict.log;
        let judged = || afterwards(shared, &living, log);
        broken = match caught(judged) {
            Ok(done) => done.err().map(Finding::structure),
            Err(panic) => Some(Finding::panic(None, &panic)),
        };
    }
    let wrong = verdict.log.check().err().map(Finding::History);
    let touched =
        fabric.reports().into_iter().next().map(|what| Finding::Other("access", None, what));
    verdict.finding = wrong.or(broken).or(touched);
    Ok(verdict)
}

/// Runs all clients on one executor, first with fabric and node faults, then without.
fn clients(shared: &RunContext<'_>, choices: &mut Vec<Choice>) -> Result<(Verdict, Living)> {
    let (fabric, case) = (&shared.fabric, shared.case);
    let actors = Actors::new(shared)?;
    shared.server.judge().set_lease_parameters(LeaseParameters {
        lease_ns: case.lease_ns,
        acknowledge_ns: ACKNOWLEDGE_NS,
        mutant: case.mutant,
        ..LeaseParameters::default()
    });
    let mut policy = case.schedule.policy(case.order);
    let mut worker = Worker::new(shared.core().clone());
    let mut work = |worker: &mut Worker<'_>| shared.execute(worker, &mut *policy);
    shared.node_states.begin(&shared.test_cluster.cluster)?;
    actors.phase(&mut worker, false);
    work(&mut worker);
    *choices = fabric.choices();
    fabric.set_order(&Order::Drawn);
    shared.node_states.end_faults();
    if case.liveness && !shared.is_over() && !shared.node_states.membership_lost.get() {
        fabric.set_fabric_faults(FabricFaults::NONE);
        let lasts =
            if shared.node_states.has_lost() { LIVENESS_AFTER_LOSS_NS } else { LIVENESS_NS };
        shared.begin_phase("liveness", Bounds { until_ns: fabric.now() + lasts, ..SAFETY });
        actors.phase(&mut worker, true);
        if !case.node_faults.is_empty() {
            actors.wait_for_quiescence(&mut worker);
        }
        work(&mut worker);
        if !case.node_faults.is_empty() && !shared.is_over() && !shared.node_states.has_lost() {
            shared.node_states.reconnect_links();
            let until_ns = fabric.now() + LIVENESS_NS;
            shared.begin_phase("maintenance", Bounds { until_ns, ..SAFETY });
            actors.finish_maintenance(&mut worker);
            work(&mut worker);
        }
    }
    drop(worker);
    let nodes = actors.nodes.take();
    drop(actors);
    let living = shared.node_states.living().map(|cn| (cn, nodes[cn].clone())).collect();
    Ok((shared.verdict(), living))
}
/// After the last client has ended: reads every key once more, compares with a scan, and walks the
/// structure.
fn afterwards(shared: &RunContext<'_>, living: &Living, log: &mut Log) -> Result<()> {
    let (test_cluster, case) = (&shared.test_cluster, shared.case);
    let client = |(cn, node): &(usize, AnyNode)| {
        Ok::<_, Error>(test_cluster.client_of(*cn, node.clone())?.within(JUDGED_STEPS))
    };
    let nodes = living.iter().map(|(cn, _)| test_cluster.cluster.compute_node(*cn));
    quiesce(test_cluster.membership(), case, &nodes.collect::<Result<Vec<_>>>()?)?;
    for node in living {
        client(node)?.maintain().map_err(|e| e.context("maintenance"))?;
    }
    let Some(mut c) = living.first().map(client).transpose()? else { return Ok(()) };
    let mut keys = 0;
    for n in 0..case.numbers() {
        let record = log.call(case.total(), 0, Call::Get(n));
        let value = c.get(&plan::key(case.key_form, n)).map_err(|e| e.context("a last get"))?;
        keys += u64::from(value.is_some());
        log.ret(record, 0, found_as(value.as_ref()));
    }
    let refuses = case.fabric_faults.refuse_memory_one_in > 0;
    let (shape, _) = harness::judge(&mut c, keys, !case.node_faults.is_empty() || refuses)?;
    if case.shrinks_at > 0 && !refuses {
        // The collection may have found leaves for the queues of other nodes than those that wait.
        for node in living {
            client(node)?.maintain().map_err(|e| e.context("maintenance"))?;
        }
        for node in living {
            stays_small(&mut client(node)?, case, &node.1)?;
        }
        harness::judge(&mut c, keys, false)?;
    }
    // Where the fabric refuses memory, the return of free memory may be refused, too.
    if case.rejoins() && !refuses {
        space(test_cluster, living, &shape)?;
    }
    Ok(())
}

/// When nothing else runs, a smaller budget holds to the byte.
fn stays_small(c: &mut Client, case: &Case, node: &AnyNode) -> Result<()> {
    let bytes = case.smaller_cache_bytes();
    c.set_cache_bytes(bytes).map_err(|e| e.context("a smaller cache"))?;
    let stats = node.cache_stats();
    if stats.used_bytes + stats.image_bytes > bytes || stats.budget_bytes != bytes {
        return Err(Error::corrupt(format!("the budget is {bytes} bytes: {stats:?}")));
    }
    Ok(())
}

/// Memory that holds no data is returned. Once every node has handed in its free memory, each chunk
/// for blocks holds at least one block: a chunk without one is whole, and a whole chunk has no
/// owner. (Blocks of the tables of dLSM count as structure; its logs and manifests are longer.)
fn space(test_cluster: &TestCluster, living: &Living, shape: &Shape) -> Result<()> {
    let mut last = None;
    for (cn, _) in living {
        let node = test_cluster.cluster.compute_node(*cn)?;
        let ep = node.endpoint(0)?;
        let handed_in = ep.core().block_on(ep.slot(), node.supply().hand_in(&ep));
        handed_in.map_err(|e| e.context("free memory is handed in"))?;
        last = Some((node, ep));
    }
    let Some((node, ep)) = last else { return Ok(()) };
    let usage = ep.core().block_on(ep.slot(), node.usage_all(&ep))?;
    let uses = usage.memory.iter().flat_map(|m| &m.by_use);
    let of_blocks = uses.filter(|u| u.used_for == ChunkUse::Blocks);
    let chunks: u64 = of_blocks.map(|u| u64::from(u.chunks)).sum();
    let most = shape.block_bytes / u64::from(block_class_bytes(0));
    if chunks > most {
        return Err(Error::corrupt(format!(
            "{chunks} chunks are in use for blocks; blocks of {} bytes need no more than {most}",
            shape.block_bytes
        )));
    }
    Ok(())
}
