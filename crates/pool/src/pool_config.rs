//! The pool config: the options that the first memory node was started with, as bytes. Every
//! process that joins gets it from there, so all nodes compute the same layout.

use dmtree_fabric::{Error, ErrorKind, Result};

use crate::options::PoolOptions;
use crate::wire::{Fields, seal, sealed};

const VERSION: u16 = 1;

/// The bytes of a pool config.
pub(crate) fn encode(o: &PoolOptions) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    out.extend(o.memory_nodes.to_le_bytes());
    out.extend(o.compute_nodes.to_le_bytes());
    out.extend(o.memory_bytes_per_node.to_le_bytes());
    out.extend(o.chosen_compute_bytes().to_le_bytes());
    out.extend(o.chosen_chunk_bytes().to_le_bytes());
    out.push(o.generation_bits);
    out.extend([0; 4]);
    seal(&mut out);
    out
}

/// The options from a pool config.
pub(crate) fn decode(bytes: &[u8]) -> Result<PoolOptions> {
    let strange = |what: &str| {
        Error::new(
            ErrorKind::Incompatible,
            format!("the config of the pool {what}: run the same release everywhere"),
        )
    };
    if !sealed(bytes) {
        return Err(strange("fails its checksum"));
    }
    let mut f = Fields(bytes);
    if f.u16()? != VERSION {
        return Err(strange("is of another version"));
    }
    let o = PoolOptions {
        memory_nodes: f.u16()?,
        compute_nodes: f.u16()?,
        memory_bytes_per_node: f.u64()?,
        compute_bytes_per_node: f.u64()?,
        chunk_bytes: Some(f.u64()?),
        generation_bits: f.u8()?,
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
        let o = PoolOptions { compute_nodes: 7, memory_nodes: 2, ..PoolOptions::default() };
        let bytes = encode(&o);
        let back = decode(&bytes).expect("whole");
        assert_eq!((back.compute_nodes, back.memory_nodes), (7, 2));
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
