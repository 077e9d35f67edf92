//! Creation options, and the repairs of published defects.

use dmtree_fabric::{Error, Result};
use dmtree_parts::options::{all_needed, check_range};

/// Most leaves of a window.
const MOST_LEAVES: u32 = 64;

dmtree_parts::options! {
    /// The layout of an index, and the techniques it uses. The catalog stores them.
    pub struct Options = Self::published();
    /// Bytes of every key, 1 to 256.
    key_bytes: u32 = 24, in 1..=256;
    /// Bytes of every value, 0 to 1024.
    value_bytes: u32 = 8, in 0..=1024;
    /// Slots of a leaf, 4 to 128.
    span: u32 = 8, in 4..=128;
    /// Error bound of the models, slots: 1 to 4096. They are trained with one less.
    error: u32 = 8, in 1..=4096;
    /// Bytes behind a leaf that its lock takes, 8 to 64.
    lock_bytes: u32 = 64, in 8..=64;
    /// Slots in which a key can be, in leaves that are hopscotch tables: 2 to 16; 0: leaves are
    /// sorted.
    neighbourhood: u32 = 0;
    /// A word beside the lock says where a hopscotch leaf and its synonym have free slots.
    vacancy: bool = false;
    /// The head of a hopscotch leaf stands before every neighbourhood.
    replicas: bool = false;
    /// Models are trained on keys that are foretold, too. Otherwise on loaded keys alone.
    foretold: bool = true;
    /// Readers of one key on a compute node share a READ.
    delegation: bool = true;
    /// Writers of one key on a compute node share a WRITE.
    combining: bool = true;
    /// Repair: a writer writes a synonym before its leaf, and readers READ it after the leaf. As
    /// published writers write it after the leaf, and readers READ both at once.
    destination_first: bool = false;
    /// Repair: scans READ synonyms after their leaves. As published they READ both at once.
    ordered_scans: bool = false;
    /// Repair: a window reaches to the leaf behind the last trained key of its segment. As
    /// published it ends with that key.
    whole_window: bool = false;
    /// Repair: an update that finds its key absent leaves the queue of the key. As published it
    /// keeps its place for ever.
    scoped_release: bool = false;
    /// Repair: a put sets the value of a key that exists. As published it leaves the value alone,
    /// and reports success.
    upsert: bool = false;
    /// Bytes of a version: 1 as published (four bits count the WRITEs of a leaf); repair: 2.
    version_bytes: u32 = 1, in 1..=2;
    /// Repair: every leaf begins with a line of memory, so that what the version of a line covers
    /// is READ and written as one. As published leaves follow each other closely.
    aligned: bool = false;
    /// Repair: a batch of delegation or combining is closed when its verb is posted.
    closed_batches: bool = false;
    /// Longest time that one operation waits for others, ms.
    timeout_ms: u64 = 10_000, in 1..=u64::MAX;
}

impl Options {
    /// ROLEX as the artifact of the FAST'26 paper has it: keys of 24 bytes, 8 slots, bound 8.
    pub fn published() -> Self {
        Self::first()
    }

    /// The same, trained on loaded keys alone.
    pub fn unforetold() -> Self {
        Self { foretold: false, ..Self::published() }
    }

    /// The same with the geometry of CHIME's evaluation: keys of 8 bytes, 16 slots, bound 16.
    #[must_use]
    pub fn original(&self) -> Self {
        Self { key_bytes: 8, span: 16, error: 16, lock_bytes: 16, ..self.clone() }
    }

    /// The first step towards CHIME: leaves are hopscotch tables of 64 slots.
    pub fn hopscotch() -> Self {
        Self { span: 64, error: 16, lock_bytes: 16, neighbourhood: 8, ..Self::published() }
    }

    /// The second step: the vacancy word.
    pub fn vacancy() -> Self {
        Self { vacancy: true, ..Self::hopscotch() }
    }

    /// The third step: replicas of the head.
    pub fn replicas() -> Self {
        Self { replicas: true, ..Self::vacancy() }
    }

    /// The same with every repair, to isolate the published defects. (Keys have to be foretold.)
    #[must_use]
    pub fn repaired(&self) -> Self {
        Self {
            destination_first: true,
            ordered_scans: true,
            whole_window: true,
            scoped_release: true,
            upsert: true,
            version_bytes: 2,
            aligned: true,
            closed_batches: true,
            ..self.clone()
        }
    }

    /// Refuses impossible options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> Result<()> {
        self.check_ranges()?;
        self.check_steps()?;
        let leaves = (2 * self.error + 2).div_ceil(self.span) + 1;
        if leaves > MOST_LEAVES {
            let (error, span) = (self.error, self.span);
            return Err(Error::invalid(format!(
                "error is {error}, and with a span of {span} a window has {leaves} leaves; it must \
                 be {} at most, for {MOST_LEAVES} leaves",
                (MOST_LEAVES - 1) * span / 2 - 1
            )));
        }
        Ok(())
    }

    fn check_steps(&self) -> Result<()> {
        let (span, near) = (self.span, self.neighbourhood);
        let why = "vacancy = true needs a neighbourhood: sorted leaves have none";
        all_needed([
            (self.vacancy, near != 0, why),
            (self.replicas, self.vacancy, "replicas = true needs vacancy = true"),
        ])?;
        if near == 0 {
            return Ok(());
        }
        check_range("neighbourhood", near.into(), 2, 16)?;
        if !span.is_multiple_of(near) || span < 2 * near {
            return Err(Error::invalid(format!(
                "span is {span}; with a neighbourhood of {near} it must be a multiple of that, and \
                 {} at least",
                2 * near
            )));
        }
        Ok(())
    }

    /// Random test options, drawn with `below(n)`, which returns 0 to `n - 1`: small leaves, the
    /// techniques of `self`. Waits are shorter than by default, because some waits of the published
    /// protocol never end.
    #[must_use]
    pub fn drawn(&self, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u32]| choices[below(choices.len() as u64) as usize];
        let neighbourhood = if self.neighbourhood == 0 { 0 } else { of(&[4, 8]) };
        Self {
            neighbourhood,
            span: if neighbourhood == 0 { of(&[4, 4, 6, 8]) } else { of(&[16, 16, 32]) },
            error: of(&[2, 4, 8]),
            value_bytes: of(&[8, 8, 24, 64]),
            timeout_ms: 2_000,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let o = Options::published;
        for (bad, words) in [
            (Options { error: 252, ..o() }, "error is 252, and with a span of 8 a window has 65"),
            (Options { vacancy: true, ..o() }, "vacancy = true needs a neighbourhood"),
            (Options { replicas: true, ..Options::hopscotch() }, "replicas = true needs vacancy"),
            (Options { span: 60, ..Options::hopscotch() }, "span is 60; with a neighbourhood of 8"),
            (
                Options { span: 8, ..Options::hopscotch() },
                "8 it must be a multiple of that, and 16",
            ),
            (Options { neighbourhood: 17, span: 34, ..Options::vacancy() }, "must be 2 to 16"),
        ] {
            let e = bad.check().expect_err("refused").to_string();
            assert!(e.contains(words), "{e}");
        }
        let largest = Options { error: 251, ..o() };
        let steps = [Options::hopscotch(), Options::vacancy(), Options::replicas()];
        for o in [o(), Options::unforetold(), largest, o().original()].into_iter().chain(steps) {
            o.check().expect("possible");
            o.repaired().check().expect("a preset");
        }
    }
}
