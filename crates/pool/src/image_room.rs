//! The room for images that a compute node gives to indexes: cells with more lines than a table
//! needs. The owner grants such cells within that room only.
//!
//! What is granted is with a leaf, on a limbo list, or free at some node. A free cell goes to
//! another leaf of its index. When more is granted than there is room, the owner *withholds* every
//! cell of its own that comes free here: it is granted no more, and the first to be granted again
//! when there is room. A cell stays what it is, as all table memory does, so its lines become no
//! tables.
//!
//! Invariant: granted bytes grow within the room only. A call that grants cells reserves their
//! bytes before it cuts them, so what [`ImageRoom::bytes`] says does not grow behind a room that
//! has become smaller.
//!
//! *Cells stay whole.* The owner remembers where it has cut cells with images
//! ([`ImageRoom::cell_at`]), so a garbage collection takes a lost one as what it is: with an image,
//! and counted. Its lines alone do not tell, because an empty cell is all zero.
//!
//! Cells count by the partition in which they lie. A partition that moves away takes its cells
//! along, those withheld are lost until a garbage collection; one that comes from another owner
//! brings cells that no room counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::gc_log::{GcLog, Span};
use crate::ids::{LINE, TABLE_LINES, TableId};
use crate::wire::locked;

/// Cells with images, by index.
#[derive(Debug, Default)]
pub(crate) struct ImageRoom {
    rooms: Mutex<BTreeMap<u32, Room>>,
    /// Where cells were cut, by partition.
    runs: Mutex<BTreeMap<u16, Runs>>,
    gc_log: Arc<GcLog>,
}

#[derive(Debug, Default)]
struct Room {
    /// Bytes that may be granted.
    all: u64,
    /// Bytes that are, by partition.
    granted: BTreeMap<u16, u64>,
    /// Bytes of cells that calls are cutting.
    reserved: u64,
    withheld: Vec<TableId>,
}

impl Room {
    fn bytes(&self) -> u64 {
        self.reserved + self.granted.values().sum::<u64>()
    }
}

/// Cells of one partition, by the first line of each run.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, Run>);

/// Cells of one size in a row.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Lines of each.
    lines: u8,
    cells: u32,
}

impl Run {
    fn len(self) -> u64 {
        u64::from(self.cells) * u64::from(self.lines)
    }
}

impl Runs {
    /// The first line and the lines of the cell that holds a line.
    fn cell_at(&self, line: u64) -> Option<(u64, u8)> {
        let (first, run) = self.0.range(..=line).next_back()?;
        let before = (line - first) / u64::from(run.lines);
        let first = first + before * u64::from(run.lines);
        (before < u64::from(run.cells)).then_some((first, run.lines))
    }

    /// Adds a cell that was cut; one that is granted again is there.
    fn add(&mut self, first: u64, lines: u8) {
        if self.cell_at(first).is_some() {
            return;
        }
        let last = self.0.range_mut(..first).next_back();
        let is_next =
            |(at, run): &(&u64, &mut Run)| run.lines == lines && **at + run.len() == first;
        match last.filter(is_next) {
            Some((_, run)) => run.cells += 1,
            None => _ = self.0.insert(first, Run { lines, cells: 1 }),
        }
    }
}

/// Bytes of a cell.
pub(crate) fn cell_bytes(lines: u8) -> u64 {
    u64::from(lines) * LINE
}

impl ImageRoom {
    /// The log of the node for garbage collection.
    pub(crate) fn gc_log(&self) -> &Arc<GcLog> {
        &self.gc_log
    }

    /// Gives an index so many bytes in all.
    pub(crate) fn give(&self, index: u32, bytes: u64) {
        locked(&self.rooms).entry(index).or_default().all = bytes;
    }

