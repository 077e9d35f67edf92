//! Connection set-up: versions, whether there are keys, then the purpose of the connection. The two
//! state machines have no sockets, clock or randomness: bytes in, bytes out.
//!
//! | from | bytes |
//! |---|---|
//! | client | magic 8, version 4, 1 if it has keys |
//! | host | the same |
//! | client | length 2, hello |
//! | host | length 2, welcome |
//!
//! The greetings are plain. Where both sides have keys everything after them is TLS (`tls`), with
//! certificates on both sides: the hello is read when the peer is known. A greeting that is changed
//! on the way ends in a refusal: a side with keys says nothing without TLS, and a side without keys
//! does not begin it.
//!
//! A host answers an unknown peer with its version and whether it has keys: one line for the
//! operator, no information about the pool. For that peer it keeps one state machine of fixed size,
//! and one of TLS.
//!
//! Both sides are state machines over a buffer of fixed size. [`Side::wants`] bounds the bytes that
//! may be taken off the stream, so that bytes after the handshake stay in the stream for the
//! protocol that follows. A step runs only when all its bytes are there. An error leaves the answer
//! in [`Side::out`]; the connection ends after it is sent.
//!
//! Only a peer with this program's magic learns the version of the host.

use super::wire::{self, Failure, Hello, MAGIC, VERSION, Welcome};
use crate::error::{Error, Result};

/// Magic and version.
const PRELUDE: usize = 12;
/// Version part, and whether there are keys.
const GREETING: usize = PRELUDE + 1;
/// Longest hello.
const MAX_HELLO: usize = 256;
/// Longest welcome.
const MAX_WELCOME: usize = 1024;

/// The state machine of one side.
pub(super) trait Side {
    /// The last message of the other side.
    type Outcome;

    fn state(&mut self) -> &mut SideState;

    /// Takes the next step: all its bytes are there.
    fn advance(&mut self) -> Result<Option<Self::Outcome>>;

    /// How many bytes may be taken off the socket now: later bytes do not belong to the handshake.
    fn wants(&mut self) -> usize {
        let arrived = &self.state().arrived;
        arrived.needed - arrived.used
    }

    /// Takes bytes, [`Side::wants`] at most. After a failure the rest of [`Side::out`] is sent and
    /// the connection ends.
    ///
    /// # Errors
    /// `Incompatible` for another program or version, or keys on one side alone; `Corrupt`.
    fn feed(&mut self, bytes: &[u8]) -> Result<Option<Self::Outcome>> {
        match self.state().arrived.take(bytes)? {
            true => self.advance(),
            false => Ok(None),
        }
    }

    /// Bytes to be sent now.
    fn out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.state().out)
    }

    /// Whether TLS begins here: what was to be sent so far is plain, what follows is not. Says so
    /// once.
    fn begins_tls(&mut self) -> bool {
        let state = self.state();
        if !std::mem::take(&mut state.begins_tls) {
            return false;
        }
        state.out = std::mem::take(&mut state.after);
        true
    }
}

/// The state of either side.
pub(super) struct SideState {
    has_keys: bool,
    /// Names the peer in errors.
    name: String,
    step: Step,
    arrived: Received,
    out: Vec<u8>,
    begins_tls: bool,
    /// What is to be sent when TLS has begun.
    after: Vec<u8>,
}

impl SideState {
    /// For messages of `most` bytes in all.
    fn new(has_keys: bool, name: String, most: usize) -> Self {
        let arrived = Received { room: vec![0; most].into(), used: 0, needed: PRELUDE };
        let (begins_tls, out, after) = (false, Vec::new(), Vec::new());
        Self { has_keys, name, step: Step::Prelude, arrived, out, begins_tls, after }
    }

    /// The greetings fit: sends the next message, by TLS where there are keys.
    fn send_by_keys(&mut self, message: Vec<u8>) {
        self.begins_tls = self.has_keys;
        match self.has_keys {
            true => self.after = message,
            false => self.out.extend(message),
        }
    }
}

/// Received bytes, in a buffer of fixed size.
struct Received {
    room: Box<[u8]>,
    used: usize,
    /// How many bytes the next step needs.
    needed: usize,
}

impl Received {
    /// Whether the next step can be taken.
    fn take(&mut self, bytes: &[u8]) -> Result<bool> {
        let until = self.used + bytes.len();
        let room = self.room.get_mut(self.used..until).filter(|_| until <= self.needed);
        let room = room.ok_or_else(|| Error::corrupt("a handshake of too many bytes"))?;
        room.copy_from_slice(bytes);
        self.used = until;
        Ok(self.used == self.needed)
    }

    fn all(&self) -> &[u8] {
        &self.room[..self.used]
    }

    /// The length before a message, and where it ends.
    fn set_needed_by_length(&mut self, most: usize, name: &str) -> Result<()> {
        let length = &self.room[self.used - 2..self.used];
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        if length > most {
            return Err(Error::corrupt(format!("{name} announces {length} bytes to begin with")));
        }
        self.needed = self.used + length;
        Ok(())
    }
}

/// The steps of both sides: each needs the bytes up to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Prelude,
    Greeting,
    Length,
    Message,
    Over,
}

fn greeting(has_keys: bool) -> Vec<u8> {
    let mut all = prelude();
    all.push(u8::from(has_keys));
    all
}

