//! One thread that asks the device, for the appends of all sessions together, and moves staged
//! records to the engine.
//!
//! An append is counted when the engine has it. The thread notes the count, asks the device, and
//! announces the count: every append up to it is on the device. What is appended meanwhile is the
//! next group. Sessions that are woken together append together: after a group of several the
//! thread waits for an eighth of the device's time before it begins with the next, which would have
//! one append otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dmtree_fabric::wait::WaitQueue;
use dmtree_fabric::{Error, ErrorKind, Result};

use crate::{Level, Ticket};

/// Longest time that the next group is waited for.
const LONGEST_GATHERING: Duration = Duration::from_millis(1);

/// What the thread does.
pub(crate) struct Work {
    /// Moves staged records to the engine, until few are left.
    pub moves: Box<dyn Fn() -> Result<()> + Send>,
    /// Asks the device to keep all that was appended.
    pub sync: Box<dyn Fn() -> Result<()> + Send>,
}

/// What is next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    Move,
    Sync,
    /// A last sync.
    End,
}

/// The thread, and what it shares with sessions that append.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    level: Level,
    appended: AtomicU64,
    /// On the device.
    synced: AtomicU64,
    failure: Mutex<Option<Error>>,
    news: WaitQueue,
    /// Many records are staged.
    is_called: AtomicBool,
    /// The journal ends.
    ends: AtomicBool,
    /// The thread waits at the doorbell, or looks once more before it does.
    is_idle: AtomicBool,
    /// Held to look whether there is anything to do, and to say that there is.
    doorbell: Mutex<()>,
    rung: Condvar,
}

impl Committer {
    /// Starts the thread.
    pub(crate) fn start(level: Level, work: Work) -> Result<Self> {
        let shared = Arc::new(Shared {
            level,
            appended: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            failure: Mutex::default(),
            news: WaitQueue::new(),
            is_called: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            doorbell: Mutex::new(()),
            rung: Condvar::new(),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new()
            .name("dmtree-journal".to_owned())
            .spawn(move || its.run(&work))
            .map_err(|e| Error::full(format!("no thread for the journal: {e}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The engine has one more append.
    pub(crate) fn appended(&self) -> Ticket {
        let number = self.shared.appended.fetch_add(1, SeqCst) + 1;
        // Either this sees that the thread is idle, or the thread sees the number before it waits.
        if self.shared.level == Level::Sync && self.shared.is_idle.load(SeqCst) {
            self.shared.ring();
        }
        Ticket(number)
    }

    /// Many records are staged: they are to be moved.
    pub(crate) fn call(&self) {
        if !self.shared.is_called.swap(true, SeqCst) {
            self.shared.ring();
        }
    }

    /// Whether an append is accepted.
    pub(crate) fn is_accepted(&self, ticket: Ticket) -> Result<bool> {
        match self.shared.level {
            // The append itself was refused otherwise.
            Level::Process { .. } => Ok(true),
            Level::Sync if self.shared.synced.load(SeqCst) >= ticket.0 => Ok(true),
            Level::Sync => self.check().map(|()| false),
        }
    }

    /// Refuses when anything has failed before.
    pub(crate) fn check(&self) -> Result<()> {
        self.shared.failure().as_ref().map_or(Ok(()), |e| Err(again(e)))
    }

    /// The engine was opened again: it accepts what is appended from now on.
    pub(crate) fn restart(&self) {
        *self.shared.failure() = None;
    }

    /// The engine has failed: nothing is accepted any more.
    pub(crate) fn fail(&self, e: &Error) {
        self.shared.fail(e.clone());
    }

    pub(crate) fn news(&self) -> &WaitQueue {
        &self.shared.news
    }
}

impl Drop for Committer {
    /// What was appended is on the device when the journal has ended.
    fn drop(&mut self) {
        self.shared.ends.store(true, SeqCst);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn doorbell(&self) -> MutexGuard<'_, ()> {
        self.doorbell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    fn ring(&self) {
        drop(self.doorbell());
        self.rung.notify_one();
    }

    fn run(&self, work: &Work) {
        let (mut gather, mut last) = (Duration::ZERO, now());
        loop {
            let task = self.wait(last);
            match task {
                Task::Move => {
                    if let Err(e) = (work.moves)() {
                        self.fail(e);
                    }
                    continue;
                }
                Task::Sync => pause(gather),
                Task::End => {}
            }
            let (before, upto) = (self.synced.load(SeqCst), self.appended.load(SeqCst));
            last = now();
            if upto > before && !self.has_failed() {
                match (work.sync)() {
                    Ok(()) => self.synced.store(upto, SeqCst),
                    Err(e) => self.fail(e),
                }
                gather = match upto - before {
                    1 => Duration::ZERO,
                    _ => (last.elapsed() / 8).min(LONGEST_GATHERING),
                };
                self.news.wake_all();
            }
            if task == Task::End {
                return;
            }
        }
    }

    /// Waits until there is something to do. `last`: when the device was last asked.
    fn wait(&self, last: Instant) -> Task {
        let mut doorbell = self.doorbell();
        self.is_idle.store(true, SeqCst);
        let task = loop {
            let is_due = self.appended.load(SeqCst) > self.synced.load(SeqCst);
            if self.ends.load(SeqCst) {
                break Task::End;
            }
            let left = match self.level {
                Level::Sync if is_due && !self.has_failed() => break Task::Sync,
                Level::Sync | Level::Process { sync_every: None } => None,
                Level::Process { sync_every: Some(time) } => {
                    let left = time.saturating_sub(last.elapsed());
                    if left.is_zero() {
                        break Task::Sync;
                    }
                    Some(left)
                }
            };
            if self.is_called.swap(false, SeqCst) {
                break Task::Move;
            }
            doorbell = match left {
                None => self.rung.wait(doorbell).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.rung.wait_timeout(doorbell, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        };
        self.is_idle.store(false, SeqCst);
        task
    }

    fn fail(&self, e: Error) {
        self.failure().get_or_insert(e);
        self.news.wake_all();
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread of the device")]
fn pause(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

#[expect(clippy::disallowed_methods, reason = "the time of the device")]
fn now() -> Instant {
    Instant::now()
}

/// What every call after a failure gets.
fn again(e: &Error) -> Error {
    let kind = if e.kind() == ErrorKind::Full { ErrorKind::Full } else { ErrorKind::Closed };
    let way_out = match kind {
        ErrorKind::Full => "make room on its device",
        _ => "open the pool again",
    };
    Error::new(kind, format!("the journal has failed, {way_out}: {e}"))
}
