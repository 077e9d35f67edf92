//! Accounts of a client: lists in flight, and flights. A flight is the part of a list that one
//! doorbell sent to one peer.

use super::send::WorkId;
use crate::error::{Error, Result};
use crate::transport::Ticket;

/// The requests of one doorbell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// Generation of this slot: completions of earlier ones are ignored.
    generation: u32,
    /// The list of the requests.
    pub ticket: Ticket,
    pub peer: u16,
    pub requests: u32,
    pub state: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Free,
    Flying,
    /// Its connection broke: it is reported once the other end is gone.
    Doomed,
}

/// A list's account.
#[derive(Debug, Default)]
struct List {
    /// Flights not reported yet.
    flights: u32,
    /// No further one will be launched.
    is_launched: bool,
    error: Option<Error>,
}

/// All of them, in slots that are used again.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// By number of the posting.
    lists: Vec<List>,
}

impl Flights {
    /// A list begins.
    pub(super) fn open(&mut self, t: Ticket) {
        let at = t.posting as usize;
        if self.lists.len() <= at {
            self.lists.resize_with(at + 1, List::default);
        }
        self.lists[at] = List::default();
    }

    fn list(&mut self, t: Ticket) -> &mut List {
        &mut self.lists[t.posting as usize]
    }

    /// A doorbell will be rung for the list.
    pub(super) fn launch(&mut self, ticket: Ticket, peer: u16) -> WorkId {
        self.list(ticket).flights += 1;
        let flight = self.free.pop().unwrap_or_else(|| {
            let generation = 0;
            self.flights.push(Flight { generation, ticket, peer, requests: 0, state: Stage::Free });
            self.flights.len() as u32 - 1
        });
        let f = &mut self.flights[flight as usize];
        *f = Flight { ticket, peer, requests: 0, state: Stage::Flying, generation: f.generation };
        WorkId { flight, generation: f.generation }
    }

    /// The flight of a completion; `None` for a stale one.
    pub(super) fn flying(&mut self, id: WorkId) -> Option<&mut Flight> {
        let f = self.flights.get_mut(id.flight as usize)?;
        (f.state == Stage::Flying && f.generation == id.generation).then_some(f)
    }

    /// A flight is reported: its list has ended when this was the last one.
    pub(super) fn land(&mut self, flight: u32) -> Option<(Ticket, Result<()>)> {
        let f = &mut self.flights[flight as usize];
        f.state = Stage::Free;
        f.generation = f.generation.wrapping_add(1);
        let ticket = f.ticket;
        self.free.push(flight);
        self.list(ticket).flights -= 1;
        self.ended(ticket)
    }

    /// The list's outcome, when there is one.
    fn ended(&mut self, ticket: Ticket) -> Option<(Ticket, Result<()>)> {
        let list = self.list(ticket);
        let over = list.is_launched && list.flights == 0;
        over.then(|| (ticket, list.error.take().map_or(Ok(()), Err)))
    }

    /// Nothing more of the list will be launched; with an error when not all of it was.
    pub(super) fn launched(
        &mut self,
        ticket: Ticket,
        error: Option<Error>,
    ) -> Option<(Ticket, Result<()>)> {
        let list = self.list(ticket);
        list.is_launched = true;
        if let Some(e) = error {
            list.error.get_or_insert(e);
        }
        self.ended(ticket)
    }

    /// Whether the list has failed already.
    pub(super) fn has_failed(&mut self, ticket: Ticket) -> bool {
        self.list(ticket).error.is_some()
    }

    /// The connection to a peer broke: its flights are doomed. Returns how many requests they were.
    pub(super) fn crash_plan(&mut self, peer: u16, why: &Error) -> u32 {
        let mut requests = 0;
        for f in self.flights.iter_mut().filter(|f| f.peer == peer && f.state == Stage::Flying) {
            f.state = Stage::Doomed;
            requests += f.requests;
            self.lists[f.ticket.posting as usize]
                .error
                .get_or_insert_with(|| why.clone().effect_unknown());
        }
        requests
    }

    /// A doomed flight of the peer; the caller lands it. `why` replaces the error that broke the
    /// connection.
    pub(super) fn next_doomed(&mut self, peer: u16, why: Option<&Error>) -> Option<u32> {
        let doomed = |f: &Flight| f.peer == peer && f.state == Stage::Doomed;
        let at = self.flights.iter().position(doomed)?;
        if let Some(why) = why {
            let ticket = self.flights[at].ticket;
            self.list(ticket).error = Some(why.clone().effect_unknown());
        }
        Some(at as u32)
    }

    /// The flight in a slot.
    pub(super) fn get_mut(&mut self, id: WorkId) -> &mut Flight {
        &mut self.flights[id.flight as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const A: Ticket = Ticket { posting: 0, generation: 3 };
    const B: Ticket = Ticket { posting: 1, generation: 0 };

    #[test]
    fn a_list_ends_with_its_last_flight() {
        let mut f = Flights::default();
        f.open(A);
        let (one, two) = (f.launch(A, 0), f.launch(A, 1));
        assert!(f.land(one.flight).is_none());
        assert!(f.launched(A, None).is_none());
        assert_eq!(f.land(two.flight).map(|(t, r)| (t, r.is_ok())), Some((A, true)));
        f.open(B);
        let again = f.launch(B, 0);
        assert!(f.flying(one).is_none() && f.flying(two).is_none(), "stale");
        assert!(f.flying(again).is_some());
    }

    #[test]
    fn doomed_flights_are_reported_when_the_other_end_is_gone() {
        let mut f = Flights::default();
        f.open(A);
        let (here, there) = (f.launch(A, 0), f.launch(A, 1));
        f.get_mut(there).requests = 5;
        assert!(f.launched(A, None).is_none());
        assert_eq!(f.crash_plan(1, &Error::unreachable("gone")), 5);
        assert!(f.flying(there).is_none(), "its completions are stale");
        assert!(f.land(here.flight).is_none(), "the list waits for the doomed one");
        assert_eq!(f.next_doomed(0, None), None);
        let why = Error::revoked("access revoked");
        let doomed = f.next_doomed(1, Some(&why)).expect("one");
        let (_, result) = f.land(doomed).expect("the last one");
        assert_eq!(result.expect_err("failed").kind(), ErrorKind::Revoked);
        assert_eq!(f.next_doomed(1, None), None);
    }
}