    /// Reserves room for cells of a size, `wanted` at most.
    pub(crate) fn reserve(&self, (index, lines): (u32, u8), wanted: u16) -> Reserved<'_> {
        let mut reserved = Reserved { rooms: self, index, lines, count: wanted };
        if lines > TABLE_LINES {
            let mut rooms = locked(&self.rooms);
            let room = rooms.entry(index).or_default();
            let left = room.all.saturating_sub(room.bytes()) / cell_bytes(lines);
            reserved.count = left.min(u64::from(wanted)) as u16;
            room.reserved += reserved.bytes();
        }
        reserved
    }

    /// A cell of this node comes free: whether it is withheld.
    pub(crate) fn withholds(&self, index: u32, t: TableId) -> bool {
        let Some(partition) = t.partition().filter(|_| t.lines() > TABLE_LINES) else {
            return false;
        };
        let mut rooms = locked(&self.rooms);
        let Some(room) = rooms.get_mut(&index).filter(|room| room.bytes() > room.all) else {
            return false;
        };
        // Of a partition that came from another owner nothing is counted.
        if let Some(bytes) = room.granted.get_mut(&partition) {
            *bytes = bytes.saturating_sub(cell_bytes(t.lines()));
        }
        room.withheld.push(t);
        true
    }

    /// Bytes of the cells that are granted to an index.
    pub(crate) fn bytes(&self, index: u32) -> u64 {
        locked(&self.rooms).get(&index).map_or(0, Room::bytes)
    }

    /// Bytes of them beyond the room.
    pub(crate) fn excess(&self, index: u32) -> u64 {
        locked(&self.rooms).get(&index).map_or(0, |room| room.bytes().saturating_sub(room.all))
    }

    /// The cell with an image that this node has cut there: it holds the line. `None` when there is
    /// none, or a former owner has cut it.
    pub(crate) fn cell_at(&self, line: TableId) -> Option<TableId> {
        let partition = line.partition()?;
        let (first, lines) = locked(&self.runs).get(&partition)?.cell_at(line.first_line())?;
        Some(TableId::new(partition, lines, first))
    }

    /// Forgets the cells of a partition: it is another owner's, or its index is gone.
    pub(crate) fn forget(&self, partition: u16) {
        locked(&self.runs).remove(&partition);
        for room in locked(&self.rooms).values_mut() {
            room.granted.remove(&partition);
            room.withheld.retain(|t| t.partition() != Some(partition));
        }
    }

    /// The cells that are withheld.
    pub(crate) fn list(&self, out: &mut Vec<Span>) {
        let rooms = locked(&self.rooms);
        out.extend(rooms.values().flat_map(|room| &room.withheld).map(|t| Span::table(*t)));
    }
}

/// Room for cells that are being cut. Dropped, it is free again: what was granted counts from then
/// on.
pub(crate) struct Reserved<'r> {
    rooms: &'r ImageRoom,
    index: u32,
    lines: u8,
    /// How many cells.
    pub(crate) count: u16,
}

