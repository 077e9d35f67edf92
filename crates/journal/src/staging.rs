//! Staging: records that the operating system has, and the engine not yet.
//!
//! At the level `Process` a record must survive the process when its append returns. The engine and
//! a system call take ten times as long for that as a put in memory. So an append copies its
//! records into a file of fixed size that is mapped and shared with the operating system, and the
//! committer moves them to the engine, many at a time. The engine stays the only store: the file is
//! a queue before it, and never holds the only copy of more than [`BYTES`].
//!
//! The file is a ring of frames, one an append:
//!
//! ```text
//! position 8   bytes of frames before it, in this generation; it is at this place modulo the size
//! checksum 8   XXH3 of the records, seeded with generation, position and length
//! length 8     bytes of the records
//! records      as in calls (protocol.rs), filled up to a multiple of 8 bytes
//! ```
//!
//! - *What is in the engine.* Each batch for the engine contains its own end: generation and
//!   position ([`Place`]). So a crash has both or none of them, and what is moved twice changes
//!   nothing: the records are effects, and all that follow are moved again, too.
//! - *Opening* moves the frames from the engine's place on, up to the first that does not check.
//!   After the death of a process these are all of them. After a loss of power pages of the file
//!   may be older or younger than the engine's log; a frame of another lap has another position,
//!   so that what is moved continues the engine's contents without a gap.
//! - *A generation* begins with each opening, on the device before the first append. So a frame
//!   that a former opening has left behind the first missing one never counts.
//! - *A full device* refuses the file when it is made: its blocks are written then. A file system
//!   that copies on write needs new ones later: where it has none, a store ends the process
//!   (SIGBUS), and what was acknowledged is in the file.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dmtree_fabric::{Error, Region, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::protocol::{put_record, record_bytes, take_record};
use crate::{IndexNumber, Record};

/// Size of the file.
const BYTES: u64 = 16 << 20;
/// Bytes in the file from which on the committer is called.
const MANY: u64 = BYTES / 8;
/// Most bytes of a frame; longer ones go to the engine at once.
const LONGEST: u64 = BYTES / 4;
/// Bytes of frames that are moved together, about.
const TOGETHER: u64 = BYTES / 4;
const HEADER: u64 = 24;

/// The end of what the engine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub generation: u64,
    pub position: u64,
}

impl Place {
    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..].copy_from_slice(&self.position.to_le_bytes());
        out
    }

    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let (generation, position) = bytes.split_first_chunk::<8>()?;
        let position = u64::from_le_bytes(position.try_into().ok()?);
        Some(Self { generation: u64::from_le_bytes(*generation), position })
    }
}

/// The file.
pub(crate) struct Staging {
    ring: Region,
    /// Every frame is made, and gets its place, under this lock: the order of places is the order
    /// of appends.
    writer: Mutex<Vec<u8>>,
    generation: AtomicU64,
    /// Where the frames end.
    end: AtomicU64,
    /// Where the engine's contents end.
    moved: AtomicU64,
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staged {
    /// It is in the file; `calls` when the committer has to be called.
    Done { calls: bool },
    /// It has no room before more is moved.
    NoRoom,
    /// It is longer than any frame.
    TooLong,
}

/// Frames on their way to the engine.
pub(crate) struct Moving {
    bytes: Vec<u8>,
    pub end: Place,
}

impl Staging {
    /// Opens the file, or makes it. Nothing is appended before [`Staging::begin`].
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.map_err(|e| Error::file("write to it", &e))?;
        let length = file.metadata().map_err(|e| Error::file("read it", &e))?.len();
        if length != BYTES {
            fill(&mut file).map_err(|e| Error::file("make room for staged records", &e))?;
        }
        Ok(Self {
            ring: Region::of_file(&file)?,
            writer: Mutex::default(),
            generation: AtomicU64::new(0),
            end: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        })
    }

    /// The engine's contents end here, and no frame counts that is not found from here on.
    pub(crate) fn begin(&self, at: Place) {
        let _writer = self.writer();
        self.generation.store(at.generation, SeqCst);
        self.end.store(at.position, SeqCst);
        self.moved.store(at.position, SeqCst);
    }

    /// The engine was opened again, and has its contents up to here.
    pub(crate) fn is_moved(&self, to: Place) {
        debug_assert_eq!(to.generation, self.generation.load(SeqCst));
        self.moved.store(to.position, SeqCst);
    }

