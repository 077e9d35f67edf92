//! The links of all peers as their host sees them, and how they end: when [`Sessions::end`]
//! returns, nothing of them is executed any more, and this host's ends of their queue pairs are
//! closed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::io::Waker;
use super::locked;
use super::rdma::End;
use crate::error::{Error, Result};
use crate::membership::Member;

/// Identifies a link: a member, and the number of the link in its process.
pub(super) type Key = (Member, u64);

/// A link.
pub(super) struct Session {
    key: Key,
    /// The connection that it came on.
    pub(super) token: u64,
    /// It is a reader's.
    reads_only: bool,
    is_over: AtomicBool,
    /// Held while a frame of the link is executed.
    held: Mutex<Held>,
}

/// The resources of a link.
#[derive(Default)]
pub(super) struct Held {
    /// This host's end of the client thread's queue pair. When it is dropped nothing of it executes
    /// any more.
    pub(super) end: Option<End>,
}

impl Session {
    /// The member that it belongs to.
    pub(super) fn from(&self) -> Member {
        self.key.0
    }

    /// Whether it carries READs alone.
    pub(super) fn reads_only(&self) -> bool {
        self.reads_only
    }

    /// Whether it has ended: nothing of it begins to be executed.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Executes a frame of it, unless it has ended.
    pub(super) fn run<T>(&self, execute: impl FnOnce(&mut Held) -> T) -> Option<T> {
        let mut held = locked(&self.held);
        // Check under the lock: the thread that ends the link sets the flag first and then waits
        // for the lock.
        (!self.is_over()).then(|| execute(&mut held))
    }
}

/// Messages of other threads to the server thread.
pub(super) enum Mail {
    /// A frame for a peer: the answer of a call.
    Reply(u64, Vec<u8>),
    /// A frame for a peer: the answer about a queue pair. Frames that came after the question go
    /// on.
    AboutEnd(u64, Vec<u8>),
    /// This connection is over.
    Close(u64),
}

/// The links.
#[derive(Default)]
pub(super) struct Sessions {
    all: Mutex<BTreeMap<Key, Arc<Session>>>,
    mail: Mutex<Vec<Mail>>,
    waker: OnceLock<Arc<dyn Waker>>,
    /// The members with links that have ended since they were last asked for.
    left: Mutex<BTreeSet<Member>>,
    /// Bytes of calls that wait for the thread that answers.
    pub(super) calls_bytes: AtomicUsize,
}

impl Sessions {
    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        locked(&self.all).len() as u64
    }

    /// Wakes the server thread.
    pub(super) fn set_waker(&self, waker: Arc<dyn Waker>) {
        let _ = self.waker.set(waker);
    }

    /// Wakes the server thread to look at its mail, and at whether the node is closing.
    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    pub(super) fn post(&self, mail: Mail) {
        locked(&self.mail).push(mail);
        self.wake();
    }

    pub(super) fn take_mail(&self) -> Vec<Mail> {
        std::mem::take(&mut locked(&self.mail))
    }

    /// Adds a link, if `check` passes. It runs under the lock, so that a later end of links finds
    /// this one.
    pub(super) fn enter(
        &self,
        key: Key,
        (token, reads_only): (u64, bool),
        check: impl FnOnce() -> Result<()>,
    ) -> Result<Arc<Session>> {
        let mut all = locked(&self.all);
        check()?;
        if all.contains_key(&key) {
            return Err(Error::corrupt(format!("{} opens link {} twice", key.0, key.1)));
        }
        let (is_over, held) = (AtomicBool::new(false), Mutex::default());
        let session = Arc::new(Session { key, token, reads_only, is_over, held });
        all.insert(key, session.clone());
        Ok(session)
    }

    /// Ends the links for which `which` says so; returns when nothing of them is executed any more.
    /// Any thread may call this, but not from inside of [`Session::run`].
    pub(super) fn end(&self, which: impl Fn(Member, u64) -> bool) {
        let ending: Vec<_> =
            locked(&self.all).values().filter(|s| which(s.key.0, s.key.1)).cloned().collect();
        for session in &ending {
            self.end_one(session);
        }
        for session in ending {
            self.post(Mail::Close(session.token));
        }
    }

    /// Ends a link. [`Sessions::end`] finds it until nothing of it is executed any more, so that
    /// concurrent callers that end it wait, too.
    pub(super) fn end_one(&self, session: &Arc<Session>) {
        session.is_over.store(true, Ordering::SeqCst);
        locked(&session.held).end = None;
        let mut all = locked(&self.all);
        if all.get(&session.key).is_some_and(|s| Arc::ptr_eq(s, session)) {
            all.remove(&session.key);
            locked(&self.left).insert(session.from());
        }
    }

    /// The members with links that have ended since the last call: their processes may have ended.
    pub(super) fn take_left(&self) -> BTreeSet<Member> {
        std::mem::take(&mut locked(&self.left))
    }
}
