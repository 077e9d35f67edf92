//! The order of the journal and that of the lock, where compute nodes are lost.
//!
//! A node that has lost its membership holds the locks that it held until the others take them
//! over, behind its fence. So a record of it that comes behind its end has been decided before any
//! record of its key that another node appends behind that end, and must not follow it. A history
//! does not tell: the write is open, and may take effect late.

use std::collections::BTreeMap;

use dmtree_check::log::{Call, Log};

use super::journal::Effect;
use super::{id, number};

/// The end of a compute node: so many appends were there.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub cn: u16,
    pub appends: usize,
}

/// Finds a record of a node that follows one of another node which was appended behind its end.
pub fn check(
    log: &Log,
    appends: &[Vec<Effect>],
    ends: &[Ended],
    cn_of: impl Fn(u32) -> u16,
) -> Result<(), String> {
    let writers: BTreeMap<u64, u16> = log
        .records()
        .iter()
        .filter_map(|record| match record.call {
            Call::Put(_, id)
            | Call::Insert(_, id)
            | Call::Update(_, id)
            | Call::CompareAndSet(_, _, id) => Some((id, cn_of(record.client))),
            _ => None,
        })
        .collect();
    for Ended { cn, appends: from } in ends {
        let mut overtakes = BTreeMap::new();
        for (key, value) in appends.iter().skip(*from).flatten() {
            let Some(value) = value else { continue };
            match writers.get(&id(value)) {
                Some(writer) if writer == cn => {
                    if let Some(other) = overtakes.get(key) {
                        let (key, value) = (number(key), id(value));
                        let what = format!("value {value} of node {cn} follows value {other}");
                        return Err(format!("k{key}: {what}, which came behind its end"));
                    }
                }
                Some(_) => _ = overtakes.insert(key, id(value)),
                None => {}
            }
        }
    }
    Ok(())
}
