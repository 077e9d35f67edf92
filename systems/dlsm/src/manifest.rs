//! The manifest of a shard: what a node that takes it over needs to know.
//!
//! A *segment* is a block: a head of 16 bytes (the number of its life, and zeros), a frame with the
//! state of the shard, and frames with edits, in the order in which they took effect at the owner.
//! The second word of the range names the segment. One client at a time appends what is pending, or
//! begins a new segment when there is no room: the state is written first, then the word is
//! changed. A step that has failed, or that a dropped client has left, is repeated as it was.
//!
//! Edits take effect at the owner when they are enqueued. What is freed because of one waits until
//! it is on the memory node.

use std::collections::VecDeque;

use dmtree_fabric::{Endpoint, Error, GlobalAddr, Result};
use dmtree_pool::BlockPtr;
use serde::{Deserialize, Serialize};

use crate::format::take_u64;
use crate::frame::{FORM, Life, Series, contents, put_frame};
use crate::key::Seq;
use crate::log::Origin;
use crate::table::Meta;
use crate::version::LEVELS;
use crate::wire;

/// Bytes before the first frame of a segment.
const HEAD: usize = 16;

/// What a manifest says of a shard.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) levels: Vec<Vec<Meta>>,
    /// Numbers up to this one are in tables.
    pub(crate) flushed: Seq,
    /// Blocks of the log: number and place.
    pub(crate) logs: Vec<(u64, u64)>,
    pub(crate) next_log: u64,
    /// The last write of each client of another node, among those that are in tables.
    pub(crate) sessions: Vec<Origin>,
}

/// A change of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Edit {
    /// Tables come to a level, and go from everywhere; so many numbers are flushed.
    Tables {
        level: u8,
        added: Vec<Meta>,
        removed: Vec<u64>,
        flushed: Seq,
        sessions: Vec<Origin>,
    },
    /// The log has a block more, or less.
    Log {
        id: u64,
        place: u64,
    },
    LogGone {
        id: u64,
    },
}

/// What names a table: where it begins.
pub(crate) fn name_of(meta: &Meta) -> u64 {
    meta.extents().next().map_or(0, |extent| extent.at().bits())
}

impl Kept {
    fn apply(&mut self, edit: Edit) -> Result<()> {
        match edit {
            Edit::Tables { level, added, removed, flushed, sessions } => {
                let gone = |meta: &Meta| removed.contains(&name_of(meta));
                self.levels.iter_mut().for_each(|tables| tables.retain(|meta| !gone(meta)));
                let level = self.levels.get_mut(usize::from(level));
                level.ok_or_else(|| Error::corrupt("a level that no tree has"))?.extend(added);
                self.flushed = self.flushed.max(flushed);
                self.sessions.extend(sessions);
            }
            Edit::Log { id, place } => {
                self.logs.push((id, place));
                self.next_log = self.next_log.max(id);
            }
            Edit::LogGone { id } => self.logs.retain(|(its, _)| *its != id),
        }
        Ok(())
    }
}

/// Reads the manifest that a word of a range names. Returns the life of its segment, too.
///
/// # Errors
/// `Corrupt`; `Incompatible`; those of the fabric.
pub(crate) async fn read(
    ep: &Endpoint,
    (series, word): (Series, u64),
    torn: bool,
) -> Result<(u64, Kept)> {
    let place = BlockPtr::from_bits(word);
    let bytes = ep.read(place.addr(), place.capacity()).await?.extract(<[u8]>::to_vec);
    decode(&bytes, series, torn).map_err(|e| e.context(format!("the manifest at {}", place.addr())))
}

fn decode(bytes: &[u8], series: Series, torn: bool) -> Result<(u64, Kept)> {
    let life = take_u64(&mut &bytes[..])?;
    let frames = contents(bytes.get(HEAD..).unwrap_or_default(), (series, life), torn)?;
    let Some((first, edits)) = frames.split_first() else {
        return Err(Error::corrupt("it has no state: its first frame fails its checksum"));
    };
    let mut kept: Kept = wire::decode(first)?;
    if kept.levels.len() != LEVELS {
        return Err(Error::corrupt(format!("{} levels; a tree has {LEVELS}", kept.levels.len())));
    }
    for edit in edits {
        kept.apply(wire::decode(edit)?)?;
    }
    Ok((life, kept))
}

fn framed(life: Life, what: &impl Serialize) -> Result<Vec<u8>> {
    let encoded = wire::encode(what)?;
    let mut out = Vec::new();
    put_frame(&mut out, life, &[&[FORM], &encoded[..]].concat());
    Ok(out)
}

/// A new segment, on its way to take the place of the present one.
#[derive(Clone)]
pub(crate) struct Roll {
    pub(crate) place: BlockPtr,
    pub(crate) bytes: Vec<u8>,
    /// The word of the range before.
    pub(crate) before: u64,
    life: u64,
    /// The state has edits up to this number, and so many that were pending.
    covers: u64,
    edits: usize,
}

/// What its writer does next.
pub(crate) enum Step {
    /// WRITE this.
    Append { at: GlobalAddr, bytes: Vec<u8>, upto: u64 },
    /// Go on with a new segment, or begin one.
    Roll(Option<Roll>),
}

/// The end of a manifest, at its writer.
#[derive(Default)]
pub(crate) struct Manifest {
    series: Series,
    /// The segment as the word of the range names it; 0: there is none.
    word: u64,
    life: u64,
    used: u32,
    /// Edits that are not on the memory node.
    pending: VecDeque<Edit>,
    enqueued: u64,
    durable: u64,
    writing: bool,
    /// A WRITE of a dropped client may still be in flight: its segment never goes back.
    tainted: bool,
    roll: Option<Roll>,
    /// So, of the new segment.
    roll_tainted: bool,
}

