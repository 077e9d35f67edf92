//! Requests, replies and records as bytes: postcard, with numbers of more than one byte at their
//! full width, little endian.
//!
//! The length of a message, and hence its cost on a fabric, does not depend on the values in it. A
//! list has no count before it: it extends to the end of its message. Such bytes come from other
//! nodes, so decoding checks all of them.

pub(crate) use dmtree_fabric::sync::locked;
use dmtree_fabric::{Endpoint, Error, ErrorKind, Nanos, NodeId, Result, Role, ServiceId};
use postcard::fixint;
use serde::{Deserialize, Serialize};

/// The time limit of an operation's call to a compute node, ns. Much less than members have for
/// acknowledging a death: the silent node may be the one that is dying, and the operation may hold
/// a lock for which its death waits.
pub(crate) const LONGEST_CALL_NS: u64 = 50_000_000;

/// An endpoint with an earlier deadline, until this is dropped.
struct Shortened<'e>(&'e Endpoint, Nanos);

impl Drop for Shortened<'_> {
    fn drop(&mut self) {
        self.0.set_deadline(self.1);
    }
}

/// A remote call that ends after `longest_ns` at the latest, even if the compute node hangs.
///
/// # Errors
/// `Unreachable` then; those of the fabric.
pub(crate) async fn call_within(
    ep: &Endpoint,
    longest_ns: u64,
    to: NodeId,
    service: ServiceId,
    request: &[u8],
) -> Result<Vec<u8>> {
    let mut reply = Vec::new();
    if to.role() != Role::Compute {
        ep.rpc(to, service, request, &mut reply).await?;
        return Ok(reply);
    }
    if ep.now() >= ep.deadline() {
        // Between operations: the deadline of the last one has passed.
        ep.renew_deadline();
    }
    let whole = ep.deadline();
    let shortened = Shortened(ep, whole);
    ep.set_deadline(whole.min(ep.now() + longest_ns));
    let done = ep.rpc(to, service, request, &mut reply).await;
    drop(shortened);
    match done {
        Err(e) if e.kind() == ErrorKind::TimedOut && ep.now() < whole => {
            let text = format!("{to} has not answered a call for {} ms", longest_ns / 1_000_000);
            Err(Error::unreachable(text).effect_unknown())
        }
        done => done.map(|()| reply),
    }
}

/// A word in a list of them, or as a whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Word(#[serde(with = "fixint::le")] pub(crate) u64);

/// A number of 32 bits as a message, or as its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Half(#[serde(with = "fixint::le")] pub(crate) u32);

/// A number of 16 bits in a list of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quarter(#[serde(with = "fixint::le")] pub(crate) u16);

/// The bytes of a message, or of its beginning.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    with_list(message, std::iter::empty::<Word>())
}

/// The bytes of a message that ends in a list.
pub(crate) fn with_list<T: Serialize>(
    head: &impl Serialize,
    list: impl IntoIterator<Item = T>,
) -> Vec<u8> {
    let bytes = postcard::to_stdvec(head).expect("plain fields have bytes");
    list.into_iter().fold(bytes, |bytes, item| {
        postcard::to_extend(&item, bytes).expect("plain fields have bytes")
    })
}

fn front<'a, T: Deserialize<'a>>(bytes: &mut &'a [u8]) -> Result<T, postcard::Error> {
    let (head, tail) = postcard::take_from_bytes(bytes)?;
    *bytes = tail;
    Ok(head)
}

/// Takes the beginning of a message off its front.
pub(crate) fn take<'a, T: Deserialize<'a>>(bytes: &mut &'a [u8]) -> Result<T> {
    front(bytes).map_err(|e| Error::corrupt(format!("a message of the pool cannot be read: {e}")))
}

/// Takes the call of a service off the front of a request.
///
/// # Errors
/// `Corrupt` for a request that ends early, `InvalidArgument` for a call that the service does not
/// have.
pub(crate) fn take_call<'a, T: Deserialize<'a>>(of: &str, request: &mut &'a [u8]) -> Result<T> {
    front(request).map_err(|e| match e {
        postcard::Error::DeserializeUnexpectedEnd => {
            Error::corrupt(format!("a request to {of} ends early"))
        }
        e => Error::invalid(format!("{of} has no such call: {e}")),
    })
}

/// Checks that nothing follows a message.
pub(crate) fn ends(rest: &[u8]) -> Result<()> {
    match rest.len() {
        0 => Ok(()),
        n => Err(Error::corrupt(format!("a message of the pool is {n} bytes too long"))),
    }
}

/// Decodes a message from all of its bytes.
pub(crate) fn decode<'a, T: Deserialize<'a>>(mut bytes: &'a [u8]) -> Result<T> {
    let message = take(&mut bytes)?;
    ends(bytes)?;
    Ok(message)
}

/// Decodes a list that extends to the end of its message.
pub(crate) fn decode_list<'a, T: Deserialize<'a>>(mut bytes: &'a [u8]) -> Result<Vec<T>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        out.push(take(&mut bytes)?);
    }
    Ok(out)
}

/// A record of so many bytes: its fields, zeroes, and a checksum.
pub(crate) fn record<const BYTES: usize>(fields: &impl Serialize) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    postcard::to_slice(fields, &mut out).expect("a record has room for its fields");
    seal(&mut out);
    out
}

/// Puts the CRC-32C of all but the last four bytes there.
pub(crate) fn seal(bytes: &mut [u8]) {
    let body = bytes.len() - 4;
    let crc = crc32c::crc32c(&bytes[..body]);
    bytes[body..].copy_from_slice(&crc.to_le_bytes());
}

/// Whether [`seal`] was the last to change these bytes.
pub(crate) fn sealed(bytes: &[u8]) -> bool {
    let Some((body, crc)) = bytes.split_last_chunk::<4>() else { return false };
    crc32c::crc32c(body) == u32::from_le_bytes(*crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_do_not_depend_on_values() {
        for n in [0, 1, 300, u64::MAX] {
            let (half, quarter) = (Half(n as u32), Quarter(n as u16));
            assert_eq!(encode(&(Word(n), half, quarter, n as u8)).len(), 15);
        }
    }

    #[test]
    fn a_message_that_is_too_short_or_too_long_is_refused() {
        let mut bytes = encode(&(Word(7), Half(9)));
        assert_eq!(decode(&bytes).ok(), Some((Word(7), Half(9))));
        assert_eq!(
            decode_list(&with_list(&(), [Half(1), Half(2)])).ok(),
            Some(vec![Half(1), Half(2)])
        );
        let kind = |e: Result<(Word, Half)>| e.expect_err("refused").kind();
        assert_eq!(kind(decode(&bytes[1..])), ErrorKind::Corrupt);
        decode_list::<Half>(&bytes[1..]).expect_err("ends inside an item");
        bytes.push(0);
        assert_eq!(kind(decode(&bytes)), ErrorKind::Corrupt);
    }

    #[test]
    fn a_service_refuses_calls_that_it_does_not_have() {
        #[derive(Debug, Serialize, Deserialize)]
        enum Call {
            Known(Word),
        }
        let kind =
            |mut bytes: &[u8]| take_call::<Call>("a test", &mut bytes).expect_err("refused").kind();
        assert_eq!(kind(&[]), ErrorKind::Corrupt);
        assert_eq!(kind(&encode(&Call::Known(Word(1)))[..5]), ErrorKind::Corrupt);
        assert_eq!(kind(&[1; 9]), ErrorKind::InvalidArgument);
    }
}
