//! Defects of the membership on purpose, put in front of its rules: the rules themselves know none.
//!
//! [`Defect::plant`] puts them into every membership that this process keeps from then on, in a
//! simulator and behind the network alike.

use super::rules::Book;
use super::{Member, Standing};
use crate::addr::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::Nanos;

crate::defects! {
    /// A compute node owes from the start what was asked for before it joined, and a death is not
    /// carried on while no compute node lives.
    LateForTheFormer,
    /// A number is free when the death of its former life has come to its end, which takes a
    /// living compute node.
    NumbersStay,
    /// A memory node counts as present however long it is silent: a death waits for it.
    DeathWaitsForMemory,
}

impl Defects {
    /// Before the book hears of anything.
    pub(super) fn before(&self, book: &mut Book, now: Nanos) {
        if self.has(Defect::LateForTheFormer) {
            // Who coordinates a death says when all have revoked; nobody does.
            let latest = book.latest();
            let lives = latest.living().next().is_some();
            book.agents = if lives { latest.memory.len() } else { 0 };
        }
        if self.has(Defect::DeathWaitsForMemory) {
            let until = now.saturating_add(book.terms.lease_ns);
            for m in &book.latest().memory {
                book.leases.insert(m.member, until);
                // It owes nothing since before.
                book.joined.insert(m.member, now);
            }
        }
    }

    /// Whether a node may join.
    pub(super) fn admit(&self, book: &Book, me: Member) -> Result<()> {
        let latest = book.latest();
        let mut former = latest.members.iter().filter(|m| m.member.node == me.node);
        let stays = former.any(|m| m.member != me && m.standing != Standing::Gone);
        match self.has(Defect::NumbersStay) && stays {
            true => Err(Error::new(ErrorKind::Busy, format!("the number of {me} is not free"))),
            false => Ok(()),
        }
    }

    /// A node has joined.
    pub(super) fn joined(&self, book: &mut Book, me: Member) {
        if self.has(Defect::LateForTheFormer) && me.node.role() == Role::Compute {
            book.joined.remove(&me);
        }
    }
}
