//! Authorization: which peer may ask which question of a node. Two things decide: the role in the
//! certificate of a connection (`identity.rs`), and the member that it speaks for. It speaks for a
//! member when it shows the badge that the membership server has issued to that member, and
//! otherwise for no member. So no process acts in the name of another by mistake or with forged
//! messages.
//!
//! | question | asked of | role | may be asked by |
//! |---|---|---|---|
//! | pool config, status | every host | any | every process |
//! | register | the first memory node | node's, or reader | every process |
//! | leave | the compute node that it is about | admin | every process |
//! | node directory, members | the first memory node | any | every member |
//! | withdraw | the first memory node | any | the member that it is about |
//! | join, renew, state, propose | the first memory node | node's | the member that it is about |
//! | ready | the first memory node | memory | the memory or journal node that it is about |
//! | revoke access | every host | node's | mn0; a living compute node with access there |
//! | verbs and calls on a link | every host | node's | every member that still has access there |
//! | READs on a link | every host | reader | the same |
//!
//! "Node's" is the role of the node that the member is: compute, or memory (journal nodes, too).
//!
//! A link replaces a link of the same member only. A reader registers as a compute node, so that
//! its links have a number, and never joins: it holds no lease, owns nothing, and no death waits
//! for it.
//!
//! A badge is an HMAC of the member by a secret that the membership server draws and sends to the
//! members when they register: every host can check it without a question. A member could forge
//! badges of others with the same role. It could as well write to their memory, which one-sided
//! access leaves open to it: members of a role are trusted with what the role allows. A reader gets
//! its own badge and not the secret: otherwise it could end the links of others.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::NodeShared;
use super::identity::{Identity, KeyRole};
use super::sessions::{Key, Session};
use super::wire::{Answer, Ask, Credential, Hello};
use crate::addr::{NodeId, Role};
use crate::error::{Error, Result};
use crate::membership::Member;

/// What a member gets to show badges with.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Issued {
    /// The secret that badges are computed and checked with.
    Secret([u8; 32]),
    /// For a reader: its own badge.
    Badge([u8; 32]),
}

/// Issues badges, and checks them.
#[derive(Clone)]
pub(super) struct Badges {
    pub(super) issued: Issued,
    /// By the secret. That of a reader knows no badge.
    mac: Hmac<Sha256>,
}

/// The purpose of an admitted connection.
pub(super) enum Admitted {
    /// Questions.
    Asking(Speaker),
    /// A link of this member, with its number, and the number of the link that it replaces. Of a
    /// reader it carries READs alone.
    Link { from: Member, number: u64, replaces: u64, reads_only: bool },
}

/// The one that asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speaker {
    /// The member in the name of which it asks, if it has shown that.
    pub(super) member: Option<Member>,
    /// What its certificate says.
    pub(super) identity: Identity,
}

impl Badges {
    pub(super) fn of(issued: Issued) -> Self {
        let (Issued::Secret(key) | Issued::Badge(key)) = issued;
        Self { issued, mac: Hmac::new_from_slice(&key).expect("HMAC takes keys of any length") }
    }

    /// The credential of a member; of a reader's process: its own.
    pub(super) fn credential(&self, member: Member) -> Credential {
        let badge = match self.issued {
            Issued::Secret(_) => self.mac_of(member).finalize().into_bytes().into(),
            Issued::Badge(own) => own,
        };
        Credential { member, badge }
    }

    /// An answer to a reader, which gets no secret.
    fn without_secret(&self, answer: Answer) -> Answer {
        match answer {
            Answer::Registered { me, node_directory, mark, .. } => {
                let issued = Issued::Badge(self.credential(me).badge);
                Answer::Registered { me, node_directory, issued, mark }
            }
            answer => answer,
        }
    }

