//! Connection set-up: versions, a mutual proof of the pool's key, then the purpose of the
//! connection. The two state machines have no sockets, clock or randomness: bytes in, bytes out.
//!
//! | from | bytes |
//! |---|---|
//! | client | magic 8, version 4, 1 if it has a key, nonce 32 |
//! | host | magic 8, version 4, 1 if it has a key, nonce 32 |
//! | client | length 2, hello, proof 32 |
//! | host | 1, length 2, welcome, proof 32; or 0: the proof is none |
//!
//! A proof is HMAC-SHA256 by the key over the sender's role and all bytes of the connection before
//! it. The nonce of the other side makes a recorded proof worthless (replay); the role makes a
//! proof worthless when it is sent back (reflection). Both sides of a pool without a key use the
//! empty one.
//!
//! A host answers a peer without a valid proof with its version, whether it has a key, and a
//! refusal of the proof: one line for the operator, no information about the pool. For that peer it
//! keeps one state machine of fixed size, and computes one HMAC.
//!
//! *What this protects against.* A process that can connect and does not have the key can read,
//! change and stop nothing. *What it does not protect against.* An attacker on the path, or at an
//! address that a process of the pool is configured to connect to: the bytes after the proof are
//! neither encrypted nor authenticated, so that it can pass a handshake on, read what follows and
//! add to it. A process that has the key can do what a member can.
//!
//! Both sides are state machines over a buffer of fixed size. [`Side::wants`] bounds the bytes that
//! may be taken off the socket, so that bytes after the handshake stay in the socket for the
//! protocol that follows. A step runs only when all its bytes are there. An error leaves the
//! refusal in [`Side::out`]; the connection ends after it is sent.
//!
//! Only a peer with this program's magic learns the version of the host. Proofs are compared in
//! constant time.

use super::key::{Key, PROOF_BYTES};
use super::wire::{self, Failure, Hello, MAGIC, VERSION, Welcome};
use crate::error::{Error, Result};

/// Random bytes that a side draws for a connection.
pub(super) type Nonce = [u8; 32];

/// Magic and version.
const PRELUDE: usize = 12;
/// Version part, whether there is a key, and the nonce.
const GREETING: usize = PRELUDE + 1 + 32;
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
    /// `Incompatible` for another program, version or key; `Corrupt`.
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
}

/// The state of either side.
pub(super) struct SideState {
    key: Key,
    /// Names the peer in errors.
    name: String,
    step: Step,
    arrived: Received,
    mine: Vec<u8>,
    out: Vec<u8>,
}

impl SideState {
    /// For messages of `most` bytes in all; `nonce` is drawn for this connection alone.
    fn new(key: Key, nonce: &Nonce, name: String, most: usize) -> Self {
        let arrived = Received { room: vec![0; most].into(), used: 0, needed: PRELUDE };
        let mine = greeting(&key, nonce);
        Self { key, name, step: Step::Prelude, arrived, mine, out: Vec::new() }
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

    /// The length before a message, and where it ends with its proof.
    fn set_needed_by_length(&mut self, most: usize, name: &str) -> Result<()> {
        let length = &self.room[self.used - 2..self.used];
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        if length > most {
            return Err(Error::corrupt(format!("{name} announces {length} bytes to begin with")));
        }
        self.needed = self.used + length + PROOF_BYTES;
        Ok(())
    }
}

/// The steps of both sides: each needs the bytes up to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Prelude,
    Greeting,
    Verdict,
    Length,
    Message,
    Over,
}

