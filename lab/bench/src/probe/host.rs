//! What this machine's cores take for the steps of a data service: the fields of `[host]`.
//!
//! A service on a node in this process runs one kind of step many times in a call. The memory that
//! it visits is larger than a cache, and each visit depends on what the one before has read. What
//! a call takes besides is this program's part of it; a NIC's driver is not in it.

use std::sync::Arc;

use dmtree_fabric::local::LocalFabric;
use dmtree_fabric::{
    Endpoint, Error, Fabric, Nanos, NodeId, OwnMemory, Result as FabricResult, Service, ServiceId,
    golden_hash,
};

use super::{FROM, TO};
use crate::failure::Result;
use crate::simulated::Profile;

const SERVICE: ServiceId = ServiceId(1);
/// Memory of the node, bytes: more than caches hold.
pub const REGION_BYTES: u64 = 256 << 20;
/// A page, bytes: as a leaf of the trees here.
const PAGE_BYTES: u64 = 1408;
/// Entries of a page, and bytes of one.
const ENTRIES: u64 = 32;
const ENTRY_BYTES: u64 = 40;
/// Steps of a call.
const STEPS: u8 = 64;

/// Medians of one thread, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    /// A call of a handler that does nothing.
    pub call_ns: f64,
    /// A search in a page that is in no cache.
    pub node_ns: f64,
    /// A check of an entry of a page that was just visited.
    pub entry_ns: f64,
    /// A copy of a KiB of such memory.
    pub copy_ns: f64,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Page,
    Entry,
    Copy,
}

/// The service: the first byte of a request is the number of steps, the second one their kind.
struct Work {
    pages: u64,
}

impl Service for Work {
    async fn answer(&self, ep: &Endpoint, _: NodeId, request: &[u8]) -> FabricResult<Vec<u8>> {
        let [steps, kind] = request else { return Err(Error::invalid("two bytes")) };
        let kind = match kind {
            0 => Kind::Page,
            1 => Kind::Entry,
            _ => Kind::Copy,
        };
        if *steps == 0 {
            return Ok(vec![0; 8]);
        }
        let memory = ep.own_memory().ok_or_else(|| Error::unsupported("no memory of its own"))?;
        let mut seen = ep.now();
        for _ in 0..*steps {
            seen = step(&memory, (kind, self.pages), seen)?;
        }
        Ok(seen.to_le_bytes().to_vec())
    }

    fn is_data(&self) -> bool {
        true
    }
}

/// One step, in a place that follows from what was seen before it.
fn step(memory: &OwnMemory<'_>, (kind, pages): (Kind, u64), seen: u64) -> FabricResult<u64> {
    let places = match kind {
        Kind::Page => pages,
        // A few pages that stay in a cache.
        Kind::Entry | Kind::Copy => 8,
    };
    let hash = golden_hash(seen | 1);
    let page = 64 + (hash >> 16) % places * PAGE_BYTES;
    let mut word = [0; 8];
    match kind {
        Kind::Page => {
            // Halves the entries until one is left.
            let (mut low, mut half, mut sum) = (0, ENTRIES / 2, hash);
            while half > 0 {
                memory.read(page + 64 + (low + half) * ENTRY_BYTES, &mut word)?;
                sum ^= u64::from_le_bytes(word);
                low += if sum >> half & 1 == 1 { half } else { 0 };
                half /= 2;
            }
            Ok(golden_hash(sum))
        }
        Kind::Entry => {
            let mut entry = [0; ENTRY_BYTES as usize];
            memory.read(page + 64 + (hash >> 40) % ENTRIES * ENTRY_BYTES, &mut entry)?;
            let words =
                entry.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or(word)));
            Ok(words.fold(hash, |sum, w| golden_hash(sum ^ w)))
        }
        Kind::Copy => {
            let mut kib = [0; 1024];
            memory.read(page, &mut kib)?;
            Ok(golden_hash(hash ^ u64::from(kib[(hash >> 50) as usize % 1024])))
        }
    }
}

