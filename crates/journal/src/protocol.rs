//! What compute nodes and journal nodes say to each other: remote calls of 64 KiB at most.
//!
//! A sender numbers its calls. A call with the number of the last one is that call again, because
//! its answer was lost: it is answered and not executed. Records are bytes in a row, so that what
//! exceeds a call goes in several; the last one makes the records.
//!
//! ```text
//! record  index 4, kind 1 (1 put, 0 delete), length of key 2, of value 4, key, value
//! pair    length of key 2, of value 4, key, value
//! ```

use dmtree_fabric::{Error, Failure, MAX_RPC_BYTES, Result, ServiceId};
use serde::{Deserialize, Serialize};

use crate::{IndexNumber, KnownIndex, Pair, Record};

/// The service of a journal node.
pub const JOURNAL_SERVICE: ServiceId = ServiceId(0x20);

/// Bytes of records or pairs in a call or an answer.
pub(crate) const BODY_BYTES: usize = MAX_RPC_BYTES - (4 << 10);

/// A call.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request<'r> {
    /// Tells the senders of one compute node apart: the incarnation of the node.
    pub sender: u32,
    /// Grows by one with every call of the sender.
    pub number: u64,
    #[serde(borrow)]
    pub ask: Ask<'r>,
}

/// What is called for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask<'r> {
    /// Bytes of records; more follow. `at`: how many came before.
    Part {
        at: u64,
        bytes: &'r [u8],
    },
    /// The last bytes of records, which are appended.
    Append {
        at: u64,
        bytes: &'r [u8],
    },
    /// [`crate::Journal::create`], or with a number [`crate::Journal::create_numbered`].
    Create(Option<u32>),
    Name(Vec<Row>),
    Remove(u32),
    Clear(u32),
    /// The indexes that are there now, from this one on.
    Indexes(u32),
    /// Takes a cut, and drops the former one of this sender. Nothing is changed here until it is
    /// released, or for [`crate::service::HOLD_NS`].
    Cut,
    /// Ends the standstill of a cut: whether it has lasted until now.
    Release,
    /// The indexes of the cut, from this one on.
    CutIndexes(u32),
    /// Begins to read the pairs of an index of the cut.
    Read(u32),
    /// The next bytes of pairs; none at the end.
    Page,
    /// The cut is not read any more.
    EndCut,
    /// Removes all indexes: the part is refilled. It accepts no records until [`Ask::Fill`].
    Empty,
    /// It has its indexes again, and accepts records.
    Fill,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// Records were appended, but for those of these indexes.
    Appended(Vec<(u32, Failure)>),
    /// Bytes of records that came before are not here: the node has restarted. Begin again.
    BeginAgain,
    Created(u32),
    /// The number of the cut.
    Cut(u64),
    Released(bool),
    Indexes(Vec<Row>),
    Page(Vec<u8>),
}

/// An index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    number: u32,
    name: String,
    options: Vec<u8>,
}

impl From<&KnownIndex> for Row {
    fn from(known: &KnownIndex) -> Self {
        let KnownIndex { number, name, options } = known.clone();
        Self { number: number.0, name, options }
    }
}

impl From<Row> for KnownIndex {
    fn from(Row { number, name, options }: Row) -> Self {
        Self { number: IndexNumber(number), name, options }
    }
}

impl Row {
    /// Bytes of it in a message, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.name.len() + self.options.len() + 16
    }
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(message).map_err(|e| Error::invalid(format!("not a message: {e}")))
}

pub(crate) fn decode<'r, T: Deserialize<'r>>(bytes: &'r [u8]) -> Result<T> {
    let none =
        |e| Error::corrupt(format!("{} bytes are no message of a journal: {e}", bytes.len()));
    postcard::from_bytes(bytes).map_err(none)
}

/// Adds a record to bytes.
pub(crate) fn put_record(out: &mut Vec<u8>, index: IndexNumber, record: &Record<'_>) {
    out.extend(index.0.to_le_bytes());
    match *record {
        Record::Put { key, value } => {
            out.push(1);
            put_pair(out, key, value);
        }
        Record::Delete { key } => {
            out.push(0);
            put_pair(out, key, &[]);
        }
    }
}