fn greeting(key: &Key, nonce: &Nonce) -> Vec<u8> {
    let mut all = prelude();
    all.push(u8::from(key.is_some()));
    all.extend(nonce);
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

fn other_key(name: &str) -> Error {
    Error::incompatible(format!(
        "{name} has another key than this process: give the key of its pool with --key-file FILE or DMTREE_KEY"
    ))
}

/// Whether both have a key, or none has.
fn check_keyed(theirs: u8, key: &Key, name: &str) -> Result<()> {
    match (theirs != 0, key.is_some()) {
        (true, false) => Err(Error::incompatible(format!(
            "{name} asks for a key: give that of its pool with --key-file FILE or DMTREE_KEY"
        ))),
        (false, true) => Err(Error::incompatible(format!(
            "{name} has no key, and this process has one: start it with the same key, or leave the key out here"
        ))),
        _ => Ok(()),
    }
}

/// The accepting side.
pub(super) struct Host(SideState);

impl Host {
    /// For a peer, named `name` in errors; `nonce` is drawn for this connection alone.
    pub(super) fn new(key: Key, nonce: &Nonce, name: String) -> Self {
        Self(SideState::new(key, nonce, name, GREETING + 2 + MAX_HELLO + PROOF_BYTES))
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
        let mut out = vec![1];
        append(&mut out, &body);
        let SideState { key, arrived, mine, .. } = &self.0;
        let said = &arrived.all()[..arrived.used - PROOF_BYTES];
        let (theirs, hello) = said.split_at(GREETING);
        let proof = key.prove(&[b"host", theirs, mine, hello, &out]);
        out.extend(proof);
        Ok(out)
    }
}

impl Side for Host {
    type Outcome = Hello;

    fn state(&mut self) -> &mut SideState {
        &mut self.0
    }

    fn advance(&mut self) -> Result<Option<Hello>> {
        let SideState { key, name, step, arrived: at, mine, out } = &mut self.0;
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
                *out = mine.clone();
                check_keyed(at.all()[PRELUDE], key, name)?;
                at.needed = GREETING + 2;
                Step::Length
            }
            Step::Length => {
                at.set_needed_by_length(MAX_HELLO, name)?;
                Step::Message
            }
            Step::Message => {
                let (said, proof) = at.all().split_at(at.used - PROOF_BYTES);
                let (theirs, hello) = said.split_at(GREETING);
                if !key.is_proof(&[b"client", theirs, mine, hello], proof) {
                    *out = vec![0];
                    return Err(other_key(name));
                }
                *step = Step::Over;
                return wire::decode(&hello[2..], name).map(Some);
            }
            Step::Verdict | Step::Over => return Err(Error::corrupt("the handshake is over")),
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
    /// To a host, named `name` in errors; `nonce` is drawn for this connection alone.
    ///
    /// # Errors
    /// `InvalidArgument` for a hello that is too long.
    pub(super) fn new(key: Key, nonce: &Nonce, hello: &Hello, name: String) -> Result<Self> {
        let (body, mut hello) = (wire::encode(hello)?, Vec::new());
        if body.len() > MAX_HELLO {
            return Err(Error::invalid("a hello that is too long"));
        }
        append(&mut hello, &body);
        let most = GREETING + 1 + 2 + MAX_WELCOME + PROOF_BYTES;
        let mut state = SideState::new(key, nonce, name, most);
        state.out = state.mine.clone();
        Ok(Self { state, hello })
    }
}

impl Side for Client {
    type Outcome = Welcome;

    fn state(&mut self) -> &mut SideState {
        &mut self.state
    }

    fn advance(&mut self) -> Result<Option<Welcome>> {
        let hello = &self.hello;
        let SideState { key, name, step, arrived: at, mine, out } = &mut self.state;
        *step = match *step {
            Step::Prelude => {
                check_prelude(at.all(), name)?;
                at.needed = GREETING;
                Step::Greeting
            }
            Step::Greeting => {
                check_keyed(at.all()[PRELUDE], key, name)?;
                *out = hello.clone();
                out.extend(key.prove(&[b"client", mine, at.all(), hello]));
                at.needed = GREETING + 1;
                Step::Verdict
            }
            Step::Verdict => {
                if at.all()[GREETING] != 1 {
                    return Err(other_key(name));
                }
                at.needed = GREETING + 3;
                Step::Length
            }
            Step::Length => {
                at.set_needed_by_length(MAX_WELCOME, name)?;
                Step::Message
            }
            Step::Message => {
                let (said, proof) = at.all().split_at(at.used - PROOF_BYTES);
                let (theirs, welcome) = said.split_at(GREETING);
                if !key.is_proof(&[b"host", mine, theirs, hello, welcome], proof) {
                    return Err(other_key(name));
                }
                *step = Step::Over;
                return wire::decode(&welcome[3..], name).map(Some);
            }
            Step::Over => return Err(Error::corrupt("the handshake is over")),
        };
        Ok(None)
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
