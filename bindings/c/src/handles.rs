//! Handles: numbers that name what the caller has open.

use std::sync::{PoisonError, RwLock};

use dmtree::{Error, ErrorKind, Result};

/// What callers have open of one kind. A handle is the place in the table, plus one, in its low
/// half, and how often the place was used before in its high half: a closed handle never names what
/// is opened later.
pub(crate) struct Handles<T> {
    what: &'static str,
    places: RwLock<Vec<Place<T>>>,
}

struct Place<T> {
    uses: u32,
    open: Option<T>,
}

impl<T: Clone> Handles<T> {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what, places: RwLock::new(Vec::new()) }
    }

    /// The handle of something that was opened.
    pub(crate) fn put(&self, open: T) -> u64 {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let at = places.iter().position(|place| place.open.is_none() && place.uses < u32::MAX);
        let at = at.unwrap_or_else(|| {
            places.push(Place { uses: 0, open: None });
            places.len() - 1
        });
        let place = &mut places[at];
        place.open = Some(open);
        u64::from(place.uses) << 32 | (at as u64 + 1)
    }

    /// What a handle names.
    pub(crate) fn get(&self, handle: u64) -> Result<T> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let (uses, at) = parts(handle);
        let place = places.get(at).filter(|place| place.uses == uses);
        place.and_then(|place| place.open.clone()).ok_or_else(|| self.closed(handle))
    }

    /// Closes a handle.
    pub(crate) fn take(&self, handle: u64) -> Result<T> {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let (uses, at) = parts(handle);
        let place = places.get_mut(at).filter(|place| place.uses == uses);
        let open = place.and_then(|place| {
            let open = place.open.take();
            place.uses += u32::from(open.is_some());
            open
        });
        open.ok_or_else(|| self.closed(handle))
    }

    fn closed(&self, handle: u64) -> Error {
        Error::new(
            ErrorKind::Closed,
            format!("{handle:#x} is no open {}: it was closed, or is none", self.what),
        )
    }
}

fn parts(handle: u64) -> (u32, usize) {
    ((handle >> 32) as u32, (handle as u32).wrapping_sub(1) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_names_nothing_again() {
        let handles = Handles::new("thing");
        let (a, b) = (handles.put("a"), handles.put("b"));
        assert_eq!((handles.get(a).ok(), handles.get(b).ok()), (Some("a"), Some("b")));
        assert_eq!(handles.take(a).ok(), Some("a"));
        for closed in [a, 0, 99, u64::MAX] {
            assert_eq!(handles.get(closed).map_err(|e| e.kind()), Err(ErrorKind::Closed));
            assert_eq!(handles.take(closed).map_err(|e| e.kind()), Err(ErrorKind::Closed));
        }
        let c = handles.put("c");
        assert!(c != a, "the place is used again, and its handle is another");
        assert_eq!((handles.get(c).ok(), handles.get(a).is_err()), (Some("c"), true));
    }
}
