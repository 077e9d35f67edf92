//! Files into an index.
//!
//! Several files are merged by key, so that parts of one export, or of several shards, load as one.
//! Of equal keys in several files that of the last file stays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

use dmtree_fabric::{Error, ErrorKind, Result};
use dmtree_parts::{Loaded, check_key, check_value};

use super::{Format, Head, Pair, PairReader, at, json_lines, parquet, wrong};
use crate::feed::Feed;
use crate::filled::Unpublished;
use crate::{Batch, Index, LoadOrder, Pool};

/// A batch of puts ends with so many pairs, or bytes.
const BATCH_PAIRS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// Whether the keys of a file ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Ascending,
    Any,
}

/// A file that is read.
struct Input {
    path: PathBuf,
    reader: Box<dyn PairReader>,
    order: Order,
    /// The last key, if keys ascend.
    last: Option<Vec<u8>>,
}

impl Input {
    fn open(path: &Path, order: Order) -> Result<(Self, Option<Head>)> {
        let opened = match Format::of(path)? {
            Format::JsonLines => json_lines::Reader::open(path)
                .map(|(reader, head)| (Box::new(reader) as Box<dyn PairReader>, head)),
            Format::Parquet => parquet::open(path),
        };
        let (reader, head) = opened.map_err(|e| at(path, e))?;
        Ok((Self { path: path.to_owned(), reader, order, last: None }, head))
    }

    /// The next pair, checked; false at the end.
    fn next(&mut self, pair: &mut Pair) -> Result<bool> {
        let next = self.reader.next(pair).and_then(|is_there| {
            if is_there {
                self.check(pair)?;
            }
            Ok(is_there)
        });
        next.map_err(|e| at(&self.path, e))
    }

    fn check(&mut self, pair: &Pair) -> Result<()> {
        let fits = check_key(&pair.key).and_then(|()| check_value(&pair.value));
        fits.map_err(|e| wrong(self.reader.place(), e))?;
        if self.order == Order::Any {
            return Ok(());
        }
        match &mut self.last {
            Some(last) if *last >= pair.key => Err(wrong(
                self.reader.place(),
                "its key is not above the one before: import the file as unsorted",
            )),
            Some(last) => {
                last.clone_from(&pair.key);
                Ok(())
            }
            None => {
                self.last = Some(pair.key.clone());
                Ok(())
            }
        }
    }
}

/// The next pair of an input: its key, the input's number, its value. Of equal keys the later input
/// comes last.
type Next = (Vec<u8>, usize, Vec<u8>);

/// Pairs of several files by key.
pub(crate) struct Merged {
    inputs: Vec<Input>,
    /// The smallest comes out first.
    next: BinaryHeap<Reverse<Next>>,
}

impl Merged {
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| Ok(Input::open(path, Order::Ascending)?.0);
        let inputs = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut merged = Self { inputs, next: BinaryHeap::new() };
        (0..merged.inputs.len()).try_for_each(|i| merged.advance(i, Pair::default()))?;
        Ok(merged)
    }

    /// Takes the next pair of an input.
    fn advance(&mut self, i: usize, mut pair: Pair) -> Result<()> {
        if self.inputs[i].next(&mut pair)? {
            self.next.push(Reverse((pair.key, i, pair.value)));
        }
        Ok(())
    }

    fn next_pair(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        while let Some(Reverse((key, i, value))) = self.next.pop() {
            self.advance(i, Pair::default())?;
            let is_last = self.next.peek().is_none_or(|Reverse(next)| next.0 != key);
            if is_last {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }
}

impl Iterator for Merged {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_pair().transpose()
    }
}

/// See [`Index::import`].
pub(super) fn import(index: &Index, files: &[impl AsRef<Path>]) -> Result<Loaded> {
    let paths = paths(files)?;
    let pairs: u64 = Merged::open(&paths)?.map(|pair| pair.map(|_| 1)).sum::<Result<_>>()?;
    let merged = Merged::open(&paths)?;
    if index.scan(..).limit(1).pairs().next_ref()?.is_none() {
        let mut feed = Feed::new(merged, Some(pairs));
        let loaded = index.load(&mut feed, LoadOrder::Sorted);
        return feed.ended(loaded);
    }
    let mut puts = Puts::new(index);
    for pair in merged {
        let (key, value) = pair?;
        puts.put(&key, &value)?;
    }
    puts.end()
}

/// See [`Index::import_unsorted`].
pub(super) fn import_unsorted(index: &Index, files: &[impl AsRef<Path>]) -> Result<Loaded> {
    let paths = paths(files)?;
    let mut pair = Pair::default();
    for path in &paths {
        let mut input = Input::open(path, Order::Any)?.0;
        while input.next(&mut pair)? {}
    }
    let mut puts = Puts::new(index);
    for path in &paths {
        let mut input = Input::open(path, Order::Any)?.0;
        while input.next(&mut pair)? {
            puts.put(&pair.key, &pair.value)?;
        }
    }
    puts.end()
}

/// See [`Pool::import_into_new`].
pub(crate) fn import_into_new(
    pool: &Pool,
    name: &str,
    files: &[impl AsRef<Path>],
) -> Result<(Index, Loaded)> {
    let paths = paths(files)?;
    let (_, head) = Input::open(&paths[0], Order::Ascending)?;
    let head = head.ok_or_else(|| {
        let what = "it does not say what options its index had: create the index, and import the \
                    file into it";
        at(&paths[0], Error::invalid(what))
    })?;
    let Some(new) = pool.inner().begin(name, &head.options, false)? else {
        return Err(Error::exists(format!("the index {name:?} exists")));
    };
    let loaded = new.index().import(&paths)?;
    Unpublished::publish(vec![new])?;
    Ok((pool.open(name)?, loaded))
}

fn paths(files: &[impl AsRef<Path>]) -> Result<Vec<PathBuf>> {
    match files {
        [] => Err(Error::invalid("no file is given to import")),
        files => Ok(files.iter().map(|path| path.as_ref().to_owned()).collect()),
    }
}

/// Pairs that are put in batches.
struct Puts<'i> {
    index: &'i Index,
    batch: Batch,
    bytes: usize,
    pairs: u64,
}

impl<'i> Puts<'i> {
    fn new(index: &'i Index) -> Self {
        Self { index, batch: Batch::default(), bytes: 0, pairs: 0 }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.put(key, value);
        self.bytes += key.len() + value.len();
        if self.batch.len() >= BATCH_PAIRS || self.bytes >= BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        let outcomes = self.index.write_batch(&batch)?;
        for outcome in outcomes {
            outcome.map_err(|e| self.stored(e))?;
            self.pairs += 1;
        }
        Ok(())
    }

    /// Part of the pairs is stored.
    fn stored(&self, e: Error) -> Error {
        match e.kind() {
            ErrorKind::InvalidArgument => e,
            _ => e.context(format!("after {} pairs, which are stored", self.pairs)),
        }
    }

    fn end(mut self) -> Result<Loaded> {
        self.write()?;
        Ok(Loaded { pairs: self.pairs, leaves: 0 })
    }
}
