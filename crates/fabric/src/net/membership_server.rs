//! The membership server, which runs in the first memory node: the pool config, the node directory,
//! and the membership.
//!
//! *Registration.* A node asks for a number of its role and gets an incarnation with it, one higher
//! than that of the number's former owner. The nonce of the request makes a repeated registration
//! idempotent: an answer that was lost costs no number. The server also sends the secret that
//! badges are computed with (`roles.rs`).
//!
//! *Reuse of numbers.* The number of a compute node is free again when its former incarnation has
//! withdrawn, when the membership allows it (the death of that incarnation has proceeded far
//! enough), or when that incarnation registered and did not join in time. The number of a memory
//! node that was once ready is never reused, because its contents are lost with it. A memory node
//! that ended before it was ready has held no data: its number is reused after it withdrew, or
//! after the time limit.
//!
//! *Growth.* A memory node that registers with a complete pool is added: it gets a number beyond
//! those of the pool config. Nothing is allocated there before every compute node knows it
//! ([`crate::membership`]).
//!
//! *Opening.* The pool opens once all memory nodes are ready. Until then registration of compute
//! nodes fails with a retryable error that names the state. So it is with journal nodes,
//! of which one comes back in another incarnation when the former one is away.
//!
//! *Membership.* The server keeps the rules ([`InProcess`]) and judges leases by the clock of its
//! own node. The caller's clock is never used: clocks of processes are not comparable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::data_path::{Common, DataPath};
use super::journal_parts::JournalParts;
use super::node_directory::{NodeDirectory, NodeEntry};
use super::roles::Badges;
use super::status::MembershipReport;
use super::wire::{Answer, Ask, Introduction, PoolId, ShardMark};
use crate::addr::{NodeId, Role};
use crate::error::{Error, Result};
#[cfg(feature = "etcd")]
use crate::membership::StoredRules;
use crate::membership::{InProcess, Member, MemberPhase, Membership, MembershipState};
use crate::sync::locked;
use crate::transport::Nanos;

/// The composition of a pool, and the parameters of the layer above, which are opaque to the
/// fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// How many memory nodes it begins with. It opens once all are ready, and can grow from then
    /// on.
    pub memory_nodes: u16,
    /// How many compute nodes it can have at a time.
    pub compute_nodes: u16,
    /// How many journal nodes it has. It opens once all are ready.
    pub journal_nodes: u16,
    /// Whether writes go on without a journal node that is away.
    pub skips_journal: bool,
    /// The data path of its verbs.
    pub data_path: DataPath,
    /// For the layer above.
    pub options: Vec<u8>,
}

/// A compute node that has registered and does not join within this time, ns, has given its number
/// up; so has a memory node that is not ready within it.
const JOINS_WITHIN_NS: Nanos = 30_000_000_000;

/// A pool grows to so many memory nodes: the shortest addresses that an index stores have 8 bits
/// for them.
const GROWS_TO: u16 = 256;

pub(super) struct MembershipServer {
    pub(super) pool: PoolId,
    pool_config: PoolConfig,
    common: Common,
    badges: Badges,
    pub(super) membership: Arc<InProcess>,
    registrations: Mutex<Registrations>,
    /// Taken under the lock of the registrations.
    journal: Mutex<JournalParts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Registrations {
    node_directory: NodeDirectory,
    /// The members that got a number, by the nonce of their registration.
    nonces: BTreeMap<u64, Member>,
    /// Memory nodes that can be used.
    ready: BTreeSet<NodeId>,
    /// When a node registered.
    #[serde(skip)]
    since: BTreeMap<Member, Nanos>,
    /// Nodes that have registered and could not start.
    withdrawn: BTreeSet<Member>,
    /// What the directories of journal nodes are.
    marks: BTreeMap<NodeId, ShardMark>,
}

/// What of a membership server is stored where several processes are it in turns.
#[cfg(feature = "etcd")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredServer {
    rules: StoredRules,
    registrations: Registrations,
    journal: Option<JournalParts>,
}

#[cfg(feature = "etcd")]
impl StoredServer {
    pub(super) fn rules(&self) -> &StoredRules {
        &self.rules
    }

