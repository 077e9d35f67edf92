//! How a connection begins: magic and version in both directions, so that strangers are told apart before anything is parsed; then
//! what the connection is for, and whether that is granted. Machines without sockets: bytes in, bytes out.

use super::wire::{self, Hello, MAGIC, VERSION, Welcome};
use crate::error::{Error, ErrorKind, Result};

/// Magic and version.
const PRELUDE: usize = 12;
/// Longest hello or welcome.
const MAX_MESSAGE: usize = 4096;

/// A machine for one side.
pub(super) trait Side {
    /// What the other side says in the end.
    type Said;

    /// How many bytes may be taken off the socket now: what comes after them is not this machine's.
    fn wants(&self) -> usize;

    /// Takes bytes, [`Side::wants`] at most. Once this has failed, what [`Side::out`] has left is sent and the connection ends.
    ///
    /// # Errors
    /// `Incompatible` for another program or version; `Corrupt`.
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Self::Said>>;

    /// What is to be sent now.
    fn out(&mut self) -> Vec<u8>;
}

/// What has arrived of the present step.
struct Arrived {
    bytes: Vec<u8>,
    step: Step,
    needed: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Prelude,
    Length,
    Message,
}

impl Arrived {
    fn new() -> Self {
        Self { bytes: Vec::new(), step: Step::Prelude, needed: PRELUDE }
    }

    fn wants(&self) -> usize {
        self.needed - self.bytes.len()
    }

    /// The bytes of a step, and which it was.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<(Step, Vec<u8>)>> {
        if bytes.len() > self.wants() {
            return Err(Error::corrupt("a greeting of too many bytes"));
        }
        self.bytes.extend(bytes);
        if self.wants() > 0 {
            return Ok(None);
        }
        let taken = (self.step, std::mem::take(&mut self.bytes));
        (self.step, self.needed) = (Step::Length, 4);
        Ok(Some(taken))
    }

    fn expect_message(&mut self, length: &[u8], name: &str) -> Result<()> {
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
        if length == 0 || length > MAX_MESSAGE {
            return Err(Error::corrupt(format!("{name} announces {length} bytes to begin with")));
        }
        (self.step, self.needed) = (Step::Message, length);
        Ok(())
    }
}

fn prelude() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

fn check_prelude(theirs: &[u8], name: &str) -> Result<()> {
    if theirs[..8] != MAGIC {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!("{name} is no node of dmtree: check the address and the port"),
        ));
    }
    let version = u32::from_le_bytes(theirs[8..].try_into().unwrap_or_default());
    if version != VERSION {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "{name} speaks version {version} of the protocol, this process version {VERSION}: run the same release everywhere"
            ),
        ));
    }
    Ok(())
}

/// The side that has been connected to.
pub(super) struct Host {
    name: String,
    arrived: Arrived,
    out: Vec<u8>,
}

impl Host {
    /// For a peer, who is called `name` in errors.
    pub(super) fn new(name: String) -> Self {
        Self { name, arrived: Arrived::new(), out: prelude() }
    }

    /// The answer to the hello.
    pub(super) fn welcome(&self, welcome: &Welcome) -> Result<Vec<u8>> {
        Ok(framed(&wire::encode(welcome)?))
    }
}

impl Side for Host {
    type Said = Hello;

    fn wants(&self) -> usize {
        self.arrived.wants()
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Hello>> {
        match self.arrived.take(bytes)? {
            Some((Step::Prelude, theirs)) => check_prelude(&theirs, &self.name).map(|()| None),
            Some((Step::Length, n)) => self.arrived.expect_message(&n, &self.name).map(|()| None),
            Some((Step::Message, body)) => wire::decode(&body, &self.name).map(Some),
            None => Ok(None),
        }
    }

    fn out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

/// The side that has connected.
pub(super) struct Client {
    name: String,
    arrived: Arrived,
    out: Vec<u8>,
}

impl Client {
    /// To a host, which is called `name` in errors.
    ///
    /// # Errors
    /// `InvalidArgument` for a hello that cannot be sent.
    pub(super) fn new(hello: &Hello, name: String) -> Result<Self> {
        let mut out = prelude();
        out.extend(framed(&wire::encode(hello)?));
        Ok(Self { name, arrived: Arrived::new(), out })
    }
}

impl Side for Client {
    type Said = Welcome;

    fn wants(&self) -> usize {
        self.arrived.wants()
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Welcome>> {
        match self.arrived.take(bytes)? {
            Some((Step::Prelude, theirs)) => check_prelude(&theirs, &self.name).map(|()| None),
            Some((Step::Length, n)) => self.arrived.expect_message(&n, &self.name).map(|()| None),
            Some((Step::Message, body)) => wire::decode(&body, &self.name).map(Some),
            None => Ok(None),
        }
    }

    fn out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}
