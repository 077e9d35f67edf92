//! An estimate of the number of keys, from samples.
//!
//! A sample goes from the root down to a leaf, to one of the children at each node. The numbers of
//! children on its way, multiplied, times the keys of its leaf estimate the number of keys without
//! a bias when every child is as likely as its siblings (D. E. Knuth, "Estimating the Efficiency of
//! Backtrack Programs", 1975, section 2). The samples here are spread evenly over the children
//! instead of drawn: multiples of the golden ratio, modulo 1, name the places, and a node takes the
//! part of the place that it divides, and leaves the rest to the node below.
//!
//! Other clients may change the structure meanwhile. A sample does not count when its leaf is gone.

use dmtree_fabric::{Error, ErrorKind, OpKind, OpOutcome, Result};

use crate::Client;
use crate::router::{Router, route_of};
use crate::scan::LeafReader;

/// Number of samples.
const SAMPLES: u32 = 64;
/// The fractional part of the golden ratio.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// About how many keys there are. Every sample READs a leaf and an inner node of each level.
pub(crate) async fn estimated_keys(c: &Client) -> Result<u64> {
    let scope = c.ep.begin(OpKind::Admin);
    let (mut sum, mut counted) = (0.0, 0.0);
    for sample in 0..SAMPLES {
        c.ep.renew_deadline();
        let _pin = c.pin()?;
        let place = (f64::from(sample) * GOLDEN + 0.5).fract();
        if let Some(keys) = keys_at(c, place).await? {
            sum += keys;
            counted += 1.0;
        }
    }
    if counted == 0.0 {
        let what = "every leaf of a sample was gone before it was read: try again";
        return Err(Error::new(ErrorKind::Contended, what));
    }
    scope.end(OpOutcome::Other);
    Ok((sum / counted).round() as u64)
}

/// The estimate of one sample, at a place in 0..1; `None` when its leaf is gone.
async fn keys_at(c: &Client, mut place: f64) -> Result<Option<f64>> {
    let (mut key, mut weight) = (Vec::new(), 1.0);
    for level in (1..=height(c).await?).rev() {
        let node = Router(c).descend(&key, level).await?;
        let children = node.len();
        let at = place * children as f64;
        let child = (at as usize).min(children - 1);
        (place, weight) = (at.fract(), weight * children as f64);
        if level == 1 {
            let leaf = LeafReader(c).read_one(&route_of(&node.record(child))).await?;
            return Ok(leaf.map(|leaf| weight * leaf.view(&c.node.g).len() as f64));
        }
        key = node.keys().get(child).to_vec();
    }
    Err(Error::corrupt("a tree without inner nodes"))
}

/// The level of the root.
async fn height(c: &Client) -> Result<u8> {
    let mut level = 1;
    while Router(c).descend_to(&[], level + 1).await?.is_some() {
        level += 1;
    }
    Ok(level)
}