    fn mac_of(&self, member: Member) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(&bytes(member));
        mac
    }

    /// In constant time.
    fn check(&self, credential: &Credential) -> Result<Member> {
        if self.mac_of(credential.member).verify_slice(&credential.badge).is_ok() {
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
/// its own, beside this one.
pub(super) fn check(ask: &Ask, by: &Speaker) -> Result<()> {
    check_identity(ask, by)?;
    let speaker = by.member;
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

/// Whether the asker's certificate has the role that a question needs.
fn check_identity(ask: &Ask, by: &Speaker) -> Result<()> {
    let Speaker { member, identity } = by;
    match ask {
        Ask::PoolConfig | Ask::Status | Ask::NodeDirectory | Ask::Members | Ask::Withdraw(_) => {
            Ok(())
        }
        Ask::Register(intro) if identity.can_be(intro.role) => Ok(()),
        Ask::Register(intro) => identity.check_acts_as(intro.role, "registering as such a node"),
        Ask::Leave(_) if identity.roles.has(KeyRole::Admin) => Ok(()),
        Ask::Leave(_) => Err(identity.lacks(KeyRole::Admin, "asking a node to leave")),
        Ask::Ready { .. }
        | Ask::Join(_)
        | Ask::Renew(_)
        | Ask::MembershipState { .. }
        | Ask::Propose(..)
        | Ask::Revoke(_) => match member {
            Some(member) => identity.check_acts_as(member.node.role(), "a part in the membership"),
            // Refused for that reason.
            None => Ok(()),
        },
    }
}

impl NodeShared {
    /// Checks and returns the purpose of a connection of this peer.
    pub(super) fn admit(&self, hello: Hello, identity: Identity) -> Result<Admitted> {
        let check = |credential: &Credential| {
            let member = self.badges.check(credential)?;
            match identity.can_be(member.node.role()) {
                true => Ok(member),
                false => Err(identity
                    .lacks(KeyRole::for_node(member.node.role()), &format!("to be {member}"))),
            }
        };
        match hello {
            Hello::Ask { pool, credential } => {
                pool.map_or(Ok(()), |pool| self.check_pool(pool))?;
                let member = credential.as_ref().map(check).transpose()?;
                Ok(Admitted::Asking(Speaker { member, identity }))
            }
            Hello::Link { pool, credential, to, number, replaces } => {
                self.check_pool(pool)?;
                self.check_incarnation(to)?;
                let from = check(&credential)?;
                let reads_only = !identity.acts_as(from.node.role());
                Ok(Admitted::Link { from, number, replaces, reads_only })
            }
        }
    }

    /// Admits a link; the one that it replaces ends before.
    pub(super) fn enter(
        &self,
        token: u64,
        key: Key,
        replaces: u64,
        reads_only: bool,
    ) -> Result<Arc<Session>> {
        self.sessions.end(|m, n| (m, n) == (key.0, replaces));
        self.sessions.enter(key, (token, reads_only), || {
            // Checked under the lock of the sessions: a later revocation or close finds the link.
            if self.closing.load(Ordering::SeqCst) {
                let what = format!("{} is closing", self.me.node);
                return Err(Error::unreachable(what));
            }
            self.check_issuer(key.0)
        })
    }

    /// Answers a question that came from `ip`.
    pub(super) fn answer(self: &Arc<Self>, ask: Ask, by: &Speaker, ip: IpAddr) -> Answer {
        let answered = check(&ask, by).and_then(|()| match (ask, self.rendezvous.server()) {
            (Ask::Revoke(member), _) => {
                self.check_fences(by.member)?;
                self.revoke(member)?;
                Ok(Answer::Done)
            }
            (Ask::Leave(member), _) => self.ask_to_leave(member).map(|()| Answer::Done),
            (Ask::Status, _) => Ok(Answer::Status(Box::new(self.status()))),
            (ask, Some(membership_server)) => {
                let is_reader = matches!(&ask, Ask::Register(i) if !by.identity.acts_as(i.role));
                let answer = membership_server.answer(ask, ip, self.now());
                Ok(if is_reader { self.badges.without_secret(answer) } else { answer })
            }
            (_, None) => Err(Error::invalid(format!(
                "{} does not keep the membership of its pool: ask {}",
                self.me.node,
                self.rendezvous.place()
            ))),
        });
        answered.unwrap_or_else(|e| Answer::Refused((&e).into()))
    }

    fn check_fences(&self, speaker: Option<Member>) -> Result<()> {
        let Some(member) = speaker else { return Ok(()) };
        self.check_issuer(member)?;
        let is_first = member.node == NodeId::memory(0);
        let incarnations = match self.rendezvous.server() {
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
    use super::super::identity::KeyRoles;
    use super::super::wire::Introduction;
    use super::*;
    use crate::membership::Change;

    fn member(node: NodeId, incarnation: u32) -> Member {
        Member { node, incarnation }
    }

    #[test]
    fn a_badge_is_of_one_member_in_one_pool() {
        let (a, b) = (Badges::of(Issued::Secret([1; 32])), Badges::of(Issued::Secret([2; 32])));
        let me = member(NodeId::compute(3), 2);
        let credential = a.credential(me);
        assert_eq!(a.check(&credential).expect("its own"), me);
        assert!(b.check(&credential).is_err(), "another pool's");
        for other in [member(NodeId::compute(3), 3), member(NodeId::compute(4), 2)] {
            let e =
                a.check(&Credential { member: other, ..credential }).expect_err("another's badge");
            assert!(e.to_string().contains("has not registered"), "{e}");
        }
        let reader = Badges::of(Issued::Badge(credential.badge));
        assert_eq!(reader.credential(me).badge, credential.badge, "its own");
        assert!(reader.check(&credential).is_err(), "it knows no secret");
        let forged = reader.credential(member(NodeId::compute(4), 2));
        assert!(a.check(&forged).is_err(), "of another member");
        let guess = Credential { badge: [0; 32], ..credential };
        assert!(a.check(&guess).is_err());
    }

    fn by(member: Option<Member>, roles: impl Into<KeyRoles>) -> Speaker {
        Speaker { member, identity: Identity { pool: 7, roles: roles.into() } }
    }

    /// The questions that a member asks for itself.
    fn own(me: Member) -> [Ask; 5] {
        [
            Ask::Withdraw(me),
            Ask::Join(me),
            Ask::Renew(me),
            Ask::MembershipState { me, known: 0 },
            Ask::Propose(me, Change::Leave),
        ]
    }

    fn register(role: Role) -> Ask {
        let (wanted, listens) = (None, String::new());
        Ask::Register(Introduction {
            role,
            wanted,
            listens,
            region_bytes: 1,
            nonce: 1,
            journal: None,
        })
    }

    #[test]
    fn members_speak_for_themselves_alone() {
        let (me, other) = (member(NodeId::compute(0), 1), member(NodeId::compute(1), 1));
        let mn1 = member(NodeId::memory(1), 1);
        let check = |ask: &Ask, speaker| check(ask, &by(speaker, KeyRoles::ALL));
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

    #[test]
    fn each_role_asks_what_it_needs_and_no_more() {
        let (cn, mn) = (member(NodeId::compute(0), 1), member(NodeId::memory(1), 1));
        let allowed = |ask: &Ask, of, role: KeyRole| check(ask, &by(Some(of), role)).is_ok();
        for role in KeyRole::ALL {
            let is = |wanted: &[KeyRole]| wanted.contains(&role);
            assert!(allowed(&Ask::Status, cn, role) && allowed(&Ask::PoolConfig, cn, role));
            assert_eq!(allowed(&Ask::Leave(cn), cn, role), is(&[KeyRole::Admin]), "{role}");
            assert_eq!(
                allowed(&register(Role::Compute), cn, role),
                is(&[KeyRole::Compute, KeyRole::Reader]),
                "{role}"
            );
            for node in [Role::Memory, Role::Journal] {
                assert_eq!(allowed(&register(node), cn, role), is(&[KeyRole::Memory]), "{role}");
            }
            for (of, needed) in [(cn, KeyRole::Compute), (mn, KeyRole::Memory)] {
                for ask in own(of).into_iter().skip(1).chain([Ask::Revoke(cn)]) {
                    assert_eq!(allowed(&ask, of, role), role == needed, "{role}: {ask:?}");
                }
            }
            let ready = Ask::Ready { me: mn, on_chip_bytes: 0 };
            assert_eq!(allowed(&ready, mn, role), is(&[KeyRole::Memory]), "{role}");
        }
        let e = check(&Ask::Leave(cn), &by(None, KeyRole::Reader)).expect_err("no administrator");
        assert!(e.to_string().contains("dmtree keys issue --role admin"), "{e}");
    }
}
