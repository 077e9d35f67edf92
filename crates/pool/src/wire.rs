//! Little-endian fields of requests, replies and records, with bounds checked: such bytes come from
//! other nodes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dmtree_fabric::{Endpoint, Error, ErrorKind, NodeId, Result, Role, ServiceId};

/// The time limit of an operation's call to a compute node, ns. Much less than members have for
/// acknowledging a death: the silent node may be the one that is dying, and the operation may hold
/// a lock for which its death waits.
pub(crate) const LONGEST_CALL_NS: u64 = 50_000_000;

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
    ep.set_deadline(whole.min(ep.now() + longest_ns));
    let done = ep.rpc(to, service, request, &mut reply).await;
    ep.set_deadline(whole);
    match done {
        Err(e) if e.kind() == ErrorKind::TimedOut && ep.now() < whole => {
            let text = format!("{to} has not answered a call for {} ms", longest_ns / 1_000_000);
            Err(Error::new(ErrorKind::Unreachable, text).effect_unknown())
        }
        done => done.map(|()| reply),
    }
}

/// Locks for a few instructions. A panic elsewhere under the lock leaves consistent (if incomplete)
/// bookkeeping behind.
pub(crate) fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes fields off the front of a message.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let Some((head, tail)) = self.0.split_at_checked(n) else {
            return Err(Error::corrupt(format!(
                "a message of the pool ends {} bytes early",
                n - self.0.len()
            )));
        };
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.bytes(2)?.try_into().expect("2 bytes")))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(4)?.try_into().expect("4 bytes")))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().expect("8 bytes")))
    }
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