    pub(super) fn state(&self) -> &MembershipState {
        &self.rules.state
    }

    pub(super) fn node_directory(&self) -> &NodeDirectory {
        &self.registrations.node_directory
    }
}

/// What judges members, as the agent of a memory node sees it.
pub(super) trait Judge {
    /// The newest state.
    fn latest(&self) -> Arc<MembershipState>;
    /// Where the nodes are.
    fn node_directory(&self) -> NodeDirectory;
    /// The process of a member has ended.
    fn lose(&self, member: Member);
}

impl Judge for MembershipServer {
    fn latest(&self) -> Arc<MembershipState> {
        self.membership.latest()
    }

    fn node_directory(&self) -> NodeDirectory {
        MembershipServer::node_directory(self)
    }

    fn lose(&self, member: Member) {
        self.membership.lose(member);
    }
}

impl Registrations {
    /// How many nodes of a role can be used.
    fn ready_of(&self, role: Role) -> u16 {
        self.ready.iter().filter(|node| node.role() == role).count() as u16
    }

    /// Whether a node's time to start is over since it registered.
    fn is_overdue(&self, m: Member, now: Nanos) -> bool {
        self.since.get(&m).copied().unwrap_or(0) + JOINS_WITHIN_NS < now
    }
}

impl MembershipServer {
    pub(super) fn new(
        pool: PoolId,
        pool_config: PoolConfig,
        common: Common,
        badges: Badges,
        membership: Arc<InProcess>,
    ) -> Self {
        membership.set_agents(pool_config.memory_nodes + pool_config.journal_nodes);
        membership.set_skips_journal(pool_config.skips_journal);
        let journal = Mutex::new(JournalParts::new(pool_config.journal_nodes));
        let registrations = Mutex::default();
        Self { pool, pool_config, common, badges, membership, registrations, journal }
    }

    /// The same with what is stored; `since` says when members registered.
    #[cfg(feature = "etcd")]
    pub(super) fn restored(self, stored: &StoredServer, since: &BTreeMap<Member, Nanos>) -> Self {
        let mut registrations = stored.registrations.clone();
        registrations.since.clone_from(since);
        *locked(&self.registrations) = registrations;
        if let Some(journal) = &stored.journal {
            *locked(&self.journal) = journal.clone();
        }
        self
    }

    /// What is to be stored.
    #[cfg(feature = "etcd")]
    pub(super) fn stored(&self) -> StoredServer {
        let mut registrations = locked(&self.registrations).clone();
        registrations.since.clear();
        StoredServer {
            rules: self.membership.rules().stored(),
            registrations,
            journal: Some(locked(&self.journal).clone()),
        }
    }

    pub(super) fn node_directory(&self) -> NodeDirectory {
        locked(&self.registrations).node_directory.clone()
    }

    /// For operators.
    pub(super) fn report(&self, now: Nanos) -> MembershipReport {
        let (node_directory, ready) = {
            let registrations = locked(&self.registrations);
            (registrations.node_directory.clone(), registrations.ready_of(Role::Memory))
        };
        MembershipReport {
            state: (*self.membership.latest()).clone(),
            leases: self.membership.leases(now),
            node_directory,
            memory_nodes: self.pool_config.memory_nodes.max(ready),
            ready,
            compute_nodes: self.pool_config.compute_nodes,
            journal_nodes: self.pool_config.journal_nodes,
        }
    }

    /// Enters the first memory node itself.
    pub(super) fn enter(&self, entry: NodeEntry) {
        locked(&self.registrations).node_directory.put(entry);
    }

    /// A memory node can be used from now on; it exposes so much on-chip memory.
    pub(super) fn ready(&self, me: Member, on_chip_bytes: u32) {
        let mut registrations = locked(&self.registrations);
        registrations.ready.insert(me.node);
        registrations.node_directory.set_on_chip(me, on_chip_bytes);
    }