    fn writer(&self) -> MutexGuard<'_, Vec<u8>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends records. They survive the process when this returns.
    pub(crate) fn append(&self, index: IndexNumber, records: &[Record<'_>]) -> Staged {
        let length: u64 = records.iter().map(record_bytes).sum();
        if HEADER + length > LONGEST - 8 {
            return Staged::TooLong;
        }
        let mut frame = self.writer();
        frame.clear();
        frame.resize(HEADER as usize, 0);
        records.iter().for_each(|record| put_record(&mut frame, index, record));
        debug_assert_eq!(frame.len() as u64, HEADER + length);
        let whole = frame.len().next_multiple_of(8);
        frame.resize(whole, 0);
        let (end, moved) = (self.end.load(SeqCst), self.moved.load(SeqCst));
        let next = end + frame.len() as u64;
        if next - moved > BYTES {
            return Staged::NoRoom;
        }
        let header = self.header(end, length, &frame[HEADER as usize..][..length as usize]);
        frame[..HEADER as usize].copy_from_slice(&header);
        self.write(end, &frame);
        self.end.store(next, SeqCst);
        Staged::Done { calls: end - moved < MANY && next - moved >= MANY }
    }

    /// Does something in the order of appends that is none of the file's: nothing is appended
    /// meanwhile.
    pub(crate) fn alone<T>(&self, act: impl FnOnce() -> T) -> T {
        let _writer = self.writer();
        act()
    }

    /// Where the frames end now.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(SeqCst)
    }

    /// Whether so many wait that they are moved without a reason of their own.
    pub(crate) fn has_many(&self) -> bool {
        self.end() - self.moved() >= MANY / 2
    }

    /// Where the engine's contents end.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(SeqCst)
    }

    /// The next frames that the engine does not have; `None` where there is no further one. The
    /// caller has the lock of all that moves.
    pub(crate) fn next(&self) -> Option<Moving> {
        let (first, generation) = (self.moved(), self.generation.load(SeqCst));
        let (mut at, mut bytes) = (first, Vec::new());
        while at - first < TOGETHER && self.take(at, first, &mut bytes) {
            at = first + bytes.len() as u64;
        }
        let end = Place { generation, position: at };
        (at > first).then_some(Moving { bytes, end })
    }

    /// Adds the frame at a position to bytes, if there is one: also what a former process has left.
    fn take(&self, at: u64, first: u64, bytes: &mut Vec<u8>) -> bool {
        let mut header = [0; HEADER as usize];
        self.read(at, &mut header);
        let word = |i: usize| u64::from_le_bytes(header[i..i + 8].try_into().expect("8 bytes"));
        let (position, length) = (word(0), word(16));
        let Some(frame) = HEADER.checked_add(length).and_then(|n| n.checked_next_multiple_of(8))
        else {
            return false;
        };
        if position != at || frame > LONGEST || at + frame - first > BYTES {
            return false;
        }
        let start = bytes.len();
        bytes.extend(header);
        bytes.resize(start + frame as usize, 0);
        let records = start + HEADER as usize;
        self.read(at + HEADER, &mut bytes[records..]);
        let is_whole = self.header(at, length, &bytes[records..][..length as usize]) == header;
        if !is_whole {
            bytes.truncate(start);
        }
        is_whole
    }

    fn header(&self, position: u64, length: u64, records: &[u8]) -> [u8; HEADER as usize] {
        let seed = self.generation.load(SeqCst).rotate_left(32) ^ position ^ length.rotate_left(48);
        let mut out = [0; HEADER as usize];
        for (i, word) in [position, xxh3_64_with_seed(records, seed), length].iter().enumerate() {
            out[8 * i..][..8].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn write(&self, position: u64, bytes: &[u8]) {
        let at = position % BYTES;
        let (head, tail) = bytes.split_at(bytes.len().min((BYTES - at) as usize));
        self.ring.write(at, head);
        self.ring.write(0, tail);
    }

    fn read(&self, position: u64, bytes: &mut [u8]) {
        let at = position % BYTES;
        let (head, tail) = bytes.split_at_mut(bytes.len().min((BYTES - at) as usize));
        self.ring.read(at, head);
        self.ring.read(0, tail);
    }
}

impl Moving {
    /// The last record of each key, in the order of indexes and keys: the engine has all of them or
    /// none, so that the earlier ones are never seen.
    pub(crate) fn records(&self) -> Result<Vec<(IndexNumber, Record<'_>)>> {
        let mut records = Vec::new();
        let mut rest = &self.bytes[..];
        while let Some((header, after)) = rest.split_first_chunk::<{ HEADER as usize }>() {
            let length = u64::from_le_bytes(header[16..].try_into().expect("8 bytes")) as usize;
            let mut frame = &after[..length];
            while !frame.is_empty() {
                records.push(take_record(&mut frame)?);
            }
            rest = &after[length.next_multiple_of(8)..];
        }
        records.sort_by_key(|(index, record)| (*index, record.key()));
        let mut last = Vec::with_capacity(records.len());
        for (i, (index, record)) in records.iter().enumerate() {
            let next = records.get(i + 1).map(|(index, record)| (index, record.key()));
            if next != Some((index, record.key())) {
                last.push((*index, *record));
            }
        }
        Ok(last)
    }
}

/// Gives the file all of its blocks: a full device refuses here, and not a store into the mapping.
fn fill(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    for _ in 0..BYTES >> 20 {
        file.write_all(&[0; 1 << 20])?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests;