fn prelude() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// Appends a message with its length.
fn append(out: &mut Vec<u8>, body: &[u8]) {
    out.extend((body.len() as u16).to_le_bytes());
    out.extend(body);
}

fn check_prelude(theirs: &[u8], name: &str) -> Result<()> {
    if theirs[..8] != MAGIC {
        return Err(Error::incompatible(format!(
            "{name} is no node of dmtree: check the address and the port"
        )));
    }
    let version = u32::from_le_bytes(theirs[8..PRELUDE].try_into().expect("4 bytes"));
    if version != VERSION {
        return Err(Error::incompatible(format!(
            "{name} speaks version {version} of the protocol, this process version {VERSION}: run the same release everywhere"
        )));
    }
    Ok(())
}

/// Whether both have keys, or none has.
fn check_keyed(theirs: u8, has_keys: bool, name: &str) -> Result<()> {
    match (theirs != 0, has_keys) {
        (true, false) => Err(Error::incompatible(format!(
            "{name} asks for keys: give those of its pool with --key-file FILE or DMTREE_KEY_FILE"
        ))),
        (false, true) => Err(Error::incompatible(format!(
            "{name} has no keys, and this process has some: start it with keys of the same pool, or leave them out here"
        ))),
        _ => Ok(()),
    }
}

/// The accepting side.
pub(super) struct Host(SideState);

impl Host {
    /// For a peer, named `name` in errors.
    pub(super) fn new(has_keys: bool, name: String) -> Self {
        Self(SideState::new(has_keys, name, GREETING + 2 + MAX_HELLO))
    }

    /// The answer to the hello; the text of a refusal is cut to the longest message.
    pub(super) fn welcome(&self, welcome: &Welcome) -> Result<Vec<u8>> {
        let mut body = wire::encode(welcome)?;
        if body.len() > MAX_WELCOME {
            let Welcome::Refused(failure) = welcome else {
                return Err(Error::invalid("a welcome that is too long"));
            };
            body = wire::encode(&Welcome::Refused(Failure::cut(failure, MAX_WELCOME - 64)))?;
        }
        let mut out = Vec::new();
        append(&mut out, &body);
        Ok(out)
    }
}

impl Side for Host {
    type Outcome = Hello;

    fn state(&mut self) -> &mut SideState {
        &mut self.0
    }

    fn advance(&mut self) -> Result<Option<Hello>> {
        let SideState { has_keys, name, step, arrived: at, out, .. } = &mut self.0;
        *step = match *step {
            Step::Prelude => {
                let fits = check_prelude(at.all(), name);
                // A dmtree process of another version gets this one's version; any other peer gets
                // no answer.
                if fits.is_err() && at.all()[..8] == MAGIC {
                    *out = prelude();
                }
                fits?;
                at.needed = GREETING;
                Step::Greeting
            }
            Step::Greeting => {
                *out = greeting(*has_keys);
                check_keyed(at.all()[PRELUDE], *has_keys, name)?;
                at.needed = GREETING + 2;
                *step = Step::Length;
                self.0.send_by_keys(Vec::new());
                return Ok(None);
            }
            Step::Length => {
                at.set_needed_by_length(MAX_HELLO, name)?;
                Step::Message
            }
            Step::Message => {
                *step = Step::Over;
                return wire::decode(&at.all()[GREETING + 2..], name).map(Some);
            }
            Step::Over => return Err(Error::corrupt("the handshake is over")),
        };
        Ok(None)
    }
}

/// The connecting side.
pub(super) struct Client {
    state: SideState,
    /// The hello with its length.
    hello: Vec<u8>,
}

impl Client {
    /// To a host, named `name` in errors.
    ///
    /// # Errors
    /// `InvalidArgument` for a hello that is too long.
    pub(super) fn new(has_keys: bool, hello: &Hello, name: String) -> Result<Self> {
        let (body, mut hello) = (wire::encode(hello)?, Vec::new());
        if body.len() > MAX_HELLO {
            return Err(Error::invalid("a hello that is too long"));
        }
        append(&mut hello, &body);
        let mut state = SideState::new(has_keys, name, GREETING + 2 + MAX_WELCOME);
        state.out = greeting(has_keys);
        Ok(Self { state, hello })
    }
}

impl Side for Client {
    type Outcome = Welcome;

    fn state(&mut self) -> &mut SideState {
        &mut self.state
    }

    fn advance(&mut self) -> Result<Option<Welcome>> {
        let SideState { has_keys, name, step, arrived: at, .. } = &mut self.state;
        *step = match *step {
            Step::Prelude => {
                check_prelude(at.all(), name)?;
                at.needed = GREETING;
                Step::Greeting
            }
            Step::Greeting => {
                check_keyed(at.all()[PRELUDE], *has_keys, name)?;
                at.needed = GREETING + 2;
                *step = Step::Length;
                let hello = std::mem::take(&mut self.hello);
                self.state.send_by_keys(hello);
                return Ok(None);
            }
            Step::Length => {
                at.set_needed_by_length(MAX_WELCOME, name)?;
                Step::Message
            }
            Step::Message => {
                *step = Step::Over;
                return wire::decode(&at.all()[GREETING + 2..], name).map(Some);
            }
            Step::Over => return Err(Error::corrupt("the handshake is over")),
        };
        Ok(None)
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