impl Manifest {
    /// Behind the segment of a former owner, which it leaves at the first step: one is due at once.
    pub(crate) fn behind(series: Series, word: u64, life: u64) -> Self {
        // A compare-and-set of a dropped take-over may come late: the word is never again what it
        // expects.
        let start = Self { series, word, life, ..Self::default() };
        Self { used: u32::MAX, enqueued: 1, tainted: true, ..start }
    }

    /// Enqueues an edit. Returns its number.
    pub(crate) fn push(&mut self, edit: Edit) -> u64 {
        self.pending.push_back(edit);
        self.enqueued += 1;
        self.enqueued
    }

    /// The segment as the word of the range names it; 0: there is none.
    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    /// Edits up to this number are on the memory node.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// The number of the last edit.
    pub(crate) fn last(&self) -> u64 {
        self.enqueued
    }

    /// Begins a step, if any is due and none is under way.
    ///
    /// # Errors
    /// `Corrupt`: an edit cannot be encoded.
    pub(crate) fn begin(&mut self) -> Result<Option<Step>> {
        if self.writing || self.durable == self.enqueued {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        for edit in &self.pending {
            bytes.extend(framed((self.series, self.life), edit)?);
        }
        self.writing = true;
        let place = BlockPtr::from_bits(self.word);
        let room = self.word != 0
            && u64::from(self.used) + bytes.len() as u64 <= u64::from(place.capacity());
        Ok(Some(match (&self.roll, room) {
            (None, true) => {
                let at = place.addr().plus(u64::from(self.used));
                Step::Append { at, bytes, upto: self.enqueued }
            }
            (roll, _) => Step::Roll(roll.clone()),
        }))
    }

    /// A step has failed, or was dropped.
    pub(crate) fn in_doubt(&mut self) {
        (self.writing, self.tainted) = (false, true);
        self.roll_tainted |= self.roll.is_some();
    }

    pub(crate) fn appended(&mut self, bytes: usize, upto: u64) {
        self.pending.drain(..(upto - self.durable) as usize);
        (self.writing, self.durable) = (false, upto);
        self.used += bytes as u32;
    }

    /// A new segment in a block, with this state; the number of bytes that it needs if it does not
    /// fit.
    pub(crate) fn new_segment(
        &mut self,
        place: BlockPtr,
        kept: &Kept,
    ) -> Result<Result<Roll, usize>> {
        let life = self.life + 1;
        let mut bytes = [life.to_le_bytes(), [0; 8]].concat();
        bytes.extend(framed((self.series, life), kept)?);
        if bytes.len() > place.capacity() as usize {
            return Ok(Err(bytes.len()));
        }
        let roll = Roll {
            place,
            bytes,
            before: self.word,
            life,
            covers: self.enqueued,
            edits: self.pending.len(),
        };
        self.roll = Some(roll.clone());
        Ok(Ok(roll))
    }

    /// The word of the range names the new segment. Returns the one before, if it goes back.
    pub(crate) fn rolled(&mut self) -> Option<BlockPtr> {
        let roll = self.roll.take()?;
        let old = (roll.before != 0 && !self.tainted).then(|| BlockPtr::from_bits(roll.before));
        self.pending.drain(..roll.edits);
        (self.word, self.life, self.durable) = (roll.place.bits(), roll.life, roll.covers);
        self.used = roll.bytes.len() as u32;
        (self.writing, self.tainted) = (false, std::mem::take(&mut self.roll_tainted));
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        Series::manifest(2, 3)
    }

    fn segment() -> Vec<u8> {
        let mut m = Manifest::behind(series(), 0, 4);
        let place = BlockPtr::new(dmtree_fabric::NodeId::memory(0), 4096, 20);
        let kept = Kept { levels: vec![Vec::new(); LEVELS], flushed: 9, ..Kept::default() };
        assert!(matches!(m.begin(), Ok(Some(Step::Roll(None)))));
        let roll = m.new_segment(place, &kept).expect("encoded").expect("it fits");
        assert_eq!((m.rolled(), m.durable()), (None, 1));
        let sessions = vec![(3, 4)];
        let (added, removed) = Default::default();
        m.push(Edit::Tables { level: 0, added, removed, flushed: 12, sessions });
        m.push(Edit::Log { id: 5, place: 6 });
        let Ok(Some(Step::Append { bytes, upto, at })) = m.begin() else { panic!("edits") };
        assert_eq!((upto, at), (3, place.addr().plus(roll.bytes.len() as u64)));
        m.appended(bytes.len(), upto);
        assert_eq!((m.durable(), m.last()), (3, 3));
        [roll.bytes, bytes].concat()
    }

    #[test]
    fn a_segment_says_what_was_appended() {
        let bytes = segment();
        let (life, kept) = decode(&bytes, series(), false).expect("whole");
        assert_eq!((life, kept.flushed, kept.next_log), (5, 12, 5));
        assert_eq!((&kept.logs[..], &kept.sessions[..]), (&[(5, 6)][..], &[(3, 4)][..]));
    }

    /// A torn end is no edit; a torn state is an error, and nothing panics.
    #[test]
    fn torn_segments_end_early_or_are_refused() {
        let whole = segment();
        for end in 0..whole.len() {
            match decode(&whole[..end], series(), false) {
                Ok((_, kept)) => assert!(kept.flushed >= 9),
                Err(e) => assert!(!e.to_string().contains('\n'), "{e}"),
            }
        }
        let mut foreign = whole;
        foreign[HEAD + 9] ^= 1;
        let e = decode(&foreign, series(), false).expect_err("no state").to_string();
        assert!(e.contains("its first frame fails its checksum"), "{e}");
    }
}
