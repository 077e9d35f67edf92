//! Buffers of a connection: bytes that wait to be sent, and frames as they arrive. Both grow with
//! the bytes that are there, not with announced lengths.

use std::io::{self, ErrorKind};

use super::io::Stream;
use crate::error::{Error, Result};

/// Memory that an empty box keeps.
const KEPT: usize = 8 << 10;

/// Bytes that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Frames are appended here.
    pub(super) bytes: Vec<u8>,
    written: usize,
}

impl Outbox {
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self { bytes, written: 0 }
    }

    /// How many are left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(super) fn clear(&mut self) {
        self.written = 0;
        empty(&mut self.bytes);
    }

    /// Sends as many bytes as the stream takes; returns how many.
    pub(super) fn flush(&mut self, stream: &mut dyn Stream) -> io::Result<usize> {
        let before = self.written;
        while self.left() > 0 {
            match stream.write(&self.bytes[self.written..]) {
                Ok(0) => return Err(ErrorKind::BrokenPipe.into()),
                Ok(n) => self.written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let sent = self.written - before;
        if self.left() == 0 {
            self.clear();
        }
        Ok(sent)
    }
}

/// Empties a buffer, and keeps its memory unless it is large.
fn empty(bytes: &mut Vec<u8>) {
    match bytes.capacity() > KEPT {
        true => *bytes = Vec::new(),
        false => bytes.clear(),
    }
}

/// Takes bytes off a stream: `None` where none are there, 0 at the end.
pub(super) fn receive(stream: &mut dyn Stream, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match stream.read(into) {
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Frames as they arrive: a length of 4 bytes, little endian, and so many bytes.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// Bytes that belong to no frame that was taken.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.taken
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// More has arrived.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        // Drop the consumed prefix before the buffer grows.
        if self.taken > 0 && self.bytes.len() + bytes.len() > self.bytes.capacity() {
            self.bytes.drain(..std::mem::take(&mut self.taken));
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn length(&self) -> Option<usize> {
        let header = self.bytes[self.taken..].first_chunk::<4>()?;
        Some(u32::from_le_bytes(*header) as usize)
    }

    /// The first frame, if all of it is there; of `longest` bytes at most.
    ///
    /// # Errors
    /// `Corrupt` as soon as a longer one is announced.
    pub(super) fn first(&self, longest: usize, from: &str) -> Result<Option<&[u8]>> {
        let Some(length) = self.length() else { return Ok(None) };
        if length > longest {
            return Err(Error::corrupt(format!(
                "{from} announces a frame of {length} bytes: is it a node of dmtree?"
            )));
        }
        let start = self.taken + 4;
        Ok(self.bytes.get(start..start + length))
    }

    /// The first frame has been dealt with.
    pub(super) fn take_first(&mut self) {
        let end = self.length().map_or(self.bytes.len(), |length| self.taken + 4 + length);
        self.taken = end.min(self.bytes.len());
        if self.left() == 0 {
            self.taken = 0;
            empty(&mut self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_as_they_arrive() {
        let mut all = Vec::new();
        for n in 0..50u32 {
            all.extend((n % 7).to_le_bytes());
            all.extend(vec![n as u8; (n % 7) as usize]);
        }
        for step in 1..40 {
            let (mut inbox, mut n) = (Inbox::default(), 0);
            for piece in all.chunks(step) {
                inbox.extend(piece);
                while let Some(frame) = inbox.first(7, "a peer").expect("short") {
                    assert_eq!(frame, vec![n as u8; n % 7]);
                    n += 1;
                    inbox.take_first();
                }
            }
            assert_eq!((n, inbox.left()), (50, 0));
        }
    }

    #[test]
    fn a_length_allocates_nothing() {
        let mut inbox = Inbox::default();
        inbox.extend(&(64u32 << 20).to_le_bytes());
        assert!(inbox.first(64 << 20, "a peer").expect("not too long").is_none());
        assert!(inbox.bytes.capacity() < 1024);
        assert!(inbox.first((64 << 20) - 1, "a peer").is_err());
    }
}
