//! Frames of verbs and calls. One thread of the host executes a frame as a whole, in order. A frame
//! carries its use-by time by the host's clock; the host does not execute it later, so that the
//! sender knows when to stop waiting.
//!
//! | frame | fields, little endian |
//! |---|---|
//! | POST | 1, use-by 8, per verb: opcode 1, length 4, address 8, words 16 or bytes to write |
//! | CALL | 2, use-by 8, number 8, service 2, the request |
//! | OFFER | 3, use-by 8, offer of a queue pair: replaces an earlier one of this link |
//! | CLOSE | 4, use-by 8: the host's end of that queue pair goes |
//! | DONE | 1, 1 and the results of READs and atomics, in order; or 1, 0 and a failure |
//! | REPLY | 2, number 8, 1 and the reply; or 2, number, 0 and a failure |
//! | ANSWER | 3, 1 and the host's answer to the offer; or 3, 0 and a failure |
//! | CLOSED | 4, 1: nothing of that queue pair executes any more |

use super::wire::{self, Failure, MAX_FRAME};
use crate::addr::GlobalAddr;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::rpc::ServiceId;
use crate::transport::{Nanos, Opcode, WorkRequest};

pub(super) const POST: u8 = 1;
pub(super) const CALL: u8 = 2;
pub(super) const OFFER: u8 = 3;
pub(super) const CLOSE: u8 = 4;

/// Takes fields off the front of a frame.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or_else(|| {
            Error::corrupt(format!("a frame ends {} bytes early", n - self.0.len()))
        })?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.bytes(2)?.try_into().expect("2 bytes")))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(4)?.try_into().expect("4 bytes")))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().expect("8 bytes")))
    }
}

/// Begins a frame at the end of `out`; returns its offset, for [`end`].
pub(super) fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.extend([0; 4]);
    out.push(kind);
    start
}

/// Ends the frame that began at `start`.
pub(super) fn end(out: &mut [u8], start: usize) {
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn code(op: Opcode) -> u8 {
    match op {
        Opcode::Read => 0,
        Opcode::Write => 1,
        Opcode::WriteWord => 2,
        Opcode::Cas => 3,
        Opcode::Faa => 4,
    }
}

fn opcode(code: u8) -> Result<Opcode> {
    Ok(match code {
        0 => Opcode::Read,
        1 => Opcode::Write,
        2 => Opcode::WriteWord,
        3 => Opcode::Cas,
        4 => Opcode::Faa,
        _ => return Err(Error::corrupt(format!("there is no verb {code}"))),
    })
}

/// Appends a frame of verbs.
pub(super) fn post<'w>(
    out: &mut Vec<u8>,
    use_by: Nanos,
    verbs: impl Iterator<Item = &'w WorkRequest>,
) -> Result<()> {
    let start = begin(out, POST);
    out.extend(use_by.to_le_bytes());
    for wr in verbs {
        out.push(code(wr.op));
        out.extend(wr.len.to_le_bytes());
        out.extend(wr.at.bits().to_le_bytes());
        match wr.op {
            Opcode::Read => {}
            Opcode::Write => Host::append_payload(wr, out),
            Opcode::WriteWord | Opcode::Cas | Opcode::Faa => {
                out.extend(wr.a.to_le_bytes());
                out.extend(wr.b.to_le_bytes());
            }
        }
    }
    if out.len() - start - 4 > MAX_FRAME {
        let bytes = out.len() - start;
        out.truncate(start);
        return Err(Error::invalid(format!(
            "a list of verbs of {bytes} bytes: this fabric takes {MAX_FRAME}; post less at a time"
        )));
    }
    end(out, start);
    Ok(())
}

/// Changes the use-by times of frames that were not sent yet.
pub(super) fn shift_use_by(frames: &mut [u8], shifted: impl Fn(Nanos) -> Nanos) {
    let mut rest = frames;
    while let Some((length, tail)) = std::mem::take(&mut rest).split_first_chunk_mut::<4>() {
        let length = (u32::from_le_bytes(*length) as usize).min(tail.len());
        let (body, tail) = tail.split_at_mut(length);
        if let Some(use_by) = body.get_mut(1..9).and_then(|b| b.first_chunk_mut::<8>()) {
            *use_by = shifted(Nanos::from_le_bytes(*use_by)).to_le_bytes();
        }
        rest = tail;
    }
}

/// How many bytes of results the verbs of a frame have. Bytes that are no verb count 0: nothing
/// after them is executed.
pub(super) fn found_bytes(verbs: &[u8]) -> usize {
    outline(verbs).fold(0, |found, (_, bytes)| found.saturating_add(bytes))
}

/// Whether no verb of a frame can change anything.
pub(super) fn has_reads_only(verbs: &[u8]) -> bool {
    outline(verbs).all(|(op, _)| op == Opcode::Read)
}

/// The verbs of a frame up to bytes that are none, and how many bytes of results each has.
fn outline(verbs: &[u8]) -> impl Iterator<Item = (Opcode, usize)> {
    let mut f = Fields(verbs);
    let mut next = move || -> Result<(Opcode, usize)> {
        let op = opcode(f.u8()?)?;
        let (len, _) = (f.u32()? as usize, f.u64()?);
        let (carried, found) = match op {
            Opcode::Read => (0, len),
            Opcode::Write => (len, 0),
            Opcode::WriteWord => (16, 0),
            Opcode::Cas | Opcode::Faa => (16, 8),
        };
        f.bytes(carried)?;
        Ok((op, found))
    };
    std::iter::from_fn(move || next().ok())
}

