//! Record numbers for inserts, shared by all clients.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// The number of inserts that may finish after an unfinished one before that one is taken as lost.
const WINDOW: u64 = 1 << 14;

/// Hands out fresh record numbers, each once, and knows up to which number they are stored.
///
/// "Stored" is the highest count such that this and all earlier inserts were acknowledged, so that
/// `latest` does not read an insert in flight. An insert of a client that gave up delays this until
/// 16 384 later ones have finished.
pub struct InsertCounter {
    first: u64,
    end: u64,
    next: AtomicU64,
    acknowledged: AtomicU64,
    /// Slot `t % WINDOW` has the largest acknowledged ticket of that slot, plus one. Tickets only
    /// grow, so a slot is never cleared.
    window: Box<[AtomicU64]>,
    /// Where only some numbers are handed out: which, and those that were, by ticket.
    only: Option<(Only, Mutex<Vec<u64>>)>,
}

/// Whether a record is handed out.
type Only = Box<dyn Fn(u64) -> bool + Send + Sync>;

impl fmt::Debug for InsertCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InsertCounter({} taken, {} stored)", self.taken(), self.acknowledged())
    }
}

/// One insert: the count of inserts before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

impl InsertCounter {
    /// Numbers from `first` up to, not including, `end`.
    pub fn new(first: u64, end: u64) -> Self {
        InsertCounter {
            first,
            end,
            next: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            window: (0..WINDOW).map(|_| AtomicU64::new(0)).collect(),
            only: None,
        }
    }

    /// Only numbers of which this is true.
    pub(crate) fn only(self, only: Only) -> Self {
        Self { only: Some((only, Mutex::default())), ..self }
    }

    /// Number `count`, unless the numbers are used up.
    fn at(&self, count: u64) -> Option<u64> {
        count.checked_add(self.first).filter(|at| *at < self.end)
    }

    /// The next insert; `None` when the numbers are used up.
    pub fn take(&self) -> Option<Ticket> {
        if let Some((only, taken)) = &self.only {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                let record = self.at(self.next.load(SeqCst))?;
                self.next.fetch_add(1, SeqCst);
                if only(record) {
                    taken.push(record);
                    return Some(Ticket(taken.len() as u64 - 1));
                }
            }
        }
        let room = |ticket| self.at(ticket).map(|_| ticket + 1);
        self.next.fetch_update(SeqCst, SeqCst, room).ok().map(Ticket)
    }

    /// The record number of an insert.
    pub fn record(&self, ticket: Ticket) -> u64 {
        self.number(ticket.0)
    }

    /// The record number of insert `count` (from 0).
    pub(crate) fn number(&self, count: u64) -> u64 {
        match &self.only {
            None => self.first + count,
            // A ticket is there since it was taken.
            Some((_, taken)) => {
                taken.lock().unwrap_or_else(PoisonError::into_inner)[count as usize]
            }
        }
    }

    /// Records that an insert is stored.
    pub fn acknowledge(&self, ticket: Ticket) {
        self.slot(ticket.0).fetch_max(ticket.0 + 1, SeqCst);
        // The last of several concurrent calls sees all earlier stores, and moves the mark over
        // them.
        loop {
            let mark = self.acknowledged.load(SeqCst);
            if self.slot(mark).load(SeqCst) <= mark {
                return;
            }
            let _ = self.acknowledged.compare_exchange(mark, mark + 1, SeqCst, SeqCst);
        }
    }

    fn slot(&self, ticket: u64) -> &AtomicU64 {
        &self.window[(ticket % WINDOW) as usize]
    }

    /// Number of stored inserts, counted without a gap.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(SeqCst)
    }

    /// Number of inserts that were handed out.
    pub fn taken(&self) -> u64 {
        match &self.only {
            None => self.next.load(SeqCst),
            Some((_, taken)) => taken.lock().unwrap_or_else(PoisonError::into_inner).len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_waits_for_gaps() {
        let c = InsertCounter::new(100, 1000);
        let t: Vec<Ticket> = (0..5).map(|_| c.take().unwrap()).collect();
        assert_eq!(t.iter().map(|&t| c.record(t)).collect::<Vec<_>>(), [100, 101, 102, 103, 104]);
        c.acknowledge(t[1]);
        c.acknowledge(t[2]);
        assert_eq!(c.acknowledged(), 0);
        c.acknowledge(t[0]);
        assert_eq!(c.acknowledged(), 3);
        c.acknowledge(t[4]);
        assert_eq!((c.acknowledged(), c.taken()), (3, 5));
    }

    #[test]
    fn a_lost_insert_is_passed_in_the_end() {
        let c = InsertCounter::new(0, u64::MAX);
        let _lost = c.take().unwrap();
        for _ in 0..WINDOW {
            c.acknowledge(c.take().unwrap());
        }
        assert_eq!(c.acknowledged(), WINDOW + 1);
    }

    #[test]
    fn numbers_end() {
        let c = InsertCounter::new(10, 31);
        let all: Vec<u64> = std::iter::from_fn(|| c.take()).map(|t| c.record(t)).collect();
        assert_eq!(all, (10..31).collect::<Vec<_>>());
        assert!(InsertCounter::new(u64::MAX, u64::MAX).take().is_none());
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // threads are what is tested
    fn threads_never_share_a_number_and_the_mark_arrives() {
        let c = std::sync::Arc::new(InsertCounter::new(0, u64::MAX));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let c = c.clone();
                std::thread::spawn(move || {
                    let mut mine = Vec::new();
                    for _ in 0..20_000 {
                        let t = c.take().unwrap();
                        c.acknowledge(t);
                        mine.push(c.record(t));
                    }
                    mine
                })
            })
            .collect();
        let mut all: Vec<u64> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..80_000).collect::<Vec<_>>());
        assert_eq!(c.acknowledged(), 80_000);
    }
}
