//! A table with the records of its index that an operation needs.

use std::sync::Arc;

use dmtree_fabric::{Error, GlobalAddr, Result};

use crate::format::{Each, Format, Index, decode_unit};
use crate::key::Tag;
use crate::table::Table;

/// A table with its index, or a part of it, as long as that is needed.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) table: Arc<Table>,
    pub(crate) index: Arc<Index>,
}

/// What a table says of a key.
pub(crate) enum Found {
    /// It is not there.
    Nothing,
    /// The newest version is this, and its value is in that unit; for tables with a record for each
    /// entry.
    Version(Tag, usize),
    /// It can be in these units.
    Somewhere(std::ops::Range<usize>),
}

impl Opened {
    /// The newest version of a key up to a tag.
    pub(crate) fn find(&self, user: &[u8], newest: Tag) -> Found {
        let before = |u: &[u8], t| crate::key::order((u, t), (user, newest)).is_lt();
        let at = self.index.partition(before);
        if self.table.meta.format == Format::Dense(1) {
            return match (at < self.index.len()).then(|| self.index.first(at)) {
                Some((its, tag)) if its == user => Found::Version(tag, at),
                _ => Found::Nothing,
            };
        }
        // The version may be in the unit before, or be the first of this one.
        let first_is_it = at < self.index.len() && self.index.first(at).0 == user;
        let range = at.saturating_sub(1)..at + usize::from(first_is_it);
        if range.is_empty() { Found::Nothing } else { Found::Somewhere(range) }
    }

    /// Where a unit is.
    pub(crate) fn unit(&self, i: usize) -> (GlobalAddr, u32) {
        let (at, bytes) = self.index.place(i);
        let (mut from, mut rest) = (0, self.table.meta.data.iter());
        // A few dozen pieces at most.
        let extent = rest.find(|extent| {
            let here = at < from + extent.bytes;
            from += if here { 0 } else { extent.bytes };
            here
        });
        extent.map_or((GlobalAddr::NULL, 0), |e| (e.at().plus(u64::from(at - from)), bytes))
    }

    /// How many of the units from `from` (or before it, downwards) lie behind each other and have
    /// at most so many bytes together; one at least.
    pub(crate) fn stretch(&self, units: std::ops::Range<usize>, down: bool, most: u64) -> usize {
        let mut bytes = 0;
        let mut last: Option<(GlobalAddr, u32)> = None;
        let at = |n: usize| if down { units.end - 1 - n } else { units.start + n };
        let fits = |n: &usize| {
            let (place, len) = self.unit(at(*n));
            bytes += u64::from(len);
            let adjacent = last.is_none_or(|(before, its)| match down {
                true => place.plus(u64::from(len)) == before,
                false => before.plus(u64::from(its)) == place,
            });
            last = Some((place, len));
            adjacent && (*n == 0 || bytes <= most)
        };
        (0..units.len()).take_while(fits).count()
    }

    /// Decodes the bytes of these units. The first version of each must be what the index says:
    /// these bytes came from a memory node.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn decode(
        &self,
        units: std::ops::Range<usize>,
        bytes: &[u8],
        each: &mut Each<'_>,
    ) -> Result<()> {
        let mut rest = bytes;
        for i in units {
            let unit = crate::format::take(&mut rest, self.index.place(i).1 as usize)?;
            let (wanted, mut first) = (self.index.first(i), true);
            let mut is_it = true;
            decode_unit(self.table.meta.format, unit, &mut |user, tag, value| {
                is_it &= !std::mem::take(&mut first) || (user, tag) == wanted;
                each(user, tag, value);
            })?;
            if !is_it || first {
                return Err(Error::corrupt(format!(
                    "{:?}: unit {i} is not what its index says",
                    self.table
                )));
            }
        }
        Ok(())
    }
}