/// Executes the verbs of a frame and appends their results to `out`.
pub(super) fn execute(host: &Host, verbs: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut f = Fields(verbs);
    while !f.0.is_empty() {
        let op = opcode(f.u8()?)?;
        let (len, at) = (f.u32()?, GlobalAddr::from_bits(f.u64()?));
        let mut wr = WorkRequest::alone(op, at, len);
        let is_word = !matches!(op, Opcode::Read | Opcode::Write);
        if at.node() != host.node || (is_word && len != 8) {
            return Err(Error::corrupt(format!("{} got {op:?} of {len} bytes at {at}", host.node)));
        }
        host.check(&wr)?;
        let (region, offset) = (host.memory(at), at.offset());
        match op {
            Opcode::Read => {
                let from = out.len();
                if from + len as usize > MAX_FRAME {
                    return Err(Error::invalid(format!(
                        "READs of more than {MAX_FRAME} bytes in one list: post less at a time"
                    )));
                }
                out.resize(from + len as usize, 0);
                region.read(offset, &mut out[from..]);
            }
            Opcode::Write => region.write(offset, f.bytes(len as usize)?),
            Opcode::WriteWord | Opcode::Cas | Opcode::Faa => {
                (wr.a, wr.b) = (f.u64()?, f.u64()?);
                match op {
                    Opcode::Cas => out.extend(region.cas(offset, wr.a, wr.b).to_le_bytes()),
                    Opcode::Faa => out.extend(region.faa(offset, wr.a).to_le_bytes()),
                    _ => region.store(offset, wr.a),
                }
            }
        }
    }
    Ok(())
}

/// Copies the results of verbs into their buffers.
pub(super) fn deliver(gets: &[WorkRequest], found: &[u8]) -> Result<()> {
    let mut f = Fields(found);
    for wr in gets {
        match wr.op {
            Opcode::Read => Host::deliver(wr, f.bytes(wr.len as usize)?),
            _ => Host::deliver(wr, f.bytes(8)?),
        }
    }
    match f.0.len() {
        0 => Ok(()),
        n => Err(Error::corrupt(format!("{n} bytes too many for the verbs of a list"))),
    }
}

/// Appends a frame of a call.
pub(super) fn call(out: &mut Vec<u8>, use_by: Nanos, number: u64, to: ServiceId, request: &[u8]) {
    let start = begin(out, CALL);
    out.extend(use_by.to_le_bytes());
    out.extend(number.to_le_bytes());
    out.extend(to.0.to_le_bytes());
    out.extend(request);
    end(out, start);
}

/// Appends a frame about a queue pair.
pub(super) fn about_end(out: &mut Vec<u8>, kind: u8, use_by: Nanos, offer: &[u8]) {
    let start = begin(out, kind);
    out.extend(use_by.to_le_bytes());
    out.extend(offer);
    end(out, start);
}

/// Appends the outcome of a list or a call to a frame that was begun.
pub(super) fn outcome(out: &mut Vec<u8>, failed: Option<&Error>) {
    match failed {
        None => out.push(1),
        Some(e) => {
            out.push(0);
            out.extend(wire::encode(&Failure::from(e)).unwrap_or_default());
        }
    }
}

/// Appends a frame with an outcome; `head` stands before it.
pub(super) fn answer(out: &mut Vec<u8>, kind: u8, head: &[u8], result: Result<Vec<u8>>) {
    let start = begin(out, kind);
    out.extend(head);
    outcome(out, result.as_ref().err());
    out.extend(result.unwrap_or_default());
    end(out, start);
}

/// The rest of a frame after its outcome, or the error it brings.
pub(super) fn read_outcome<'a>(f: &mut Fields<'a>, from: &str) -> Result<Result<&'a [u8]>> {
    Ok(match f.u8()? {
        1 => Ok(f.0),
        _ => Err(wire::decode::<Failure>(f.0, from)?.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::NodeId;
    use crate::region::Region;
    use proptest::prelude::*;

    fn host() -> Host {
        Host::new(NodeId::memory(0), 1, Region::new(4096))
    }

    proptest! {
        #[test]
        fn any_bytes_are_verbs_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = execute(&host(), &bytes, &mut Vec::new());
        }

        #[test]
        fn near_verbs_stay_inside(op in 0u8..6, len in 0u32..5000, node in 0u64..2, at in 0u64..5000, a: u64, cut in 0usize..40) {
            let mut bytes = vec![op];
            bytes.extend(len.to_le_bytes());
            bytes.extend((node << 48 | at).to_le_bytes());
            bytes.extend(a.to_le_bytes());
            bytes.extend(a.to_le_bytes());
            bytes.truncate(bytes.len().saturating_sub(cut));
            let mut out = Vec::new();
            if execute(&host(), &bytes, &mut out).is_ok() && op != 0 {
                prop_assert!(out.len() <= 8);
            }
        }
    }
}