/// Measures the steps on so many bytes of memory, 1 MiB at least, each for about so long.
///
/// # Errors
/// `Full` without memory for the node.
pub fn measure(region_bytes: u64, for_ns: Nanos) -> Result<Steps> {
    let fabric = LocalFabric::new();
    fabric.add_node(FROM, 1 << 12)?;
    fabric.add_node(TO, region_bytes)?;
    fabric.serve(TO, SERVICE, Arc::new(Work { pages: region_bytes / PAGE_BYTES - 1 }))?;
    let ep = Endpoint::alone(fabric.attach(FROM)?, 0);
    ep.block_on(async {
        // Pages that nothing has written are one page of zeroes.
        for at in (4096..region_bytes).step_by(4096) {
            ep.write_word(dmtree_fabric::GlobalAddr::new(TO, at), at).await?;
        }
        Ok(())
    })?;
    let call_ns = median(&ep, [0, 0], for_ns)?;
    let each = |kind: Kind| -> Result<f64> {
        let took = median(&ep, [STEPS, kind as u8], for_ns)?;
        Ok((took - call_ns).max(0.0) / f64::from(STEPS))
    };
    let (node_ns, entry_ns, copy_ns) = (each(Kind::Page)?, each(Kind::Entry)?, each(Kind::Copy)?);
    Ok(Steps { call_ns, node_ns, entry_ns, copy_ns })
}

/// The median time of a call, ns.
fn median(ep: &Endpoint, request: [u8; 2], for_ns: Nanos) -> Result<f64> {
    let (began, mut times, mut reply) = (ep.now(), Vec::new(), Vec::new());
    while times.len() < 16 || (ep.now() - began < for_ns && times.len() < 1 << 20) {
        let before = ep.now();
        ep.block_on(ep.rpc(TO, SERVICE, &request, &mut reply))?;
        times.push(ep.now() - before);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64)
}

impl Steps {
    /// In tenths of ns, at most what a profile takes: `lines` and `apply` give the same numbers,
    /// also of a time halfway between two tenths, which formats and `round` take to other sides.
    fn rounded(&self) -> Self {
        let tenths = |ns: f64| (ns * 10.0).round() / 10.0;
        Self {
            call_ns: tenths(self.call_ns),
            node_ns: tenths(self.node_ns).min(1e6),
            entry_ns: tenths(self.entry_ns).min(1e6),
            copy_ns: tenths(self.copy_ns).min(1e6),
        }
    }

    /// As lines of a profile.
    pub fn lines(&self) -> String {
        let Self { call_ns, node_ns, entry_ns, copy_ns } = self.rounded();
        format!(
            "[host]\ncall_ns = {call_ns:.1}\nnode_ns = {node_ns:.1}\nentry_ns = {entry_ns:.1}\ncopy_ns = {copy_ns:.1}\n"
        )
    }

    /// Puts them into a profile.
    pub fn apply(&self, p: &mut Profile) {
        let Self { call_ns, node_ns, entry_ns, copy_ns } = self.rounded();
        p.host.call_ns = call_ns;
        p.host.node_ns = node_ns;
        p.host.entry_ns = entry_ns;
        p.host.copy_ns = copy_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The profile that the lines are, and the one that the steps are put into.
    fn read_and_made(steps: &Steps) -> (Profile, Profile) {
        let text = format!(
            "name = \"mine\"\ndescription = \"d\"\ntrust = \"t\"\nbase = \"ideal\"\n\n{}",
            steps.lines()
        );
        let read = Profile::parse("mine.toml", &text).expect("the simulator takes it");
        let mut made = Profile::named("ideal").expect("shipped");
        steps.apply(&mut made);
        (read, made)
    }

    #[test]
    fn every_step_takes_time_and_the_lines_are_a_profile() {
        let steps = measure(4 << 20, 2_000_000).expect("memory");
        let all = [steps.call_ns, steps.node_ns, steps.entry_ns, steps.copy_ns];
        assert!(all.iter().all(|ns| *ns > 0.0 && *ns < 1e6), "{steps:?}");
        let (read, made) = read_and_made(&steps);
        assert_eq!(read.host, made.host);
    }

    #[test]
    fn times_halfway_between_two_tenths_are_the_same_in_both() {
        let steps = Steps { call_ns: 851.0, node_ns: 558.75, entry_ns: 410.25, copy_ns: 107.25 };
        let (read, made) = read_and_made(&steps);
        assert_eq!(read.host, made.host);
        assert_eq!(made.host.copy_ns, 107.3);
    }
}