    /// Takes the number of a node back that has not begun to be one.
    fn withdraw(&self, me: Member) -> Result<()> {
        let mut registrations = locked(&self.registrations);
        let has_begun = registrations.ready.contains(&me.node)
            || self.membership.latest().phase(me).is_some()
            || registrations.node_directory.find(me.node).is_none_or(|p| p.member != me);
        if has_begun {
            return Err(Error::invalid(format!("{me} cannot withdraw: it is there, or never was")));
        }
        registrations.withdrawn.insert(me);
        Ok(())
    }

    fn members(&self) -> Vec<Member> {
        let state = self.membership.latest();
        let there = state.members.iter().filter(|m| m.phase != MemberPhase::Gone);
        there.map(|m| m.member).collect()
    }

    /// Answers a question that came from `ip`.
    pub(super) fn answer(&self, ask: Ask, ip: IpAddr, now: Nanos) -> Answer {
        self.try_answer(ask, ip, now).unwrap_or_else(|e| Answer::Refused((&e).into()))
    }

    pub(super) fn try_answer(&self, ask: Ask, ip: IpAddr, now: Nanos) -> Result<Answer> {
        let m = &*self.membership;
        Ok(match ask {
            Ask::PoolConfig => {
                let (common, options) = (self.common, self.pool_config.options.clone());
                Answer::PoolConfig { pool: self.pool, common, options }
            }
            Ask::Register(introduction) => {
                let me = self.register(introduction, ip, now)?;
                let mark = locked(&self.registrations).marks.get(&me.node).copied();
                Answer::Registered {
                    me,
                    mark,
                    node_directory: self.node_directory(),
                    issued: self.badges.issued,
                }
            }
            Ask::Ready { me, on_chip_bytes } => {
                self.check_registered(me)?;
                if me.node.role() == Role::Compute {
                    return Err(Error::invalid(format!("{me} is no memory node to be ready")));
                }
                self.ready(me, on_chip_bytes);
                Answer::Done
            }
            Ask::Withdraw(me) => {
                self.withdraw(me)?;
                Answer::Done
            }
            Ask::NodeDirectory => Answer::NodeDirectory(self.node_directory()),
            Ask::Members => Answer::Members(self.members()),
            Ask::Join(me) => {
                self.check_registered(me)?;
                Answer::Lease(ready(m.join(me, now))?)
            }
            Ask::Renew(me) => Answer::Lease(ready(m.renew(me, now))?),
            Ask::MembershipState { me, known } => {
                let state = ready(m.state(me, now))?;
                Answer::MembershipState((state.epoch != known).then(|| (*state).clone()))
            }
            Ask::Propose(me, change) => {
                ready(m.propose(me, change, now))?;
                Answer::Done
            }
            Ask::Revoke(_) | Ask::Status | Ask::Leave(_) => {
                return Err(Error::invalid("hosts answer that, not the membership server"));
            }
        })
    }

    /// Fails for a member that never registered, and for a memory node that has lost its number to
    /// another one.
    fn check_registered(&self, me: Member) -> Result<()> {
        let registrations = locked(&self.registrations);
        let newest = registrations.node_directory.find(me.node).map(|p| p.member.incarnation);
        match newest {
            Some(n) if n > me.incarnation && me.node.role() != Role::Compute => {
                Err(Error::revoked(format!(
                    "{me} was not ready in time, or away, and its number was reassigned: start it again"
                )))
            }
            Some(n) if n >= me.incarnation => Ok(()),
            _ => Err(Error::invalid(format!("{me} has not registered with this pool"))),
        }
    }

