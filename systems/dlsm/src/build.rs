//! Builds tables from versions in order. A table ends behind the versions of a key: no key is ever
//! in two tables of a run.

use dmtree_fabric::{Error, Result};

use crate::block;
use crate::bloom::{self, Bloom};
use crate::format::{Format, Index, entry_bytes, put_entry};
use crate::key::{Seq, Tag};
use crate::store::Store;
use crate::table::{Extent, Meta};

/// Bits of the filter for each key.
const FILTER_BITS: u32 = 10;

/// A table that was built, with its index and filter.
pub(crate) struct Built {
    pub(crate) meta: Meta,
    pub(crate) index: Index,
    pub(crate) filter: Bloom,
}

/// A table that is being built.
pub(crate) struct Builder<'s, S: Store> {
    store: &'s mut S,
    format: Format,
    piece_bytes: usize,
    /// The piece that is not written yet.
    piece: Vec<u8>,
    /// The unit that is not in a piece yet, its first version, and its entries.
    dense: Vec<u8>,
    block: block::Builder,
    first: Option<(Vec<u8>, Tag)>,
    pairs: u32,
    data: Vec<Extent>,
    data_bytes: u64,
    index: Index,
    hashes: Vec<u64>,
    last: Vec<u8>,
    entries: u64,
    numbers: (Seq, Seq),
}

impl<'s, S: Store> Builder<'s, S> {
    pub(crate) fn new(store: &'s mut S, format: Format, piece_bytes: u32) -> Self {
        Self {
            store,
            format,
            piece_bytes: piece_bytes as usize,
            piece: Vec::new(),
            dense: Vec::new(),
            block: block::Builder::default(),
            first: None,
            pairs: 0,
            data: Vec::new(),
            data_bytes: 0,
            index: Index::default(),
            hashes: Vec::new(),
            last: Vec::new(),
            entries: 0,
            numbers: (Seq::MAX, 0),
        }
    }

    /// Bytes of its data so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.data_bytes + self.dense.len() as u64 + self.block.len() as u64
    }

    fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Adds a version.
    ///
    /// # Errors
    /// `Full`; those of the fabric.
    pub(crate) async fn push(&mut self, user: &[u8], tag: Tag, value: &[u8]) -> Result<()> {
        let ends = match self.format {
            Format::Dense(pairs) => self.pairs >= pairs,
            Format::Blocks(bytes) => {
                !self.block.is_empty()
                    && self.block.len() + entry_bytes(user, value) > bytes as usize
            }
        };
        if ends {
            self.end_unit().await?;
        }
        self.first.get_or_insert_with(|| (user.to_vec(), tag));
        self.pairs += 1;
        match self.format {
            Format::Dense(_) => put_entry(&mut self.dense, user, tag, value),
            Format::Blocks(_) => self.block.push(user, tag, value),
        }
        if self.is_empty() || self.last != user {
            self.hashes.push(bloom::hash(user));
            self.last.clear();
            self.last.extend_from_slice(user);
        }
        self.entries += 1;
        let (low, high) = self.numbers;
        self.numbers = (low.min(tag.seq()), high.max(tag.seq()));
        Ok(())
    }

    async fn end_unit(&mut self) -> Result<()> {
        let Some((user, tag)) = self.first.take() else { return Ok(()) };
        let unit = match self.format {
            Format::Dense(_) => std::mem::take(&mut self.dense),
            Format::Blocks(_) => self.block.finish(),
        };
        if !self.piece.is_empty() && self.piece.len() + unit.len() > self.piece_bytes {
            self.end_piece().await?;
        }
        let too_long = |_| Error::invalid("a table of more than 4 GiB");
        let at = u32::try_from(self.data_bytes).map_err(too_long)?;
        self.index.push((&user, tag), (at, unit.len() as u32));
        self.data_bytes += unit.len() as u64;
        self.piece.extend_from_slice(&unit);
        self.pairs = 0;
        // Its memory is used again.
        self.dense = unit;
        self.dense.clear();
        Ok(())
    }

    async fn end_piece(&mut self) -> Result<()> {
        let extent = self.store.put(&self.piece).await?;
        self.data.push(extent);
        self.piece.clear();
        Ok(())
    }

    async fn section(&mut self, bytes: &[u8]) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        for part in bytes.chunks(self.piece_bytes) {
            extents.push(self.store.put(part).await?);
        }
        Ok(extents)
    }

    /// Writes the rest; `None` when it has no entries.
    ///
    /// # Errors
    /// As [`Builder::push`].
    pub(crate) async fn finish(mut self) -> Result<Option<Built>> {
        if self.is_empty() {
            return Ok(None);
        }
        self.end_unit().await?;
        self.end_piece().await?;
        self.index.largest = std::mem::take(&mut self.last);
        let filter = Bloom::of(&self.hashes, FILTER_BITS);
        let index = self.section(&self.index.encoded()).await?;
        let filters = self.section(&filter.encoded()).await?;
        let (maker, format) = (S::MAKER, self.format);
        let (data, entries, numbers) = (self.data, self.entries, self.numbers);
        let meta = Meta { maker, format, data, index, filter: filters, entries, numbers };
        Ok(Some(Built { meta, index: self.index, filter }))
    }
}
