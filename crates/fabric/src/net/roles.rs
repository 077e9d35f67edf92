//! Authorization: which member may ask which question of a node. A connection speaks for a member
//! when it shows the badge that the membership server has issued to that member, and otherwise for
//! no member. So no process acts in the name of another by mistake or with forged messages.
//!
//! | question | asked of | may be asked by |
//! |---|---|---|
//! | pool config, register | the first memory node | every process that has proven the pool's key |
//! | status | every host | every process that has proven the pool's key |
//! | leave | the compute node that it is about | every process that has proven the pool's key |
//! | node directory, members | the first memory node | every member |
//! | join, renew, state, propose, withdraw | the first memory node | the member that it is about |
//! | ready | the first memory node | the memory node or journal node that it is about |
//! | revoke access | every host | mn0; a living compute node that has access at the host |
//! | verbs and calls on a link | every host | every member that still has access at the host |
//!
//! A link replaces a link of the same member only.
//!
//! A badge is an HMAC of the member by a secret that the membership server draws and sends to the
//! members when they register: every host can check it without a question. A member could forge
//! badges of others. It could as well write to their memory, which one-sided access leaves open to
//! it: members are trusted, and the key keeps other processes out (`handshake.rs`).

use std::net::IpAddr;
use std::sync::Arc;

use super::NodeShared;
use super::key::Key;
use super::wire::{Answer, Ask, Credential, Hello};
use crate::addr::{NodeId, Role};
use crate::error::{Error, Result};
use crate::membership::Member;

/// The secret that badges are computed with.
pub(super) type Secret = [u8; 32];

/// Issues badges, and checks them.
#[derive(Clone)]
pub(super) struct Badges {
    pub(super) secret: Secret,
    key: Key,
}

/// The purpose of an admitted connection.
pub(super) enum Admitted {
    /// Questions, in the name of this member.
    Asking(Option<Member>),
    /// A link of this member, with its number, and the number of the link that it replaces.
    Link { from: Member, number: u64, replaces: u64 },
}

impl Badges {
    pub(super) fn of(secret: Secret) -> Self {
        Self { secret, key: Key::of_bytes(&secret) }
    }

    /// The credential of a member.
    pub(super) fn credential(&self, member: Member) -> Credential {
        Credential { member, badge: self.key.prove(&[&bytes(member)]) }
    }

    fn check(&self, credential: &Credential) -> Result<Member> {
        if self.key.is_proof(&[&bytes(credential.member)], &credential.badge) {
            return Ok(credential.member);
        }
        Err(Error::incompatible(format!(
            "{} has not registered with this pool: start its process again",
            credential.member
        )))
    }
}

fn bytes(member: Member) -> [u8; 6] {
    let ([a, b], [c, d, e, f]) =
        (member.node.bits().to_le_bytes(), member.incarnation.to_le_bytes());
    [a, b, c, d, e, f]
}

/// Whether a question may be asked in the name of a member, or of none; revocation has a rule of
/// its own.
pub(super) fn check(ask: &Ask, speaker: Option<Member>) -> Result<()> {
    let about = match ask {
        Ask::PoolConfig | Ask::Register(_) | Ask::Status | Ask::Leave(_) => return Ok(()),
        Ask::NodeDirectory | Ask::Members | Ask::Revoke(_) => None,
        Ask::Ready { me, .. } | Ask::MembershipState { me, .. } => Some(*me),
        Ask::Withdraw(me) | Ask::Join(me) | Ask::Renew(me) | Ask::Propose(me, _) => Some(*me),
    };
    let refuse = |what: String| Err(Error::invalid(what));
    match (speaker, about) {
        (None, _) => refuse("only members of the pool may ask that: register first".into()),
        (Some(speaker), Some(me)) if speaker != me => {
            refuse(format!("{speaker} does not speak for {me}"))
        }
        (Some(me), _) if matches!(ask, Ask::Ready { .. }) && me.node.role() == Role::Compute => {
            refuse(format!("{me} is no memory node"))
        }
        _ => Ok(()),
    }
}

