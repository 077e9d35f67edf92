//! A second check of one key's history, which shares only the types with the first: it tries every
//! order of the operations that their times allow, one after the other, and backtracks where an
//! answer does not fit. For small histories.

use crate::history::{Event, Op, Swap, ValueId};

/// Precondition and effect of an operation, written down independently of `history.rs`.
struct Rule {
    /// Which present value the answer fits.
    fits: fn(Option<ValueId>, Event) -> bool,
    /// The value afterwards; `None` leaves it as it is.
    leaves: Option<Option<ValueId>>,
}

fn rule(event: Event) -> Rule {
    let present: fn(Option<ValueId>, Event) -> bool = |now, _| now.is_some();
    let absent: fn(Option<ValueId>, Event) -> bool = |now, _| now.is_none();
    match event {
        Event::Get(_) => Rule {
            fits: |now, event| matches!(event, Event::Get(found) if found == now),
            leaves: None,
        },
        Event::Put(v) | Event::Tried(v) => Rule { fits: |_, _| true, leaves: Some(Some(v)) },
        Event::Insert(v, true) => Rule { fits: absent, leaves: Some(Some(v)) },
        Event::Insert(_, false) => Rule { fits: present, leaves: None },
        Event::Update(v, true) => Rule { fits: present, leaves: Some(Some(v)) },
        Event::Update(_, false) => Rule { fits: absent, leaves: None },
        Event::Delete(true) => Rule { fits: present, leaves: Some(None) },
        Event::Delete(false) => Rule { fits: absent, leaves: None },
        Event::CompareAndSet(_, v, Swap::Done) => Rule {
            fits: |now, event| matches!(event, Event::CompareAndSet(e, ..) if now == Some(e)),
            leaves: Some(Some(v)),
        },
        Event::CompareAndSet(_, _, Swap::Mismatch) => Rule {
            fits: |now, event| {
                let other = |e| now.is_some_and(|there| there != e);
                matches!(event, Event::CompareAndSet(e, ..) if other(e))
            },
            leaves: None,
        },
        Event::CompareAndSet(_, _, Swap::NotFound) => Rule { fits: absent, leaves: None },
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
        let rule = rule(op.event);
        if op.call > bound || !(rule.fits)(now, op.event) {
            return false;
        }
        let rest: Vec<Op> = [&left[..i], &left[i + 1..]].concat();
        let never = matches!(op.event, Event::Tried(_)) && next(&rest, now);
        never || next(&rest, rule.leaves.unwrap_or(now))
    })
}
