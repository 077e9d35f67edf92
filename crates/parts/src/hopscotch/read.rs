//! READs of parts of a leaf by a client of a published design. A READ is repeated while its bytes
//! mix several WRITEs: the versions in the lines differ, or two parts have different versions of
//! the node. A READ changes nothing, so a crash leaves nothing behind.

use std::ops::Deref;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{Error, GlobalAddr, Result, Role, Stage, Step};

use super::{Leaf, Part};
use crate::published::{Base, Client};

impl<N: Deref<Target = Base>> Client<N> {
    /// READs parts of a leaf once, in one doorbell, into what is known of it; an inspection of so
    /// many slots. False while it is being written: then nothing of the leaf may be used.
    ///
    /// # Errors
    /// `Corrupt` for an address that cannot be a leaf's; those of the fabric.
    pub async fn sample_parts(
        &self,
        leaf: &mut Leaf<'_>,
        at: GlobalAddr,
        (parts, slots): (&[Part], usize),
    ) -> Result<bool> {
        if at.node().role() != Role::Memory {
            return Err(Error::corrupt(format!("{at} cannot be a leaf")));
        }
        let mut verbs = VerbVec::new();
        for raw in parts.iter().map(|part| leaf.g.leaf.raw(part.clone())) {
            verbs.read(at.plus(raw.start as u64), raw.len() as u32);
        }
        self.ep.step(Step::Entry);
        let mut read = self.ep.batch(verbs).await?;
        self.ep.stage_cost(Stage::NodeImage, slots as u32);
        let mut all = parts.iter().enumerate();
        Ok(all.all(|(i, part)| read.take_sampled(i).extract(|raw| leaf.take(part.clone(), raw))))
    }

    /// READs parts of a leaf until they are whole; what is known of it stays.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation; as [`Client::sample_parts`].
    pub async fn with_parts<'g>(
        &self,
        known: Leaf<'g>,
        at: GlobalAddr,
        parts: (&[Part], usize),
    ) -> Result<Leaf<'g>> {
        let mut backoff = self.ep.backoff("leaf being written", at);
        loop {
            let mut leaf = known.clone();
            if self.sample_parts(&mut leaf, at, parts).await? {
                return Ok(leaf);
            }
            self.retried.set(true);
            backoff.step().await?;
        }
    }
}
