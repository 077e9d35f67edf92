//! The pool config: the options that the first memory node was started with, as bytes. Every
//! process that joins gets it from there, so all nodes compute the same layout.

use dmtree_fabric::{Error, Result};
use postcard::fixint;
use serde::{Deserialize, Serialize};

use crate::options::{PoolJournal, PoolOptions};
use crate::wire::{self, Quarter, seal, sealed};

const VERSION: u16 = 4;

/// The fields after the version.
#[derive(Serialize, Deserialize)]
struct PoolConfig {
    #[serde(with = "fixint::le")]
    memory_nodes: u16,
    #[serde(with = "fixint::le")]
    compute_nodes: u16,
    #[serde(with = "fixint::le")]
    memory_bytes: u64,
    #[serde(with = "fixint::le")]
    compute_bytes: u64,
    #[serde(with = "fixint::le")]
    chunk_bytes: u64,
    generation_bits: u8,
    /// 0: none.
    #[serde(with = "fixint::le")]
    journal_nodes: u16,
    journal_syncs: bool,
    journal_goes_on: bool,
    journal_accepts_gaps: bool,
}

/// The bytes of a pool config.
pub(crate) fn encode(o: &PoolOptions) -> Vec<u8> {
    let pool_config = PoolConfig {
        memory_nodes: o.memory_nodes,
        compute_nodes: o.compute_nodes,
        memory_bytes: o.memory_bytes_per_node,
        compute_bytes: o.chosen_compute_bytes(),
        chunk_bytes: o.chosen_chunk_bytes(),
        generation_bits: o.generation_bits,
        journal_nodes: o.journal.map_or(0, |journal| journal.nodes),
        journal_syncs: o.journal.is_some_and(|journal| journal.syncs),
        journal_goes_on: o.journal.is_some_and(|journal| journal.goes_on),
        journal_accepts_gaps: o.journal.is_some_and(|journal| journal.accepts_gaps),
    };
    let mut out = wire::encode(&(Quarter(VERSION), pool_config));
    out.extend([0; 4]);
    seal(&mut out);
    out
}

/// The options from a pool config.
pub(crate) fn decode(bytes: &[u8]) -> Result<PoolOptions> {
    let strange = |what: &str| {
        Error::incompatible(format!(
            "the config of the pool {what}: run the same release everywhere"
        ))
    };
    if !sealed(bytes) {
        return Err(strange("fails its checksum"));
    }
    let mut fields = &bytes[..bytes.len() - 4];
    if wire::take::<Quarter>(&mut fields)? != Quarter(VERSION) {
        return Err(strange("is of another version"));
    }
    let pool_config: PoolConfig = wire::decode(fields)?;
    let o = PoolOptions {
        memory_nodes: pool_config.memory_nodes,
        compute_nodes: pool_config.compute_nodes,
        memory_bytes_per_node: pool_config.memory_bytes,
        compute_bytes_per_node: pool_config.compute_bytes,
        chunk_bytes: Some(pool_config.chunk_bytes),
        generation_bits: pool_config.generation_bits,
        journal: (pool_config.journal_nodes > 0).then_some(PoolJournal {
            nodes: pool_config.journal_nodes,
            syncs: pool_config.journal_syncs,
            goes_on: pool_config.journal_goes_on,
            accepts_gaps: pool_config.journal_accepts_gaps,
        }),
        ..PoolOptions::default()
    };
    o.validate()?;
    Ok(o)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_config_says_what_was_chosen() {
        let o = PoolOptions {
            compute_nodes: 7,
            memory_nodes: 2,
            journal: Some(PoolJournal {
                nodes: 3,
                syncs: true,
                goes_on: true,
                accepts_gaps: false,
            }),
            ..PoolOptions::default()
        };
        let bytes = encode(&o);
        let back = decode(&bytes).expect("whole");
        assert_eq!((back.compute_nodes, back.memory_nodes, back.journal), (7, 2, o.journal));
        assert_eq!(back.chosen_compute_bytes(), o.chosen_compute_bytes());
        assert_eq!(back.chosen_chunk_bytes(), o.chosen_chunk_bytes());
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1;
            assert!(decode(&bad).is_err(), "byte {i}");
            assert!(decode(&bytes[..i]).is_err(), "{i} bytes");
        }
    }
}