    /// Gives a node its number and its incarnation.
    fn register(&self, intro: Introduction, ip: IpAddr, now: Nanos) -> Result<Member> {
        let mut registrations = locked(&self.registrations);
        if let Some(me) = registrations.nonces.get(&intro.nonce) {
            return Ok(*me);
        }
        let node = match intro.role {
            Role::Memory => self.memory_number(&registrations, &intro, now)?,
            Role::Compute => self.compute_number(&registrations, &intro, now)?,
            Role::Journal => self.journal_number(&mut registrations, &intro, now)?,
        };
        let former = registrations.node_directory.find(node).map(|p| p.member);
        let me = Member { node, incarnation: former.map_or(1, |m| m.incarnation + 1) };
        if let Some(former) = former.filter(|m| m.node.role() == Role::Memory) {
            // It was never ready: the pool has not opened, and no compute node has posted to it.
            self.membership.forget_memory(former);
        }
        // No node asks again for a former incarnation of it.
        registrations.nonces.retain(|_, m| m.node != node);
        registrations.since.retain(|m, _| m.node != node);
        registrations.withdrawn.retain(|m| m.node != node);
        registrations.nonces.insert(intro.nonce, me);
        registrations.since.insert(me, now);
        let address = seen_from(&intro.listens, ip);
        let region_bytes = intro.region_bytes;
        registrations.node_directory.put(NodeEntry {
            member: me,
            address,
            region_bytes,
            on_chip_bytes: 0,
        });
        Ok(me)
    }

    fn memory_number(
        &self,
        registrations: &Registrations,
        intro: &Introduction,
        now: Nanos,
    ) -> Result<NodeId> {
        // One that has been ready has held data. A node that ended between its registration and
        // that moment has held none.
        let holds = |p: &NodeEntry| {
            registrations.ready.contains(&p.member.node)
                || !(registrations.withdrawn.contains(&p.member)
                    || registrations.is_overdue(p.member, now))
        };
        let taken =
            |n: &u16| registrations.node_directory.find(NodeId::memory(*n)).is_some_and(holds);
        let all = self.pool_config.memory_nodes;
        let begun = (0..all).filter(|n| registrations.ready.contains(&NodeId::memory(*n)));
        if intro.wanted.is_none_or(|n| n >= all) && begun.count() == usize::from(all) {
            return self.added_number(intro, taken);
        }
        if let Some(n) = intro.wanted.filter(|n| *n >= all) {
            return Err(Error::invalid(format!(
                "the pool has no memory node {n} yet: they are numbered 0 to {}, and more are added when these are there",
                all.saturating_sub(1)
            )));
        }
        let numbers = intro.wanted.map_or(0..all, |n| n..n + 1);
        let begins = |n: &u16| !registrations.ready.contains(&NodeId::memory(*n));
        let n = numbers.clone().find(|n| !taken(n));
        n.map(NodeId::memory).ok_or_else(|| match { numbers }.find(begins) {
            Some(n) => Error::busy(format!(
                "mn{n} has registered and is not ready yet: wait for it, or for its end"
            )),
            // Without a wanted number, all have begun only if the pool is complete: it grows then.
            None => gone(intro.wanted.unwrap_or(all)),
        })
    }

    /// A number beyond those of the pool config. Compute nodes may know a member from the moment
    /// at which it is in the membership, so its number has no other region from then on.
    fn added_number(
        &self,
        intro: &Introduction,
        is_taken: impl Fn(&u16) -> bool,
    ) -> Result<NodeId> {
        let latest = self.membership.latest();
        let is_free = |n: &u16| !is_taken(n) && latest.memory_node(NodeId::memory(*n)).is_none();
        let all = self.pool_config.memory_nodes;
        let full = || Error::full(format!("a pool grows to {GROWS_TO} memory nodes at most"));
        match intro.wanted {
            Some(n) if n >= GROWS_TO.max(all) => Err(full()),
            Some(n) => is_free(&n).then_some(n).ok_or_else(|| gone(n)),
            None => (all..GROWS_TO).find(is_free).ok_or_else(full),
        }
        .map(NodeId::memory)
    }

