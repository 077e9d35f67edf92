//! Hands the operations of a trace to the clients that execute them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_workload::TraceError;
use dmtree_workload::trace::{Action, TraceOp, TraceReader, shard};

/// Operations that a client gets at a time, if there are as many.
const BATCH: usize = 128;
/// Operations that wait, for each client, before reading waits for the slowest one.
const WAITING: usize = 2048;
/// Bytes of keys and values that wait at most.
const MOST_BYTES: usize = 64 << 20;

/// What a client does next.
pub(super) enum Next {
    /// These operations.
    Batch(VecDeque<TraceOp>),
    /// Waits: others have to execute theirs before more is read.
    Wait,
    /// Nothing: the trace is over, or the replay ends early.
    End,
}

/// A trace on its way to clients.
pub(super) struct Feed {
    state: Mutex<State>,
    clients: usize,
    /// Set when the user wants to stop.
    stop: Arc<AtomicBool>,
    /// Set when a client has ended early: the operations that wait for it would keep all others.
    broken: AtomicBool,
    /// Operations executed so far.
    pub done: AtomicU64,
}

struct State {
    reader: TraceReader,
    waiting: Vec<VecDeque<TraceOp>>,
    operations: usize,
    bytes: usize,
    is_over: bool,
    failed: Option<TraceError>,
}

/// Bytes that an operation has in memory, roughly.
fn bytes(op: &TraceOp) -> usize {
    let values = match &op.action {
        Action::Insert(r) | Action::Update(r) => r.encoded_len(),
        _ => 0,
    };
    size_of::<TraceOp>() + op.key.len() + values
}

impl Feed {
    pub(super) fn new(reader: TraceReader, clients: usize, stop: Arc<AtomicBool>) -> Self {
        let state = State {
            reader,
            waiting: vec![VecDeque::new(); clients],
            operations: 0,
            bytes: 0,
            is_over: false,
            failed: None,
        };
        let (broken, done) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { state: Mutex::new(state), clients, stop, broken, done }
    }

    /// The next operations of a client.
    pub(super) fn next(&self, me: usize) -> Next {
        if self.stop.load(Ordering::Relaxed) || self.broken.load(Ordering::Relaxed) {
            return Next::End;
        }
        let s = &mut *locked(&self.state);
        let most = WAITING * self.clients;
        while !s.is_over
            && s.waiting[me].len() < BATCH
            && s.operations < most
            && s.bytes < MOST_BYTES
        {
            match s.reader.next() {
                Some(Ok(op)) => {
                    s.operations += 1;
                    s.bytes += bytes(&op);
                    s.waiting[shard(&op.key, self.clients)].push_back(op);
                }
                Some(Err(e)) => (s.is_over, s.failed) = (true, Some(e)),
                None => s.is_over = true,
            }
        }
        let batch = std::mem::take(&mut s.waiting[me]);
        s.operations -= batch.len();
        s.bytes -= batch.iter().map(bytes).sum::<usize>();
        match (batch.is_empty(), s.is_over) {
            (false, _) => Next::Batch(batch),
            (true, false) => Next::Wait,
            (true, true) => Next::End,
        }
    }

    /// Ends the replay for all clients.
    pub(super) fn break_off(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// The error at which reading ended.
    pub(super) fn failure(&self) -> Option<TraceError> {
        locked(&self.state).failed.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_workload::trace::Format;

    fn feed(text: String, clients: usize) -> Feed {
        let reader = TraceReader::from_reader("t", std::io::Cursor::new(text)).unwrap();
        Feed::new(reader.with_format(Format::Csv), clients, Arc::default())
    }

    /// The operations of a key go to one client in their order, and the others wait for it when
    /// much has been read.
    #[test]
    fn a_client_that_lags_holds_the_others_back() {
        let keys = ["a", "b", "c", "d", "e"].map(|key| (shard(key.as_bytes(), 2), key));
        let of = |who| keys.iter().find(|(shard, _)| *shard == who).unwrap().1;
        let (mine, other) = (of(0), of(1));
        let rows = format!("put,{mine},1\n").repeat(3 * WAITING);
        let feed = feed(format!("op,key,value\n{rows}put,{other},1\n"), 2);
        assert!(matches!(feed.next(1), Next::Wait));
        let mut got = 0;
        while let Next::Batch(batch) = feed.next(0) {
            assert!(batch.iter().all(|op| op.key == mine.as_bytes()));
            got += batch.len();
        }
        assert_eq!(got, 3 * WAITING);
        assert!(matches!(feed.next(1), Next::Batch(batch) if batch.len() == 1));
        assert!(matches!((feed.next(0), feed.next(1)), (Next::End, Next::End)));
        assert_eq!(feed.failure(), None);
    }

    #[test]
    fn bytes_that_wait_are_limited() {
        let rows = "put,a,1000000\n".repeat(200);
        let feed = feed(format!("op,key,size\n{rows}"), 8);
        let idle = (0..8).find(|me| *me != shard(b"a", 8)).unwrap();
        assert!(matches!(feed.next(idle), Next::Wait));
        let held = locked(&feed.state).bytes;
        assert!(held < MOST_BYTES + 2_000_000, "{held}");
    }

    #[test]
    fn a_bad_row_ends_it_with_its_place() {
        let feed = feed("op,key\nget,a\nfrob,a\n".to_owned(), 1);
        assert!(matches!(feed.next(0), Next::Batch(_)));
        assert!(matches!(feed.next(0), Next::End));
        assert_eq!(feed.failure().unwrap().line, 3);
    }
}
