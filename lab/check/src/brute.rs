//! A second check of one key's history, which shares only the types with the first: it tries every
//! order of the operations that their times allow, one after the other, and backtracks where an
//! answer does not fit. For small histories.

use crate::history::{Event, Op, Swap, ValueId};

/// Whether an answer fits the present value, and the value afterwards; `None` leaves it as it is.
/// Written down independently of `history.rs`.
fn rule(event: Event, now: Option<ValueId>) -> (bool, Option<Option<ValueId>>) {
    let (present, absent) = (now.is_some(), now.is_none());
    match event {
        Event::Get(found) => (found == now, None),
        Event::Put(v) | Event::Tried(v) => (true, Some(Some(v))),
        Event::Insert(v, true) => (absent, Some(Some(v))),
        Event::Insert(_, false) => (present, None),
        Event::Update(v, true) => (present, Some(Some(v))),
        Event::Update(_, false) | Event::Delete(false) => (absent, None),
        Event::Delete(true) => (present, Some(None)),
        Event::CompareAndSet(e, v, Swap::Done) => (now == Some(e), Some(Some(v))),
        Event::CompareAndSet(e, _, Swap::Mismatch) => (now.is_some_and(|v| v != e), None),
        Event::CompareAndSet(_, _, Swap::NotFound) => (absent, None),
    }
}

/// An operation that never returned, as it is if it has taken effect; `None` when it changes
/// nothing.
fn as_done(event: Event) -> Option<Event> {
    Some(match event {
        Event::Get(_) => return None,
        Event::Insert(v, _) => Event::Insert(v, true),
        Event::Update(v, _) => Event::Update(v, true),
        Event::Delete(_) => Event::Delete(true),
        Event::CompareAndSet(e, v, _) => Event::CompareAndSet(e, v, Swap::Done),
        put @ (Event::Put(_) | Event::Tried(_)) => put,
    })
}

/// Whether some order of the operations explains every answer. Operations that never returned may
/// be left out.
pub fn explainable(ops: &[Op], initial: Option<ValueId>) -> bool {
    let left: Vec<Op> = ops
        .iter()
        .filter_map(|op| match op.ret {
            Some(_) => Some(*op),
            None => as_done(op.event).map(|event| Op { event, ..*op }),
        })
        .collect();
    next(&left, initial)
}

/// Takes one of the operations that may come first, and tries the remaining ones behind it.
fn next(left: &[Op], now: Option<ValueId>) -> bool {
    // An operation that is called after another one has returned cannot come before it.
    let Some(bound) = left.iter().filter_map(|op| op.ret).min() else { return true };
    (0..left.len()).any(|i| {
        let op = left[i];
        let (fits, leaves) = rule(op.event, now);
        if op.call > bound || !fits {
            return false;
        }
        let rest: Vec<Op> = [&left[..i], &left[i + 1..]].concat();
        let never = matches!(op.event, Event::Tried(_)) && next(&rest, now);
        never || next(&rest, leaves.unwrap_or(now))
    })
}