    fn compute_number(
        &self,
        registrations: &Registrations,
        intro: &Introduction,
        now: Nanos,
    ) -> Result<NodeId> {
        let PoolConfig { memory_nodes, journal_nodes, .. } = self.pool_config;
        for (all, role, name) in
            [(memory_nodes, Role::Memory, "memory"), (journal_nodes, Role::Journal, "journal")]
        {
            let there = registrations.ready_of(role);
            if there < all {
                return Err(Error::busy(format!(
                    "the pool waits for its {name} nodes: {there} of {all} are there"
                )));
            }
        }
        let is_free = |n: u16| self.is_free(registrations, NodeId::compute(n), now);
        let all = 0..self.pool_config.compute_nodes;
        if let Some(n) = intro.wanted {
            if !all.contains(&n) {
                return Err(Error::invalid(format!(
                    "the pool has no compute node {n}: they are numbered 0 to {}",
                    self.pool_config.compute_nodes.saturating_sub(1)
                )));
            }
            return match is_free(n) {
                true => Ok(NodeId::compute(n)),
                false => Err(Error::busy(format!(
                    "cn{n} is living: stop it, wait for the end of its lease, or ask for another number"
                ))),
            };
        }
        let unused =
            all.clone().find(|n| registrations.node_directory.find(NodeId::compute(*n)).is_none());
        let n = unused.or_else(|| all.clone().find(|n| is_free(*n)));
        n.map(NodeId::compute).ok_or_else(|| {
            Error::busy(format!(
                "all {} compute nodes of the pool are there: start it with more, or stop one",
                self.pool_config.compute_nodes
            ))
        })
    }

    /// The part of the journal that a directory is decides the number.
    fn journal_number(
        &self,
        registrations: &mut Registrations,
        intro: &Introduction,
        now: Nanos,
    ) -> Result<NodeId> {
        let directory = intro
            .journal
            .ok_or_else(|| Error::invalid("a journal node says what its directory is"))?;
        let mut journal = locked(&self.journal);
        let is_free = |n| self.check_free(registrations, NodeId::journal(n), now);
        let mark = journal.enter(directory, intro.wanted, self.pool, is_free)?;
        let node = NodeId::journal(mark.shard);
        // Of a part that was there before, the membership knows what it lacks.
        let is_known = registrations.node_directory.find(node).is_some();
        for n in (0..mark.shards).filter(|n| !is_known && mark.gaps >> n & 1 == 1) {
            self.membership.lacks(NodeId::journal(n));
        }
        if directory.replaces {
            self.membership.lacks(node);
        }
        registrations.marks.insert(node, mark);
        Ok(node)
    }

    /// Whether the next incarnation of a journal node may begin.
    fn check_free(&self, registrations: &Registrations, node: NodeId, now: Nanos) -> Result<()> {
        let Some(entry) = registrations.node_directory.find(node) else { return Ok(()) };
        let latest = self.membership.latest();
        let is_free = match latest.memory_node(node).filter(|m| m.member == entry.member) {
            Some(m) => m.presence.is_away(),
            None => {
                registrations.withdrawn.contains(&entry.member)
                    || registrations.is_overdue(entry.member, now)
            }
        };
        match is_free {
            true => Ok(()),
            false => Err(Error::busy(format!(
                "{node} is served by the process at {}: end that one, or name another directory",
                entry.address
            ))),
        }
    }

    /// Whether no member with a number is alive or about to join. The next one with this number
    /// continues the death of a former one.
    fn is_free(&self, registrations: &Registrations, node: NodeId, now: Nanos) -> bool {
        let Some(entry) = registrations.node_directory.find(node) else { return true };
        if registrations.withdrawn.contains(&entry.member) {
            return true;
        }
        let free = self.membership.is_number_free(entry.member);
        free.unwrap_or_else(|| registrations.is_overdue(entry.member, now))
    }
}

/// Why a memory node does not get the number that it asked for.
fn gone(n: u16) -> Error {
    Error::exists(format!(
        "mn{n} is there already, or has been: the contents of a memory node are lost with it; join without a number to add one"
    ))
}

/// The address at which others reach a node, from its announced address and from `ip`, the source
/// of its connection.
fn seen_from(listens: &str, ip: IpAddr) -> String {
    match listens.parse::<std::net::SocketAddr>() {
        Ok(at) if at.ip().is_unspecified() => std::net::SocketAddr::new(ip, at.port()).to_string(),
        _ => listens.to_string(),
    }
}