/// The bytes of a record.
#[cfg(feature = "durable")]
pub(crate) fn record_bytes(record: &Record<'_>) -> u64 {
    let value_bytes = match record {
        Record::Put { value, .. } => value.len(),
        Record::Delete { .. } => 0,
    };
    (11 + record.key().len() + value_bytes) as u64
}

/// Adds a pair to bytes.
pub(crate) fn put_pair(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend((key.len() as u16).to_le_bytes());
    out.extend((value.len() as u32).to_le_bytes());
    out.extend(key);
    out.extend(value);
}

/// Takes the next record off bytes.
pub(crate) fn take_record<'b>(bytes: &mut &'b [u8]) -> Result<(IndexNumber, Record<'b>)> {
    let cut_off = || Error::corrupt("a record that is cut off");
    let (index, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut_off)?;
    let (kind, rest) = rest.split_first().ok_or_else(cut_off)?;
    *bytes = rest;
    let (key, value) = take_pair(bytes).ok_or_else(cut_off)?;
    let record = match kind {
        0 if value.is_empty() => Record::Delete { key },
        1 => Record::Put { key, value },
        kind => return Err(Error::corrupt(format!("a record of kind {kind}"))),
    };
    Ok((IndexNumber(u32::from_le_bytes(*index)), record))
}

/// Takes the next pair off bytes; `None`, and the bytes stay, when they have no whole one.
fn take_pair<'b>(bytes: &mut &'b [u8]) -> Option<(&'b [u8], &'b [u8])> {
    let (key_bytes, rest) = bytes.split_first_chunk::<2>()?;
    let (value_bytes, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*key_bytes)))?;
    let value_bytes = usize::try_from(u32::from_le_bytes(*value_bytes)).ok()?;
    let (value, rest) = rest.split_at_checked(value_bytes)?;
    *bytes = rest;
    Some((key, value))
}

/// Pairs of pages, which may be cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    bytes: Vec<u8>,
    taken: usize,
}

impl Pages {
    pub(crate) fn add(&mut self, page: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend(page);
    }

    /// The next pair; `None` when its page is still to come.
    pub(crate) fn take(&mut self) -> Option<Pair> {
        let mut rest = &self.bytes[self.taken..];
        let (key, value) = take_pair(&mut rest)?;
        let pair = (key.to_vec(), value.to_vec());
        self.taken = self.bytes.len() - rest.len();
        Some(pair)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: IndexNumber = IndexNumber(7);

    #[test]
    fn records_are_bytes_and_back_and_cut_ones_are_refused() {
        let all = [
            Record::Put { key: b"a", value: b"1" },
            Record::Put { key: &[0xff; 1024], value: &[3; 70_000] },
            Record::Delete { key: b"a" },
            Record::Put { key: b"b", value: b"" },
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|record| put_record(&mut bytes, INDEX, record));
        let mut rest = &bytes[..];
        for record in all {
            assert_eq!(take_record(&mut rest).expect("whole"), (INDEX, record));
        }
        assert!(rest.is_empty());
        let mut one = Vec::new();
        put_record(&mut one, INDEX, &Record::Put { key: b"key", value: b"value" });
        for cut in 0..one.len() {
            assert!(take_record(&mut &one[..cut]).is_err(), "{cut} bytes");
        }
        one[4] = 9;
        assert!(take_record(&mut &one[..]).is_err(), "no kind");
    }

    #[test]
    fn pages_may_be_cut_anywhere() {
        let pairs: Vec<Pair> = (0..40u8).map(|i| (vec![i; 3], vec![i; usize::from(i)])).collect();
        let mut bytes = Vec::new();
        pairs.iter().for_each(|(key, value)| put_pair(&mut bytes, key, value));
        for size in [1, 2, 7, 64, bytes.len()] {
            let (mut pages, mut read) = (Pages::default(), Vec::new());
            for page in bytes.chunks(size) {
                pages.add(page);
                read.extend(std::iter::from_fn(|| pages.take()));
            }
            assert!(pages.is_empty() && read == pairs, "pages of {size} bytes");
        }
    }
}
