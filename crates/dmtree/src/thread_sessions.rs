//! The sessions of a thread, one for every index it has called.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use dmtree_fabric::Result;

use crate::index::Handle;
use crate::session::Session;

struct ThreadSession {
    /// Expired when all handles are gone. The address names the handle: it is not reused while this
    /// is there.
    handle: Weak<Handle>,
    session: Box<Session>,
}

thread_local! {
    static SESSIONS: RefCell<Vec<ThreadSession>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the thread's session for an index. The session is taken out of the list
/// meanwhile, so that `f` may call the index again (an iterator given to `load`, say); the inner
/// call gets another session then.
pub(crate) fn with<T>(
    handle: &Arc<Handle>,
    f: impl FnOnce(&mut Session) -> Result<T>,
) -> Result<T> {
    let mut session = match take(handle) {
        Some(session) => session,
        None => {
            purge();
            Box::new(Session::new(&handle.pool, &handle.open, handle.open.next_node())?)
        }
    };
    let result = f(&mut session);
    give_back(handle, session);
    result
}

fn take(handle: &Arc<Handle>) -> Option<Box<Session>> {
    // When the thread is about to end, the list may be gone: a session for this one call works as
    // well.
    let entry = SESSIONS.try_with(|sessions| {
        let mut sessions = sessions.borrow_mut();
        let at =
            sessions.iter().rposition(|s| std::ptr::eq(s.handle.as_ptr(), Arc::as_ptr(handle)))?;
        Some(sessions.swap_remove(at))
    });
    entry.ok().flatten().map(|entry| entry.session)
}

fn give_back(handle: &Arc<Handle>, session: Box<Session>) {
    let mut entry = Some(ThreadSession { handle: Arc::downgrade(handle), session });
    let spare = SESSIONS.try_with(|sessions| {
        let mut sessions = sessions.borrow_mut();
        let taken = sessions.iter().any(|s| std::ptr::eq(s.handle.as_ptr(), Arc::as_ptr(handle)));
        if !taken {
            sessions.extend(entry.take());
        }
    });
    drop((spare, entry));
}

/// Ends the sessions of indexes that are gone. They are dropped outside the borrow.
pub(crate) fn purge() {
    let gone = SESSIONS.try_with(|sessions| match sessions.try_borrow_mut() {
        Ok(mut sessions) => sessions.extract_if(.., |s| s.handle.strong_count() == 0).collect(),
        Err(_) => Vec::new(),
    });
    drop(gone);
}

/// Lets `stats` see what this thread's session has counted.
pub(crate) fn publish(handle: &Arc<Handle>) {
    if let Some(session) = take(handle) {
        session.publish();
        give_back(handle, session);
    }
}
