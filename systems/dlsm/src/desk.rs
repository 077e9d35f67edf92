//! What the owner of ranges keeps for clients of other nodes: parts of requests, and the answer to
//! the last operation of each.

use std::collections::BTreeMap;
use std::sync::Mutex;

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Error, Result};

use crate::calls::{Answer, PART};
use crate::log::Origin;
use crate::wire;

/// Longest request or answer, bytes: a compare-and-set of two values of 1 MiB.
pub(crate) const LONGEST: usize = 4 << 20;
/// Clients that a node keeps parts of at a time.
const CLIENTS: usize = 256;

/// What a node keeps for a client of another one.
#[derive(Debug, Default)]
pub(crate) struct Tray {
    number: u64,
    pub(crate) request: Vec<u8>,
    answer: Vec<u8>,
    is_running: bool,
}

/// The trays of clients of other nodes.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    trays: Mutex<BTreeMap<u64, Tray>>,
    /// Bytes of all, where there is more than one.
    most: usize,
}

/// An operation that is being executed.
pub(crate) struct Running<'d>(&'d Desk, u64);

/// How far an operation is.
pub(crate) enum Begun<'d> {
    /// It begins now.
    Now(Running<'d>),
    Running,
    /// It has ended with this answer.
    Ended(Vec<u8>),
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(tray) = locked(&self.0.trays).get_mut(&self.1) {
            tray.is_running = false;
        }
    }
}

impl Tray {
    fn bytes(&self) -> usize {
        self.request.len() + self.answer.len()
    }
}

impl Desk {
    /// Within so many bytes.
    pub(crate) fn within(most: u64) -> Self {
        Self { most: usize::try_from(most).unwrap_or(usize::MAX), ..Self::default() }
    }

    /// Makes room for a client's further bytes: what is kept for others, and is not running, goes.
    ///
    /// # Errors
    /// `Busy` when there is none.
    fn make_room(&self, trays: &mut BTreeMap<u64, Tray>, client: u64, more: usize) -> Result<()> {
        let own = trays.get(&client).map_or(0, Tray::bytes);
        let mut others = trays.values().map(Tray::bytes).sum::<usize>() - own;
        let is_over = |others| others > 0 && others + own + more > self.most;
        while is_over(others) {
            let idle =
                |(c, tray): (&u64, &Tray)| *c != client && !tray.is_running && tray.bytes() > 0;
            let idle = trays.iter().find(|its| idle(*its)).map(|(c, tray)| (*c, tray.bytes()));
            let Some((idle, bytes)) = idle else {
                return Err(Error::busy(format!(
                    "messages of other nodes have the {} bytes of the budget that are for them",
                    self.most
                )));
            };
            trays.remove(&idle);
            others -= bytes;
        }
        Ok(())
    }

    /// The tray of an operation, which is the latest of its client; another one's goes.
    pub(crate) fn with<T>(
        &self,
        (client, number): Origin,
        then: impl FnOnce(&mut Tray) -> T,
    ) -> Result<T> {
        self.with_room((client, number), 0, then)
    }

    /// The same with room for so many bytes more.
    fn with_room<T>(
        &self,
        (client, number): Origin,
        more: usize,
        then: impl FnOnce(&mut Tray) -> T,
    ) -> Result<T> {
        let mut trays = locked(&self.trays);
        if more > 0 {
            self.make_room(&mut trays, client, more)?;
        }
        if trays.len() >= CLIENTS && !trays.contains_key(&client) {
            let idle = trays.iter().find(|(_, tray)| !tray.is_running).map(|(c, _)| *c);
            let idle = idle.ok_or_else(|| Error::busy("too many clients ask this node"))?;
            trays.remove(&idle);
        }
        let tray = trays.entry(client).or_default();
        if tray.number < number && !tray.is_running {
            *tray = Tray { number, ..Tray::default() };
        }
        match tray.number == number {
            true => Ok(then(tray)),
            false => Err(Error::busy("another operation of this client is running")),
        }
    }

    /// Bytes of requests and answers.
    pub(crate) fn bytes(&self) -> u64 {
        locked(&self.trays).values().map(|tray| tray.bytes() as u64).sum()
    }

    /// Begins to execute an operation, unless that has happened.
    pub(crate) fn begin(&self, origin: Origin) -> Result<Begun<'_>> {
        self.with(origin, |tray| match tray.answer.is_empty() {
            false => Begun::Ended(tray.answer.clone()),
            true if std::mem::replace(&mut tray.is_running, true) => Begun::Running,
            true => Begun::Now(Running(self, origin.0)),
        })
    }

    pub(crate) fn add_part(&self, origin: Origin, (at, bytes): (u32, &[u8])) -> Result<()> {
        let is_next = |tray: &mut Tray| {
            let at = at as usize;
            let fits = at <= tray.request.len() && at + bytes.len() <= LONGEST;
            if fits {
                tray.request.truncate(at);
                tray.request.extend_from_slice(bytes);
            }
            fits
        };
        match self.with_room(origin, bytes.len(), is_next)? {
            true => Ok(()),
            false => Err(Error::busy("a part of a request is missing: begin again")),
        }
    }

    /// Keeps an answer. One of an operation that has failed is none: it may be asked for again.
    pub(crate) fn keep(&self, origin: Origin, answer: &Answer) -> Result<Vec<u8>> {
        let encoded = wire::encode(answer)?;
        if !matches!(answer, Answer::Failed(_)) {
            self.with_room(origin, encoded.len(), |tray| tray.answer.clone_from(&encoded))?;
        }
        Ok(encoded)
    }

    pub(crate) fn more(&self, origin: Origin, at: u32) -> Result<Answer> {
        let rest = |tray: &mut Tray| {
            let rest = tray.answer.get(at as usize..).unwrap_or_default();
            rest[..rest.len().min(PART - 16)].to_vec()
        };
        self.with(origin, rest).map(Answer::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use dmtree_fabric::ErrorKind;

    use super::*;

    /// What is kept for clients is within the part of the budget: of idle ones the first goes,
    /// what runs stays, and one message of any length has room.
    #[test]
    fn messages_of_other_nodes_are_within_their_part() {
        let desk = Desk::within(1000);
        let add = |client, bytes| desk.add_part((client, 1), (0, &vec![7; bytes]));
        for client in 0..20 {
            add(client, 300).expect("room");
            assert!(desk.bytes() <= 1000, "{}", desk.bytes());
        }
        let Ok(Begun::Now(running)) = desk.begin((19, 1)) else { panic!("it begins") };
        add(20, 700).expect("that of others goes");
        let e = add(21, 701).expect_err("one is running");
        assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("the 1000 bytes"), "{e}");
        desk.keep((19, 1), &Answer::Bytes(vec![1; 600])).expect("that of 20 goes");
        drop(running);
        assert!(matches!(desk.begin((19, 1)), Ok(Begun::Ended(answer)) if answer.len() > 600));
        add(22, 5000).expect("alone");
        assert_eq!(desk.bytes(), 5000);
        assert!(add(22, LONGEST + 1).is_err());
    }
}
