//! A client in another process: requests and answers through a pair of pipes, so that a test
//! cluster can have compute nodes that share no memory with it. A pipe that is closed is
//! `Unreachable`, a message that cannot be read is `Corrupt`.

use std::io::{Read, Write as _};
use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, ErrorKind, Failure, Result};
use dmtree_parts::{BatchWrite, Fill, Outcome, Page, ScanRequest, SnapshotId, Write};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::client::Client;

/// Longer messages are refused unread.
const MAX_BYTES: usize = 256 << 20;

/// A request to the other process. The answer is a `Result` of what the request gives; operations
/// are on the index that is open.
#[derive(Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are the operations of a client")]
pub enum Ask<'a> {
    /// Open this index of this system.
    Open {
        system: String,
        index: String,
    },
    /// Close it.
    Close,
    Get(&'a [u8]),
    Write(&'a [u8], Write<'a>),
    #[serde(borrow)]
    Scan(ScanRequest<'a>),
    #[serde(borrow)]
    GetMany(Vec<&'a [u8]>),
    #[serde(borrow)]
    WriteMany(Vec<(&'a [u8], Write<'a>)>),
    TakeSnapshot,
    GetAt(SnapshotId, &'a [u8]),
    ScanAt(SnapshotId, #[serde(borrow)] ScanRequest<'a>),
    ReleaseSnapshot(SnapshotId),
    #[serde(borrow)]
    WriteBatch(Vec<BatchWrite<'a>>),
    Foretell(Vec<Vec<u8>>),
    Load(Vec<(Vec<u8>, Vec<u8>)>, bool, Fill),
    Maintain,
    Gc,
    Walk,
}

/// Reads a message of the other process.
pub fn read<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Result<T> {
    postcard::from_bytes(message).map_err(|e| Error::corrupt(format!("the other process: {e}")))
}

/// What a request gives, or why there is nothing.
pub(crate) type Answer<T> = Result<T, Failure>;

/// The two pipes to or from the other process.
pub struct Pipe {
    to: Box<dyn std::io::Write + Send>,
    from: Box<dyn Read + Send>,
}

impl Pipe {
    /// Out and in.
    pub fn new(to: impl std::io::Write + Send + 'static, from: impl Read + Send + 'static) -> Self {
        Self { to: Box::new(to), from: Box::new(from) }
    }

    fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let body = postcard::to_stdvec(message)
            .map_err(|e| Error::invalid(format!("not a message: {e}")))?;
        let length = (body.len() as u64).to_le_bytes();
        let sent = self.to.write_all(&length).and_then(|()| self.to.write_all(&body));
        sent.and_then(|()| self.to.flush()).map_err(|e| gone(&e))
    }

    /// The next message; `None` when the other side has closed the pipe.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        let mut length = [0; 8];
        match self.from.read_exact(&mut length) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            done => done.map_err(|e| gone(&e))?,
        }
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_BYTES {
            return Err(Error::corrupt(format!("the other process sends {length} bytes")));
        }
        let mut body = vec![0; length];
        self.from.read_exact(&mut body).map_err(|e| gone(&e))?;
        Ok(Some(body))
    }

    /// Answers a request.
    pub fn give<T: Serialize>(&mut self, result: Result<T>) -> Result<()> {
        self.send(&result.map_err(|e| Failure::from(&e)))
    }
}

fn gone(e: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, format!("the other process has gone: {e}"))
}

/// Answers operations with a client, until the index is closed.
pub fn serve(c: &mut Client, pipe: &mut Pipe) -> Result<()> {
    while let Some(message) = pipe.receive()? {
        match read(&message)? {
            Ask::Open { .. } => pipe.give::<()>(Err(Error::invalid("one index is open"))),
            Ask::Close => return pipe.give(Ok(())),
            Ask::Get(key) => pipe.give(c.get(key)),
            Ask::Write(key, w) => pipe.give(c.write(key, w)),
            Ask::Scan(r) => {
                let mut page = Page::new();
                let next = c.scan(&r, &mut page);
                pipe.give(next.map(|next| (page, next)))
            }
            Ask::GetMany(keys) => pipe.give(c.get_many(&keys)),
            Ask::WriteMany(writes) => {
                let sent = |o: Result<Outcome>| o.map_err(|e| Failure::from(&e));
                let all = c.write_many(&writes);
                pipe.give(all.map(|all| all.into_iter().map(sent).collect::<Vec<_>>()))
            }
            Ask::TakeSnapshot => pipe.give(c.take_snapshot()),
            Ask::GetAt(s, key) => pipe.give(c.get_at(s, key)),
            Ask::ScanAt(s, r) => {
                let mut page = Page::new();
                let next = c.scan_at(s, &r, &mut page);
                pipe.give(next.map(|next| (page, next)))
            }
            Ask::ReleaseSnapshot(s) => pipe.give(c.release_snapshot(s)),
            Ask::WriteBatch(batch) => pipe.give(c.write_batch(&batch)),
            Ask::Foretell(keys) => pipe.give(c.foretell(keys)),
            Ask::Load(pairs, sorted, fill) => pipe.give(c.load(pairs, sorted, fill)),
            Ask::Maintain => pipe.give(c.maintain()),
            Ask::Gc => pipe.give(c.gc()),
            Ask::Walk => pipe.give(c.walk()),
        }?;
    }
    Ok(())
}

/// A client of another process. Clones share it: one request at a time.
#[derive(Clone)]
pub struct RemoteClient(Arc<Mutex<Pipe>>);

impl RemoteClient {
    /// A client at the other end of these pipes.
    pub fn new(pipe: Pipe) -> Self {
        Self(Arc::new(Mutex::new(pipe)))
    }

    pub(crate) fn ask<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T> {
        let mut pipe = locked(&self.0);
        pipe.send(ask)?;
        let ended = || Error::new(ErrorKind::Unreachable, "the other process has ended: see above");
        let answer: Answer<T> = read(&pipe.receive()?.ok_or_else(ended)?)?;
        answer.map_err(Error::from)
    }

    /// Opens an index in the other process.
    ///
    /// # Errors
    /// Its own; `Unreachable` when the process has ended.
    pub fn open(&self, system: &str, index: &str) -> Result<()> {
        self.ask(&Ask::Open { system: system.to_owned(), index: index.to_owned() })
    }

    /// Closes it.
    pub fn close(&self) -> Result<()> {
        self.ask(&Ask::Close)
    }
}
