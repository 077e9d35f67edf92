//! A client in another process: requests and answers through a pair of pipes, so that a test
//! cluster can have compute nodes that share no memory with it. A pipe that is closed is
//! `Unreachable`, a message that cannot be read is `Corrupt`.

use std::io::{Read, Write as _};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use dmtree_fabric::{Error, ErrorKind, Failure, Result};
use dmtree_parts::{Fill, Outcome, Page, Resume, ScanRequest, Values, Write};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::client::Client;

/// Longer messages are refused unread.
const MAX_BYTES: usize = 256 << 20;

/// A key and a value.
type Pair = (Vec<u8>, Vec<u8>);

/// A request to the other process. The answer is a `Result` of what the request gives.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask<'a> {
    /// Open this index of this system; later operations are on it.
    Open {
        /// The system.
        system: String,
        /// The name in the catalog.
        index: String,
    },
    /// Close it.
    Close,
    /// An operation.
    #[doc(hidden)]
    #[serde(borrow)]
    Do(Operation<'a>),
}

/// An operation on the open index.
#[derive(Debug, Serialize, Deserialize)]
#[doc(hidden)]
pub enum Operation<'a> {
    Get(&'a [u8]),
    Write(&'a [u8], Write<'a>),
    Scan {
        #[serde(borrow)]
        low: Bound<&'a [u8]>,
        #[serde(borrow)]
        high: Bound<&'a [u8]>,
        reverse: bool,
        limit: usize,
    },
    GetMany(#[serde(borrow)] Vec<&'a [u8]>),
    WriteMany(#[serde(borrow)] Vec<(&'a [u8], Write<'a>)>),
    Load {
        pairs: Vec<Pair>,
        sorted: bool,
        fill: Fill,
    },
    Maintain,
    Gc,
    Walk,
}

/// Reads a message of the other process.
pub fn read<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Result<T> {
    postcard::from_bytes(message).map_err(|e| Error::corrupt(format!("the other process: {e}")))
}

/// What a request gives, or why there is nothing.
type Answer<T> = std::result::Result<T, Failure>;

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
            Ask::Close => return pipe.give(Ok(())),
            Ask::Do(operation) => answer(c, operation, pipe)?,
            Ask::Open { .. } => pipe.give::<()>(Err(Error::invalid("one index is open")))?,
        }
    }
    Ok(())
}

fn answer(c: &mut Client, operation: Operation<'_>, pipe: &mut Pipe) -> Result<()> {
    match operation {
        Operation::Get(key) => pipe.give(c.get(key)),
        Operation::Write(key, w) => pipe.give(c.write(key, w)),
        Operation::Scan { low, high, reverse, limit } => {
            let mut page = Page::new();
            let next = c.scan(&ScanRequest { low, high, reverse, limit }, &mut page);
            let pairs: Vec<_> = page.iter().collect();
            pipe.give(next.map(|next| (pairs, next.map(|Resume(at)| at))))
        }
        Operation::GetMany(keys) => {
            let each = |values: Values| -> Vec<_> {
                (0..keys.len()).map(|i| values.get(i).map(<[u8]>::to_vec)).collect()
            };
            pipe.give(c.get_many(&keys).map(each))
        }
        Operation::WriteMany(writes) => {
            let each = |all: Vec<Result<Outcome>>| -> Vec<Answer<Outcome>> {
                all.into_iter().map(|o| o.map_err(|e| (&e).into())).collect()
            };
            pipe.give(c.write_many(&writes).map(each))
        }
        Operation::Load { pairs, sorted, fill } => pipe.give(c.load(pairs, sorted, fill)),
        Operation::Maintain => pipe.give(c.maintain()),
        Operation::Gc => pipe.give(c.gc()),
        Operation::Walk => pipe.give(c.walk()),
    }
}

/// A client of another process. Clones share it: one request at a time.
#[derive(Clone)]
pub struct RemoteClient(Arc<Mutex<Pipe>>);

impl RemoteClient {
    /// A client at the other end of these pipes.
    pub fn new(pipe: Pipe) -> Self {
        Self(Arc::new(Mutex::new(pipe)))
    }

    fn ask<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T> {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Runs an operation on the open index.
    pub(crate) fn operate<T: DeserializeOwned>(&self, operation: Operation<'_>) -> Result<T> {
        self.ask(&Ask::Do(operation))
    }
}

/// The operations of a client that give more than an answer.
impl RemoteClient {
    pub(crate) fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let found: Option<Vec<u8>> = self.operate(Operation::Get(key))?;
        let is_present = found.is_some();
        *out = found.unwrap_or_default();
        Ok(is_present)
    }

    pub(crate) fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let ScanRequest { low, high, reverse, limit } = *r;
        page.clear();
        let (pairs, next): (Vec<Pair>, Option<Bound<Vec<u8>>>) =
            self.operate(Operation::Scan { low, high, reverse, limit })?;
        pairs.iter().for_each(|(k, v)| page.push(k, v));
        Ok(next.map(Resume))
    }

    pub(crate) fn get_many(&mut self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        let values: Vec<Option<Vec<u8>>> = self.operate(Operation::GetMany(keys.to_vec()))?;
        out.reset(values.len());
        let present = values.iter().enumerate();
        present.for_each(|(i, v)| v.iter().for_each(|v| out.set(i, v)));
        Ok(())
    }

    pub(crate) fn write_many(
        &mut self,
        writes: &[(&[u8], Write<'_>)],
        out: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        let all: Vec<Answer<Outcome>> = self.operate(Operation::WriteMany(writes.to_vec()))?;
        *out = all.into_iter().map(|o| o.map_err(Error::from)).collect();
        Ok(())
    }
}
