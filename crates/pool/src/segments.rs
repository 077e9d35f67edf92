//! Where an owner takes the segments of its partitions from, and what comes back when a partition
//! has moved away.
//!
//! A segment comes, in this order, from segments that have come back, from the remainder of the
//! compute node's region, or from chunks that a memory node takes from its own chunk service. Its
//! memory is zero: fresh regions and chunks are, and a segment that has come back is zeroed with
//! WRITEs before it is handed out. A failed WRITE puts the segment back.
//!
//! *No partition gets memory that it has had before.* A detached WRITE of a table may execute after
//! its operation has ended, and so after the partition has moved. The table's checksum covers its
//! id, so in a cell of another partition it is no table, and the client that locks that cell builds
//! the table anew. In a cell of the same id it would be an old version that passes for a new one.
//! Therefore every piece of returned memory remembers the partitions that have had it, also when it
//! is split.
//!
//! Nothing here survives the process. That is sound, because the region of a compute node does not
//! survive it either, and a memory node that is lost takes its partitions along.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dmtree_fabric::{Endpoint, GlobalAddr, Member, Result};

use crate::chunks::{ChunkService, RunRequest};
use crate::layout::{ChunkUse, compute_base};
use crate::wire::locked;

/// Bytes that are zeroed together.
const PIECE: u64 = 64 << 10;

/// Memory for segments of one owner. All of it is zero when taken.
pub(crate) struct SegmentSpace {
    fresh: Fresh,
    returned: Mutex<ReturnedSegments>,
}

enum Fresh {
    /// The rest of a compute node's region: next byte, end.
    Region(Mutex<(u64, u64)>),
    /// Chunks of a memory node: the remainders of chunks taken before.
    Chunks { service: Arc<ChunkService>, chunk_bytes: u64, rests: Mutex<Vec<(u64, u64)>> },
}

#[derive(Default)]
struct ReturnedSegments {
    /// Address, and bytes.
    free: BTreeMap<u64, u64>,
    /// Partitions that have had what begins at an address, and what lies behind it up to the next
    /// one.
    had: BTreeMap<u64, Vec<u16>>,
}

impl ReturnedSegments {
    fn had(&self, at: u64) -> &[u16] {
        self.had.range(..=at).next_back().map_or(&[], |(_, had)| had)
    }

    /// The smallest piece that is large enough and that this partition has not had.
    fn take(&mut self, partition: u16, bytes: u64) -> Option<u64> {
        let fits =
            |(at, len): &(&u64, &u64)| **len >= bytes && !self.had(**at).contains(&partition);
        let (at, len) = self.free.iter().filter(fits).min_by_key(|(_, len)| **len)?;
        let (at, len) = (*at, *len);
        self.free.remove(&at);
        if len > bytes {
            let had = self.had(at).to_vec();
            self.free.insert(at + bytes, len - bytes);
            self.had.insert(at + bytes, had);
        }
        Some(at)
    }
}

impl SegmentSpace {
    pub(crate) fn region(bytes: u64) -> Self {
        Self::of(Fresh::Region(Mutex::new((compute_base(), bytes))))
    }

    pub(crate) fn chunks(service: Arc<ChunkService>, chunk_bytes: u64) -> Self {
        Self::of(Fresh::Chunks { service, chunk_bytes, rests: Mutex::default() })
    }

    fn of(fresh: Fresh) -> Self {
        Self { fresh, returned: Mutex::default() }
    }

    /// Memory for a segment: what has come back first. `None`: there is none.
    pub(crate) async fn take(
        &self,
        ep: &Endpoint,
        partition: u16,
        bytes: u64,
    ) -> Result<Option<u64>> {
        let returned = locked(&self.returned).take(partition, bytes);
        if let Some(at) = returned {
            let zeroed = zero(ep, GlobalAddr::new(ep.node(), at), bytes).await;
            if zeroed.is_err() {
                locked(&self.returned).free.insert(at, bytes);
            }
            return zeroed.map(|()| Some(at));
        }
        match &self.fresh {
            Fresh::Region(rest) => Ok(cut(&mut locked(rest), bytes)),
            Fresh::Chunks { service, chunk_bytes, rests } => {
                if let Some(at) = locked(rests).iter_mut().find_map(|r| cut(r, bytes)) {
                    return Ok(Some(at));
                }
                let count = bytes.div_ceil(*chunk_bytes) as u32;
                let (used_for, owner) = (ChunkUse::Tables, ep.node());
                let r =
                    RunRequest { used_for, kind: 0, index: 0, object_bytes: 0, count, least: 0 };
                let Some(at) = service.take(ep, Member { node: owner, incarnation: 0 }, r).await?
                else {
                    return Ok(None);
                };
                let end = at + u64::from(count) * chunk_bytes;
                let mut rests = locked(rests);
                rests.retain(|(next, end)| next < end);
                rests.push((at + bytes, end));
                Ok(Some(at))
            }
        }
    }

    /// A partition that has moved away gives a segment back.
    pub(crate) fn give_back(&self, partition: u16, at: u64, bytes: u64) {
        let mut returned = locked(&self.returned);
        let mut had = match returned.had.get(&at) {
            Some(had) => had.clone(),
            None => returned.had(at).to_vec(),
        };
        had.push(partition);
        // The memory behind it keeps its own partitions.
        let behind = returned.had(at + bytes).to_vec();
        returned.had.entry(at + bytes).or_insert(behind);
        returned.had.insert(at, had);
        returned.free.insert(at, bytes);
    }

    /// A stretch of a compute node's memory: up to `bytes`, at least `least`. Whole lines, so that
    /// segments stay aligned. `None`: no such room.
    pub(crate) fn stretch(&self, bytes: u64, least: u64) -> Option<(u64, u64)> {
        let Fresh::Region(rest) = &self.fresh else { return None };
        let mut rest = locked(rest);
        let left = (rest.1 - rest.0) & !63;
        let granted = bytes.checked_next_multiple_of(64)?.min(left);
        if granted == 0 || granted < least {
            return None;
        }
        cut(&mut rest, granted).map(|at| (at, granted))
    }
}

fn cut(rest: &mut (u64, u64), bytes: u64) -> Option<u64> {
    let at = rest.0;
    (at + bytes <= rest.1).then(|| rest.0 += bytes)?;
    Some(at)
}

/// Zeroes memory of the node of `ep`.
pub(crate) async fn zero(ep: &Endpoint, at: GlobalAddr, bytes: u64) -> Result<()> {
    for from in (0..bytes).step_by(PIECE as usize) {
        let mut buf = ep.buf(PIECE.min(bytes - from) as u32).await?;
        buf.fill(0);
        ep.write(at.plus(from), buf).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_partition_gets_what_it_has_had() {
        let space = SegmentSpace::region(1 << 20);
        space.give_back(7, 4096, 4096);
        let take = |p, bytes| locked(&space.returned).take(p, bytes);
        assert_eq!(take(7, 1024), None);
        assert_eq!(take(8, 1024), Some(4096));
        assert_eq!(take(7, 1024), None, "its rest is another piece of what it had");
        assert_eq!(take(9, 2048), Some(5120));
        assert_eq!(take(9, 2048), None, "too small");
        space.give_back(8, 4096, 1024);
        assert_eq!((take(8, 64), take(7, 64)), (Some(7168), None));
        assert_eq!(take(9, 1024), Some(4096));
    }
}
