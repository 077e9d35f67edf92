//! Creation options, and the repairs of published defects.

use dmtree_fabric::{Error, Result};
use dmtree_parts::published::check_range;
use serde::{Deserialize, Serialize};

/// Most leaves of a window.
const MOST_LEAVES: u32 = 64;

/// The layout of an index, and the techniques it uses. The catalog stores them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Bytes of every key, 1 to 256.
    pub key_bytes: u32,
    /// Bytes of every value, 0 to 1024.
    pub value_bytes: u32,
    /// Slots of a leaf, 4 to 128.
    pub span: u32,
    /// Error bound of the models, slots: 1 to 4096. They are trained with one less.
    pub error: u32,
    /// Bytes behind a leaf that its lock takes, 8 to 64.
    pub lock_bytes: u32,
    /// Slots in which a key can be, in leaves that are hopscotch tables: 2 to 16; 0: leaves are
    /// sorted.
    pub neighbourhood: u32,
    /// A word beside the lock says where a hopscotch leaf and its synonym have free slots.
    pub vacancy: bool,
    /// The head of a hopscotch leaf stands before every neighbourhood.
    pub replicas: bool,
    /// Models are trained on keys that are foretold, too. Otherwise on loaded keys alone.
    pub foretold: bool,
    /// Readers of one key on a compute node share a READ.
    pub delegation: bool,
    /// Writers of one key on a compute node share a WRITE.
    pub combining: bool,
    /// Repair: a writer writes a synonym before its leaf, and readers READ it after the leaf. As
    /// published writers write it after the leaf, and readers READ both at once.
    pub destination_first: bool,
    /// Repair: scans READ synonyms after their leaves. As published they READ both at once.
    pub ordered_scans: bool,
    /// Repair: a window reaches to the leaf behind the last trained key of its segment. As
    /// published it ends with that key.
    pub whole_window: bool,
    /// Repair: an update that finds its key absent leaves the queue of the key. As published it
    /// keeps its place for ever.
    pub scoped_release: bool,
    /// Repair: a put sets the value of a key that exists. As published it leaves the value alone,
    /// and reports success.
    pub upsert: bool,
    /// Bytes of a version: 1 as published (four bits count the WRITEs of a leaf); repair: 2.
    pub version_bytes: u32,
    /// Repair: every leaf begins with a line of memory, so that what the version of a line covers
    /// is READ and written as one. As published leaves follow each other closely.
    pub aligned: bool,
    /// Repair: a batch of delegation or combining is closed when its verb is posted.
    pub closed_batches: bool,
    /// Longest time that one operation waits for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self::published()
    }
}

impl Options {
    /// ROLEX as the artifact of the FAST'26 paper has it: keys of 24 bytes, 8 slots, bound 8.
    pub fn published() -> Self {
        Self {
            key_bytes: 24,
            value_bytes: 8,
            span: 8,
            error: 8,
            lock_bytes: 64,
            neighbourhood: 0,
            vacancy: false,
            replicas: false,
            foretold: true,
            delegation: true,
            combining: true,
            destination_first: false,
            ordered_scans: false,
            whole_window: false,
            scoped_release: false,
            upsert: false,
            version_bytes: 1,
            aligned: false,
            closed_batches: false,
            timeout_ms: 10_000,
        }
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
        check_range("key_bytes", self.key_bytes.into(), 1, 256)?;
        check_range("value_bytes", self.value_bytes.into(), 0, 1024)?;
        check_range("span", self.span.into(), 4, 128)?;
        check_range("error", self.error.into(), 1, 4096)?;
        check_range("lock_bytes", self.lock_bytes.into(), 8, 64)?;
        check_range("version_bytes", self.version_bytes.into(), 1, 2)?;
        check_range("timeout_ms", self.timeout_ms, 1, u64::MAX)?;
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
        for (on, words) in [(self.vacancy, "vacancy"), (self.replicas, "replicas")] {
            if on && near == 0 {
                let text = format!("{words} = true needs a neighbourhood: sorted leaves have none");
                return Err(Error::invalid(text));
            }
        }
        if self.replicas && !self.vacancy {
            return Err(Error::invalid("replicas = true needs vacancy = true"));
        }
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
            (Options { key_bytes: 0, ..o() }, "key_bytes is 0; it must be 1 to 256"),
            (Options { span: 3, ..o() }, "span is 3; it must be 4 to 128"),
            (Options { span: 129, ..o() }, "span is 129; it must be 4 to 128"),
            (Options { error: 0, ..o() }, "error is 0; it must be 1 to 4096"),
            (Options { error: 4097, ..o() }, "error is 4097; it must be 1 to 4096"),
            (Options { error: 252, ..o() }, "error is 252, and with a span of 8 a window has 65"),
            (Options { version_bytes: 3, ..o() }, "version_bytes is 3; it must be 1 to 2"),
            (Options { lock_bytes: 0, ..o() }, "lock_bytes is 0; it must be 8 to 64"),
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
