//! Questions to a node, blocking, with a deadline: what is asked rarely and never by a client in an operation.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::handshake::Client;
use super::key::{self, Key};
use super::wire::{self, Answer, Ask, Hello, Pass, PoolId, Welcome, broken};
use crate::error::{Error, ErrorKind, Result};

/// Longest wait for a connection, for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// A connection for questions, made when it is needed.
pub(super) struct Admin {
    address: String,
    pool: Option<PoolId>,
    /// In whose name.
    pass: Option<Pass>,
    key: Key,
    stream: Mutex<Option<TcpStream>>,
}

impl Admin {
    pub(super) fn new(address: String, pool: Option<PoolId>, key: Key) -> Self {
        Self { address, pool, pass: None, key, stream: Mutex::default() }
    }

    /// Asks in the name of a member.
    pub(super) fn speaking_for(self, pass: Pass) -> Self {
        // A connection speaks for one member to its end.
        Self { pass: Some(pass), stream: Mutex::default(), ..self }
    }

    fn stream(&self) -> MutexGuard<'_, Option<TcpStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks; once more on a new connection when the old one has broken. All questions may be asked twice.
    pub(super) fn ask(&self, ask: &Ask) -> Result<Answer> {
        let mut stream = self.stream();
        let had_one = stream.is_some();
        match self.try_ask(&mut stream, ask) {
            Err(e) if had_one && e.kind() == ErrorKind::Unreachable => {
                *stream = None;
                self.try_ask(&mut stream, ask)
            }
            done => done,
        }
    }

    fn try_ask(&self, stream: &mut Option<TcpStream>, ask: &Ask) -> Result<Answer> {
        let s = match stream {
            Some(s) => s,
            None => {
                let hello = Hello::Ask { pool: self.pool, pass: self.pass };
                stream.insert(open(&self.address, &self.key, &hello)?.0)
            }
        };
        let answer = wire::send(s, ask).and_then(|()| wire::receive(s, &self.address));
        match answer {
            Ok(Answer::Refused(f)) => Err(f.into()),
            Ok(answer) => Ok(answer),
            Err(e) => {
                *stream = None;
                Err(e)
            }
        }
    }
}

/// Opens a connection and says what for. The clock of the host comes with it.
pub(super) fn open(address: &str, key: &Key, hello: &Hello) -> Result<(TcpStream, u64)> {
    let stream = dial(address)?;
    stream.set_nodelay(true).map_err(|e| broken(address, &e))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(|e| broken(address, &e))?;
    let mut side = Client::new(key.clone(), &key::random()?, hello, address.to_string())?;
    match wire::shake(&stream, &mut side, PATIENCE, address)? {
        Welcome::Granted { clock } => {
            stream.set_read_timeout(Some(PATIENCE)).map_err(|e| broken(address, &e))?;
            Ok((stream, clock))
        }
        Welcome::Refused(f) => Err(f.into()),
    }
}

fn dial(address: &str) -> Result<TcpStream> {
    let all = address.to_socket_addrs().map_err(|e| {
        Error::invalid(format!(
            "{address:?} is no address: {e}; write HOST:PORT, like 10.0.0.1:7000"
        ))
    })?;
    let mut trouble = None;
    for at in all {
        match TcpStream::connect_timeout(&at, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => trouble = Some(broken(address, &e)),
        }
    }
    Err(trouble.unwrap_or_else(|| Error::invalid(format!("{address:?} is the name of no host"))))
}

/// The error of an answer that does not fit the question.
#[cold]
pub(super) fn unexpected(answer: &Answer) -> Error {
    Error::corrupt(format!("an answer that does not fit the question: {answer:?}"))
}