impl NodeShared {
    /// Checks and returns the purpose of a connection.
    pub(super) fn admit(&self, hello: Hello) -> Result<Admitted> {
        match hello {
            Hello::Ask { pool, credential } => {
                pool.map_or(Ok(()), |pool| self.check_pool(pool))?;
                let speaker =
                    credential.map(|credential| self.badges.check(&credential)).transpose()?;
                Ok(Admitted::Asking(speaker))
            }
            Hello::Link { pool, credential, to, number, replaces } => {
                self.check_pool(pool)?;
                self.check_incarnation(to)?;
                let from = self.badges.check(&credential)?;
                Ok(Admitted::Link { from, number, replaces })
            }
        }
    }

    /// Answers a question that came from `ip` in the name of a member, or of none.
    pub(super) fn answer(
        self: &Arc<Self>,
        ask: Ask,
        speaker: Option<Member>,
        ip: IpAddr,
    ) -> Answer {
        let answered = check(&ask, speaker).and_then(|()| match (ask, &self.membership_server) {
            (Ask::Revoke(member), _) => {
                self.check_fences(speaker)?;
                self.revoke(member)?;
                Ok(Answer::Done)
            }
            (Ask::Leave(member), _) => self.ask_to_leave(member).map(|()| Answer::Done),
            (Ask::Status, _) => Ok(Answer::Status(Box::new(self.status()))),
            (ask, Some(membership_server)) => Ok(membership_server.answer(ask, ip, self.now())),
            (_, None) => Err(Error::invalid(format!(
                "{} is not the first memory node of its pool: ask that one",
                self.me.node
            ))),
        });
        answered.unwrap_or_else(|e| Answer::Refused((&e).into()))
    }

    fn check_fences(&self, speaker: Option<Member>) -> Result<()> {
        let Some(member) = speaker else { return Ok(()) };
        self.check_issuer(member)?;
        let is_first = member.node == NodeId::memory(0);
        let incarnations = match &self.membership_server {
            Some(membership_server) => membership_server.membership.latest().is_living(member),
            None => member.node.role() == Role::Compute,
        };
        if is_first || incarnations {
            return Ok(());
        }
        Err(Error::revoked(format!(
            "{member} does not live in this pool: it cannot have the access of others revoked"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Change;

    fn member(node: NodeId, incarnation: u32) -> Member {
        Member { node, incarnation }
    }

    #[test]
    fn a_badge_is_of_one_member_in_one_pool() {
        let (a, b) = (Badges::of([1; 32]), Badges::of([2; 32]));
        let me = member(NodeId::compute(3), 2);
        let credential = a.credential(me);
        assert_eq!(a.check(&credential).expect("its own"), me);
        assert!(b.check(&credential).is_err(), "another pool's");
        for other in [member(NodeId::compute(3), 3), member(NodeId::compute(4), 2)] {
            let e =
                a.check(&Credential { member: other, ..credential }).expect_err("another's badge");
            assert!(e.to_string().contains("has not registered"), "{e}");
        }
        let guess = Credential { badge: [0; 32], ..credential };
        assert!(a.check(&guess).is_err());
    }

    #[test]
    fn members_speak_for_themselves_alone() {
        let (me, other) = (member(NodeId::compute(0), 1), member(NodeId::compute(1), 1));
        let mn1 = member(NodeId::memory(1), 1);
        let own = |me| {
            [
                Ask::Withdraw(me),
                Ask::Join(me),
                Ask::Renew(me),
                Ask::MembershipState { me, known: 0 },
                Ask::Propose(me, Change::Leave),
            ]
        };
        for ask in own(me) {
            assert!(check(&ask, Some(me)).is_ok(), "{ask:?}");
        }
        for ask in own(other).into_iter().chain(own(member(me.node, 2))) {
            let e = check(&ask, Some(me)).expect_err("another member");
            assert!(e.to_string().contains("does not speak for"), "{e}");
        }
        let ready = |me| Ask::Ready { me, on_chip_bytes: 0 };
        assert!(check(&ready(mn1), Some(mn1)).is_ok());
        assert!(check(&ready(me), Some(me)).is_err(), "no memory node");
        assert!(check(&ready(mn1), Some(me)).is_err());
        for ask in own(me).into_iter().chain([Ask::NodeDirectory, Ask::Members, Ask::Revoke(other)])
        {
            assert!(check(&ask, None).is_err(), "{ask:?} of a process that has not registered");
        }
        assert!(check(&Ask::PoolConfig, None).is_ok() && check(&Ask::Status, None).is_ok());
    }
}
