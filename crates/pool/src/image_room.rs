//! The room for images that a compute node gives to indexes: cells with more lines than a table
//! needs. The owner grants such cells within that room only. A cell that comes back goes to other
//! leaves of its index, so what was granted stays granted.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::ids::{LINE, TABLE_LINES};
use crate::wire::locked;

/// Bytes of cells with images, by index.
#[derive(Debug, Default)]
pub(crate) struct ImageRoom(Mutex<BTreeMap<u32, Room>>);

#[derive(Debug, Default)]
struct Room {
    all: u64,
    granted: u64,
}

impl ImageRoom {
    /// Gives an index so many bytes in all.
    pub(crate) fn give(&self, index: u32, bytes: u64) {
        locked(&self.0).entry(index).or_default().all = bytes;
    }

    /// How many cells of a size may be granted, of `wanted`.
    pub(crate) fn left(&self, (index, lines): (u32, u8), wanted: u16) -> u16 {
        if lines <= TABLE_LINES {
            return wanted;
        }
        let rooms = locked(&self.0);
        let left = rooms.get(&index).map_or(0, |room| room.all.saturating_sub(room.granted));
        (left / (u64::from(lines) * LINE)).min(u64::from(wanted)) as u16
    }

    /// Cells of a size were granted.
    pub(crate) fn granted(&self, (index, lines): (u32, u8), count: usize) {
        if lines > TABLE_LINES {
            let bytes = count as u64 * u64::from(lines) * LINE;
            locked(&self.0).entry(index).or_default().granted += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_stay_within_the_room_of_their_index() {
        let room = ImageRoom::default();
        assert_eq!([room.left((1, 4), 7), room.left((1, 5), 7)], [7, 0], "tables need no room");
        room.give(1, 5 * 320 + 319);
        assert_eq!([room.left((1, 5), 7), room.left((1, 5), 3), room.left((2, 5), 7)], [5, 3, 0]);
        room.granted((1, 5), 4);
        assert_eq!([room.left((1, 5), 7), room.left((1, 10), 7)], [1, 0]);
        room.give(1, 0);
        assert_eq!(room.left((1, 5), 7), 0, "less than was granted");
    }
}