impl Reserved<'_> {
    fn bytes(&self) -> u64 {
        u64::from(self.count) * cell_bytes(self.lines)
    }

    /// Withheld cells of the size, which are to be granted first.
    pub(crate) fn withheld(&self) -> Vec<TableId> {
        let mut rooms = locked(&self.rooms.rooms);
        let Some(room) = rooms.get_mut(&self.index) else { return Vec::new() };
        let is_wanted = |t: &mut TableId| t.lines() == self.lines;
        let cells = room.withheld.extract_if(.., is_wanted).take(usize::from(self.count));
        let cells: Vec<_> = cells.collect();
        cells.iter().for_each(|t| self.rooms.gc_log.add(|| Span::table(*t)));
        cells
    }

    /// Counts the cells of the size among those that are granted.
    pub(crate) fn grant(self, cells: &[TableId]) {
        if self.lines <= TABLE_LINES {
            return;
        }
        let mut runs = locked(&self.rooms.runs);
        let mut rooms = locked(&self.rooms.rooms);
        let room = rooms.entry(self.index).or_default();
        for t in cells.iter().filter(|t| t.lines() == self.lines) {
            if let Some(partition) = t.partition() {
                runs.entry(partition).or_default().add(t.first_line(), t.lines());
                *room.granted.entry(partition).or_default() += cell_bytes(self.lines);
            }
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.lines > TABLE_LINES {
            let mut rooms = locked(&self.rooms.rooms);
            let room = rooms.entry(self.index).or_default();
            room.reserved = room.reserved.saturating_sub(self.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants cells of five lines of partition 3, as many of `wanted` as there is room for.
    fn granted(rooms: &ImageRoom, index: u32, wanted: u16) -> Vec<TableId> {
        let reserved = rooms.reserve((index, 5), wanted);
        let mut cells = reserved.withheld();
        let more = usize::from(reserved.count) - cells.len();
        cells.extend((0..more).map(|i| TableId::new(3, 5, 16 + 5 * i as u64)));
        reserved.grant(&cells);
        cells
    }

    #[test]
    fn images_stay_within_the_room_of_their_index() {
        let rooms = ImageRoom::default();
        assert_eq!(rooms.reserve((1, 4), 7).count, 7, "tables need no room");
        assert_eq!(rooms.reserve((1, 5), 7).count, 0);
        rooms.give(1, 5 * 320 + 319);
        let count = |index, wanted| rooms.reserve((index, 5), wanted).count;
        assert_eq!([count(1, 7), count(1, 3), count(2, 7)], [5, 3, 0], "dropped, it is free again");
        assert_eq!((granted(&rooms, 1, 4).len(), rooms.bytes(1)), (4, 4 * 320));
        let two = rooms.reserve((1, 5), 2);
        assert_eq!((two.count, rooms.bytes(1), count(1, 7)), (1, 5 * 320, 0), "while it is cut");
        drop(two);
        assert_eq!((count(1, 7), rooms.reserve((1, 10), 7).count), (1, 0));
    }

    /// The owner knows each cell that it has cut by any of its lines, also when it is granted
    /// again.
    #[test]
    fn a_cell_is_known_by_each_of_its_lines() {
        let rooms = ImageRoom::default();
        rooms.give(1, 1 << 20);
        let cells = [(16, 5), (21, 5), (26, 9), (40, 5), (45, 5)];
        let cells = cells.map(|(first, lines)| TableId::new(3, lines, first));
        for t in cells.iter().chain(&cells[..2]) {
            rooms.reserve((1, t.lines()), 1).grant(&[*t]);
        }
        for t in cells {
            assert!(t.each().all(|line| rooms.cell_at(line) == Some(t)), "{t:?}");
        }
        let unknown = [(3, 15), (3, 35), (3, 39), (3, 50), (4, 16)];
        let unknown = unknown.map(|(partition, line)| TableId::new(partition, 1, line));
        assert_eq!(unknown.map(|line| rooms.cell_at(line)), [None; 5]);
        assert_eq!(locked(&rooms.runs)[&3].0.len(), 3, "cells in a row take no more memory");
        rooms.forget(3);
        assert_eq!(rooms.cell_at(cells[0]), None, "another owner may cut others");
    }

    /// Beyond a smaller room every cell that comes free is withheld, and granted again first.
    #[test]
    fn cells_beyond_a_smaller_room_are_withheld() {
        let rooms = ImageRoom::default();
        rooms.give(1, 4 * 320);
        let cells = granted(&rooms, 1, 4);
        assert!(!rooms.withholds(1, cells[0]), "there is room for all");
        rooms.give(1, 2 * 320);
        assert_eq!((rooms.excess(1), rooms.reserve((1, 5), 1).count), (2 * 320, 0));
        assert!(!rooms.withholds(2, cells[0]) && !rooms.withholds(1, TableId::new(3, 4, 16)));
        assert!(rooms.withholds(1, cells[0]) && rooms.withholds(1, cells[3]));
        assert_eq!((rooms.excess(1), rooms.bytes(1)), (0, 2 * 320));
        assert!(!rooms.withholds(1, cells[1]), "it is within the room");
        rooms.give(1, 3 * 320);
        assert_eq!(granted(&rooms, 1, 4), [cells[0]]);
        let mut listed = Vec::new();
        rooms.list(&mut listed);
        assert_eq!(listed, [Span::table(cells[3])]);
        rooms.forget(3);
        rooms.list(&mut listed);
        assert_eq!((rooms.bytes(1), listed.len()), (0, 1), "the partition has moved away");
    }
}