/// The membership inside this process answers at once.
pub(super) fn ready<T>(mut answer: crate::membership::MembershipFuture<'_, T>) -> Result<T> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match answer.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => {
            Err(Error::busy("the membership does not answer now: ask again"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::roles::Issued;
    use super::*;
    use crate::error::ErrorKind;
    use crate::membership::LeaseParameters;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn membership_server(memory_nodes: u16, compute_nodes: u16) -> MembershipServer {
        let data_path = DataPath::Frames;
        let pool_config = PoolConfig {
            memory_nodes,
            compute_nodes,
            journal_nodes: 0,
            skips_journal: false,
            data_path,
            options: vec![1, 2],
        };
        let common = Common { data_path, mtu: 0, cores: 1 };
        let membership = Arc::new(InProcess::new(LeaseParameters::default()));
        let r = MembershipServer::new(
            PoolId(7),
            pool_config,
            common,
            Badges::of(Issued::Secret([1; 32])),
            membership,
        );
        let member = Member { node: NodeId::memory(0), incarnation: 1 };
        let (address, region_bytes) = (String::new(), 1 << 20);
        r.enter(NodeEntry { member, address, region_bytes, on_chip_bytes: 0 });
        r.ready(member, 0);
        r
    }

    fn ask(
        r: &MembershipServer,
        role: Role,
        wanted: Option<u16>,
        nonce: u64,
        now: Nanos,
    ) -> Result<Member> {
        let listens = "0.0.0.0:9".to_string();
        let intro =
            Introduction { role, wanted, listens, region_bytes: 4096, nonce, journal: None };
        r.register(intro, HERE, now)
    }

    #[test]
    fn numbers_are_given_once_and_repeated_questions_get_the_same() {
        let r = membership_server(2, 2);
        let early = ask(&r, Role::Compute, None, 1, 0).unwrap_err();
        assert!(early.is_retryable() && early.to_string().contains("1 of 2"), "{early}");
        let mn1 = ask(&r, Role::Memory, None, 2, 0).expect("room");
        assert_eq!((mn1.node, mn1.incarnation), (NodeId::memory(1), 1));
        assert_eq!(ask(&r, Role::Memory, None, 2, 0).expect("the same"), mn1);
        assert!(ask(&r, Role::Compute, None, 1, 0).is_err(), "it is not ready");
        r.ready(mn1, 0);
        let lost = ask(&r, Role::Memory, Some(1), 3, 0).unwrap_err();
        assert!(lost.to_string().contains("lost"), "{lost}");
        let cn0 = ask(&r, Role::Compute, None, 4, 0).expect("room");
        let cn1 = ask(&r, Role::Compute, None, 5, 0).expect("room");
        assert_ne!(cn0, cn1);
        assert!(ask(&r, Role::Compute, None, 6, 0).is_err());
        let node_directory = r.node_directory();
        assert_eq!(node_directory.find(cn0.node).expect("entered").address, "127.0.0.1:9");
    }

    /// Regression: a node that could not register its memory with its NIC kept its number, and the
    /// pool waited for it for ever.
    #[test]
    fn a_node_that_could_not_start_gives_its_number_back() {
        let r = membership_server(2, 1);
        let withdraw = |m| r.try_answer(Ask::Withdraw(m), HERE, 0);
        let mn1 = ask(&r, Role::Memory, None, 1, 0).expect("room");
        assert!(ask(&r, Role::Memory, None, 2, 0).is_err(), "both are there");
        withdraw(mn1).expect("it has not begun");
        let again = ask(&r, Role::Memory, None, 3, 0).expect("free again");
        assert_eq!((again.node, again.incarnation), (mn1.node, 2));
        assert!(withdraw(mn1).is_err(), "a former incarnation");
        r.ready(again, 0);
        assert!(withdraw(again).is_err(), "it is in use");
        let cn0 = ask(&r, Role::Compute, None, 4, 0).expect("room");
        withdraw(cn0).expect("it has not begun");
        let cn0 = ask(&r, Role::Compute, None, 5, 0).expect("free again");
        r.try_answer(Ask::Join(cn0), HERE, 1).expect("joins");
        assert!(withdraw(cn0).is_err(), "it is alive");
    }

    /// Regression: its number stayed taken, and the pool waited for it for ever.
    #[test]
    fn a_memory_node_killed_before_it_is_ready_gives_its_number_up() {
        for has_joined in [false, true] {
            let r = membership_server(2, 1);
            let mn1 = ask(&r, Role::Memory, Some(1), 1, 0).expect("room");
            if has_joined {
                r.try_answer(Ask::Join(mn1), HERE, 0).expect("it begins");
            }
            let early = ask(&r, Role::Memory, Some(1), 2, JOINS_WITHIN_NS).unwrap_err();
            assert!(early.is_retryable(), "it may still come: {early}");
            let late = JOINS_WITHIN_NS + 1;
            let next = ask(&r, Role::Memory, None, 3, late).expect("given up");
            assert_eq!((next.node, next.incarnation), (mn1.node, 2));
            // The former node was only slow.
            for from_former in [Ask::Join(mn1), Ask::Ready { me: mn1, on_chip_bytes: 0 }] {
                let e = r.try_answer(from_former, HERE, late).map(|_| ()).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Revoked, "{e}");
            }
            r.try_answer(Ask::Join(next), HERE, late).expect("it begins");
            r.try_answer(Ask::Ready { me: next, on_chip_bytes: 0 }, HERE, late).expect("begins");
            let after = ask(&r, Role::Memory, Some(1), 4, 9 * JOINS_WITHIN_NS).unwrap_err();
            assert_eq!(after.kind(), ErrorKind::Exists, "it has held data: {after}");
        }
    }

    #[test]
    fn a_complete_pool_grows_by_numbers_that_are_not_used_again() {
        let r = membership_server(2, 1);
        let early = ask(&r, Role::Memory, Some(2), 1, 0).unwrap_err();
        assert_eq!(early.kind(), ErrorKind::InvalidArgument, "it is not complete: {early}");
        let mn1 = ask(&r, Role::Memory, None, 2, 0).expect("room");
        r.ready(mn1, 0);
        let mn2 = ask(&r, Role::Memory, None, 3, 0).expect("the pool grows");
        let mn3 = ask(&r, Role::Memory, None, 4, 0).expect("two at a time");
        assert_eq!((mn2.node, mn3.node), (NodeId::memory(2), NodeId::memory(3)));
        assert_eq!(ask(&r, Role::Memory, None, 3, 0).expect("the same"), mn2);
        assert_eq!(r.report(0).memory_nodes, 2, "they are not there yet");
        // mn2 has joined and is killed before it is ready: compute nodes may know its region.
        r.try_answer(Ask::Join(mn2), HERE, 0).expect("it begins");
        let late = JOINS_WITHIN_NS + 1;
        let next = ask(&r, Role::Memory, None, 5, late).expect("mn3 never joined");
        assert_eq!((next.node, next.incarnation), (NodeId::memory(3), 2));
        assert_eq!(ask(&r, Role::Memory, None, 6, late).expect("room").node, NodeId::memory(4));
        let used = ask(&r, Role::Memory, Some(2), 7, late).unwrap_err();
        assert_eq!(used.kind(), ErrorKind::Exists, "{used}");
        let far = ask(&r, Role::Memory, Some(9000), 8, late).unwrap_err();
        assert!(far.to_string().contains("grows to 256"), "{far}");
        r.ready(next, 0);
        assert_eq!(r.report(late).memory_nodes, 3);
    }

    #[test]
    fn a_number_is_free_again_after_a_death_or_when_its_node_does_not_join() {
        let r = membership_server(1, 1);
        let cn0 = ask(&r, Role::Compute, None, 1, 0).expect("room");
        assert!(ask(&r, Role::Compute, None, 2, 1_000).is_err(), "it may still join");
        let again = ask(&r, Role::Compute, None, 3, JOINS_WITHIN_NS + 1).expect("given up");
        assert_eq!((again.node, again.incarnation), (cn0.node, 2));
        r.try_answer(Ask::Join(again), HERE, JOINS_WITHIN_NS + 2).expect("joins");
        assert!(ask(&r, Role::Compute, Some(0), 4, 10 * JOINS_WITHIN_NS).is_err(), "it is alive");
    }
}
