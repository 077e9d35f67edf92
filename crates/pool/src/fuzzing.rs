//! Entries for fuzz targets and property tests, which feed hostile bytes: the records in the heads
//! of regions, and the pool config. Each entry takes any bytes, and encodes what it accepts to the
//! same bytes.

use dmtree_fabric::NodeId;

use crate::catalog::look_at_slot;
use crate::layout::{ChunkRecord, NodeLayout, Partition};
use crate::pool_config;
use crate::wire::seal;

/// Records of a region's head: bytes as they are, and with a checksum that fits.
pub fn heads(data: &[u8]) {
    records(data);
    let mut sealed = data.to_vec();
    if sealed.len() >= 4 {
        seal(&mut sealed);
        records(&sealed);
    }
    // The body of a catalog slot has a checksum of its own, behind the words of the slot.
    if let Some((_, body)) = sealed.split_at_mut_checked(crate::catalog::BODY as usize)
        && body.len() >= 4
    {
        seal(body);
        look_at_slot(&sealed);
    }
}

fn records(data: &[u8]) {
    let layout = NodeLayout::new(NodeId::memory(0), 1 << 26, 1 << 20);
    if layout.check(data).is_ok() {
        assert_eq!(data, layout.encode());
    }
    if let Ok(record) = ChunkRecord::decode(data) {
        let again = ChunkRecord::encode(record.as_ref());
        assert_eq!(ChunkRecord::decode(&again).expect("its own bytes"), record);
    }
    for number in [0, 1, u16::MAX] {
        let _ = Partition::remains(data, number);
        if let Ok(Some(p)) = Partition::decode(data, number) {
            let _ = (p.inside(None), p.inside(Some(1 << 20)), p.inside(Some(u64::MAX)));
            assert_eq!(Partition::decode(&p.encode(), number), Ok(Some(p)));
        }
    }
    look_at_slot(data);
}

/// The options of a pool, as its first memory node sends them.
pub fn pool_config(data: &[u8]) {
    let mut sealed = data.to_vec();
    if sealed.len() >= 4 {
        seal(&mut sealed);
    }
    for bytes in [data, &sealed] {
        if let Ok(options) = pool_config::decode(bytes) {
            options.validate().expect("what is accepted is valid");
            let _ = (options.chosen_compute_bytes(), options.chosen_chunk_bytes());
        }
    }
}

/// Seed inputs for `heads` and `pool_config`.
pub fn seeds() -> Vec<Vec<u8>> {
    let layout = NodeLayout::new(NodeId::memory(0), 1 << 26, 1 << 20);
    let owner = dmtree_fabric::Member { node: NodeId::compute(3), incarnation: 2 };
    let record = ChunkRecord {
        used_for: crate::ChunkUse::Arena,
        kind: 1,
        index: 2,
        object_bytes: 64,
        owner: owner.node,
        incarnation: 2,
        run: 1,
    };
    vec![
        pool_config::encode(&crate::PoolOptions::default()),
        layout.encode().to_vec(),
        ChunkRecord::encode(Some(&record)).to_vec(),
        Partition::new(1, owner).encode().to_vec(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    #[ignore = "writes the seeds of fuzz/corpus"]
    fn write_seeds() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
        for (i, bytes) in seeds().iter().enumerate() {
            let target = if i == 0 { "pool_config" } else { "heads" };
            std::fs::create_dir_all(format!("{corpus}/{target}")).expect("a directory");
            std::fs::write(format!("{corpus}/{target}/{i}"), bytes).expect("written");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_dealt_with(data in proptest::collection::vec(any::<u8>(), 0..700)) {
            heads(&data);
            pool_config(&data);
        }

        #[test]
        fn records_that_were_changed_are_dealt_with(
            seed in any::<proptest::sample::Index>(),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let mut data = seed.get(&seeds()).clone();
            for (at, byte) in changes {
                let at = at.index(data.len());
                data[at] = byte;
            }
            heads(&data);
            pool_config(&data);
        }
    }
}
