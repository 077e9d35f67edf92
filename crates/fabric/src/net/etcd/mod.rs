//! A membership that etcd keeps: it lives on when any process of the pool ends.
//!
//! Keys below `/dmtree/POOL/`:
//!
//! | key | what | changed |
//! |---|---|---|
//! | `foundation` | id, config, data path, secret and times of the pool | created once |
//! | `state` | membership, numbers and incarnations, node directory | if its revision stands |
//! | `live/NODE.INCARNATION` | the member holds a lease | bound to a lease of etcd |
//!
//! Every process applies the rules of the membership server to the stored state, by its own clock
//! (`membership/rules/stored.rs`), and stores the outcome if no other process has changed the state
//! meanwhile; otherwise it begins anew. Rules and registrations are those of the membership server
//! (`membership_server.rs`), which a process makes of what is stored for each question.
//!
//! *Leases.* A holder counts on its lease from the moment at which it asked, less the drift; etcd
//! keeps the key for two seconds at least. A member is dead when its key has been away for a
//! quarter of a lease, as a process sees that looks all the time: so members that could not reach
//! etcd, or saw it restart, renew first. A member that stands in the state may put its key again.
//!
//! *Lost answers.* A transaction with a lost answer may have been executed. All questions are
//! idempotent, and the next attempt looks first.
//!
//! Invariants. The state has no time in it. A key of a member that needs no lease any more is
//! deleted with the change that says so. A death is stored only if the key is still away.

mod gateway;
mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::io::Net;
use super::membership_server::{Judge, MembershipServer, StoredServer, ready};
use super::node_directory::{NodeDirectory, NodeEntry};
use super::roles::{Badges, Issued};
use super::start::again_until;
use super::status::MembershipReport;
use super::wire::{Answer, Ask};
use crate::error::{Error, ErrorKind, Result};
use crate::membership::{
    Change, InProcess, Member, MembershipRules, MembershipState, News, lessees,
};
use crate::sync::locked;
use crate::transport::Nanos;

use gateway::{Gateway, If, LeaseId, Pair, Then};
pub(super) use stored::Foundation;

/// How an address of a pool in etcd begins.
const SCHEME: &str = "etcd://";
/// Longest request to one server.
const REQUEST_WITHIN: Duration = Duration::from_millis(500);
/// Longest time for the foundation of a pool: etcd may be about to begin.
const FOUNDS_WITHIN_NS: Nanos = 5_000_000_000;
/// How often a transaction is tried while other processes change the state.
const ATTEMPTS: usize = 64;
/// Most servers of an address, and most bytes of a pool's name.
const MAX_SERVERS: usize = 16;
const MAX_NAME_BYTES: usize = 64;
/// The part of a lease for which a key may be away.
const GRACE_ONE_IN: u64 = 4;

/// Where a pool is kept in etcd: `etcd://HOST:PORT,HOST:PORT/POOL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    servers: Vec<String>,
    name: String,
}

impl Address {
    /// An address, if it is one of etcd.
    pub(super) fn parse(text: &str) -> Option<Result<Self>> {
        let rest = text.strip_prefix(SCHEME)?;
        let refuse = |what: &str| {
            Error::invalid(format!(
                "{text:?} {what}: an address in etcd is etcd://HOST:PORT,HOST:PORT/POOL"
            ))
        };
        let Some((servers, name)) = rest.split_once('/') else {
            return Some(Err(refuse("names no pool")));
        };
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        let is_server = |s: &String| {
            s.rsplit_once(':').is_some_and(|(host, port)| {
                let is_host = |c: char| c.is_ascii_alphanumeric() || ".-[]:_".contains(c);
                !host.is_empty() && host.chars().all(is_host) && port.parse::<u16>().is_ok()
            })
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        Some(if servers.len() > MAX_SERVERS || !servers.iter().all(is_server) {
            Err(refuse("names a server that is no HOST:PORT, or too many"))
        } else if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_name) {
            Err(refuse("has a name of letters, digits, dots and dashes, of 64 bytes at most"))
        } else {
            Ok(Self { servers, name: name.to_owned() })
        })
    }

    fn prefix(&self) -> String {
        format!("/dmtree/{}/", self.name)
    }
}

/// A process's view of a membership in etcd.
pub(super) struct EtcdMembership {
    net: Arc<dyn Net>,
    gateway: Gateway,
    servers: Vec<String>,
    prefix: String,
    pub(super) foundation: Foundation,
    badges: Badges,
    local: Mutex<Local>,
}

/// What a process knows by itself.
struct Local {
    /// The rules, with the times at which this process saw what is asked for.
    rules: MembershipRules,
    /// When it saw a member registered.
    since: BTreeMap<Member, Nanos>,
    /// Since when the key of a member has been away.
    absent: BTreeMap<Member, Nanos>,
    looked_at: Nanos,
    /// The leases of this process's members.
    leases: BTreeMap<Member, LeaseId>,
    report: Option<MembershipReport>,
    news: Vec<News>,
}

/// What etcd has at one revision.
struct Snapshot {
    stored: StoredServer,
    revision: u64,
    live: BTreeMap<Member, String>,
}

impl EtcdMembership {
    /// Founds a pool with `first` as its first memory node.
    ///
    /// # Errors
    /// `Exists` when there is one of this name; with `anew`, only while a process of it holds a
    /// lease. Those of etcd.
    pub(super) fn found(
        net: &Arc<dyn Net>,
        at: &Address,
        foundation: Foundation,
        first: NodeEntry,
        anew: bool,
    ) -> Result<Self> {
        let this = Self::of(net, at, foundation);
        let address = this.reached_at(&first.address)?;
        let first = NodeEntry { address, ..first };
        let server = this.foundation.server(&this.badges);
        server.enter(first);
        let keys = [this.key("foundation"), this.key("state"), this.key("live/")];
        let when = match anew {
            true => If::NoneBelow(&keys[2]),
            false => If::Unchanged(&keys[0], 0),
        };
        let then = [
            Then::Put(&keys[0], this.foundation.encode()?),
            Then::Put(&keys[1], stored::encode(&server.stored())?),
        ];
        // The answer may be lost: the next attempt finds the foundation that is there.
        let until = net.now() + FOUNDS_WITHIN_NS;
        let attempt = async || this.gateway.transact(&[when], &then);
        let done = ready(Box::pin(again_until(&**net, until, None, attempt)))?;
        let is_ours = done.is_some() || this.snapshot().is_ok();
        match (is_ours, anew) {
            (true, _) => Ok(this),
            (false, false) => Err(Error::exists(format!(
                "etcd has a pool {:?} already: join it, choose another name, or found it anew with --anew when all of its processes have ended",
                at.name
            ))),
            (false, true) => Err(Error::exists(format!(
                "processes of the pool {:?} hold leases in etcd: end them first, or wait for the ends of their leases",
                at.name
            ))),
        }
    }

    /// Opens the membership of a pool that was founded.
    ///
    /// # Errors
    /// `Unreachable` when there is no such pool (yet), or no server answers.
    pub(super) fn open(net: &Arc<dyn Net>, at: &Address) -> Result<Self> {
        let gateway = Gateway::new(at.servers.clone(), REQUEST_WITHIN);
        let key = format!("{}foundation", at.prefix());
        let pairs = every(&at.servers, |_| gateway.range(&at.prefix()))?;
        let Some(foundation) = pairs.iter().find(|pair| pair.key == key) else {
            return Err(Error::unreachable(format!(
                "etcd at {} has no pool {:?}: found it with `dmtree memnode --membership`, or check the name",
                gateway.names(),
                at.name
            )));
        };
        Ok(Self::of(net, at, Foundation::decode(&foundation.value)?))
    }

    fn of(net: &Arc<dyn Net>, at: &Address, foundation: Foundation) -> Self {
        let badges = Badges::of(Issued::Secret(foundation.secret));
        let local = Local {
            rules: MembershipRules::new(foundation.lease_parameters()),
            since: BTreeMap::new(),
            absent: BTreeMap::new(),
            looked_at: 0,
            leases: BTreeMap::new(),
            report: None,
            news: Vec::new(),
        };
        Self {
            net: net.clone(),
            gateway: Gateway::new(at.servers.clone(), REQUEST_WITHIN),
            servers: at.servers.clone(),
            prefix: at.prefix(),
            foundation,
            badges,
            local: Mutex::new(local),
        }
    }

    /// Where it is kept, for operators.
    pub(super) fn place(&self) -> String {
        let name = self.prefix.trim_start_matches("/dmtree/").trim_end_matches('/');
        format!("{SCHEME}{}/{name}", self.gateway.names())
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn live_key(&self, m: Member) -> String {
        self.key(&format!("live/{}.{}", m.node.bits(), m.incarnation))
    }

    /// Answers a question of a member of this process, or of one that is about to be.
    ///
    /// # Errors
    /// Those of the membership server; `Unreachable`, naming etcd, when no server answers.
    pub(super) fn ask(&self, ask: &Ask) -> Result<Answer> {
        match ask {
            Ask::Join(me) => {
                let lease = self.lease_of(*me)?.0;
                self.transact(ask, Some((*me, lease)))
            }
            Ask::Renew(me) => match self.lease_of(*me)? {
                (_, true) => self.transact(ask, None),
                // It has ended, or etcd has lost it: a member that stands goes on.
                (lease, false) => self.transact(ask, Some((*me, lease))),
            },
            Ask::Propose(me, Change::Leave) => {
                let done = self.transact(ask, None);
                let lease = locked(&self.local).leases.remove(me);
                // If it is not revoked it ends by itself.
                lease.map(|lease| self.gateway.revoke(lease));
                done
            }
            _ => self.transact(ask, None),
        }
    }

    /// The lease of a member, renewed, or a new one; whether it is the former one. A question that
    /// is repeated, because its answer was lost, has the same lease.
    fn lease_of(&self, me: Member) -> Result<(LeaseId, bool)> {
        let former = locked(&self.local).leases.get(&me).copied();
        if let Some(lease) = former
            && self.gateway.keep_alive(lease)?
        {
            return Ok((lease, true));
        }
        let lease = self.gateway.grant(self.foundation.lease_s())?;
        locked(&self.local).leases.insert(me, lease);
        Ok((lease, false))
    }

    /// Answers a question, and stores what changes with the answer.
    fn transact(&self, ask: &Ask, lease: Option<(Member, LeaseId)>) -> Result<Answer> {
        let op = |server: &MembershipServer, now| server.try_answer(ask.clone(), NOWHERE, now);
        self.change(lease, op)
    }

    fn change<T>(
        &self,
        lease: Option<(Member, LeaseId)>,
        op: impl Fn(&MembershipServer, Nanos) -> Result<T>,
    ) -> Result<T> {
        let mut failures = 0;
        for _ in 0..ATTEMPTS {
            let tried = self.try_change(lease, &op);
            match tried {
                Ok(Some(out)) => return Ok(out),
                Ok(None) => {}
                Err(Failed::Etcd(e)) => {
                    failures += 1;
                    if e.kind() != ErrorKind::Unreachable || failures > self.gateway.servers() {
                        return Err(e);
                    }
                }
                Err(Failed::Rules(e)) => return Err(e),
            }
        }
        Err(Error::busy("other processes change the membership all the time: ask again"))
    }

    /// One attempt; `None` when another process has changed the state.
    fn try_change<T>(
        &self,
        lease: Option<(Member, LeaseId)>,
        op: impl Fn(&MembershipServer, Nanos) -> Result<T>,
    ) -> Result<Option<T>, Failed> {
        let snapshot = self.snapshot()?;
        let now = self.net.now();
        let server = {
            let mut local = locked(&self.local);
            local.look(&snapshot, now, self.foundation.lease_ns / GRACE_ONE_IN);
            if let Some((me, _)) = lease {
                local.absent.remove(&me);
            }
            local.server(self, &snapshot, lease.map(|(me, _)| me), now)
        };
        let out = op(&server, now).map_err(Failed::Rules)?;
        let next = server.stored();
        let needs: BTreeSet<Member> = lessees(next.state()).collect();
        let over: Vec<&String> =
            snapshot.live.iter().filter(|(m, _)| !needs.contains(m)).map(|(_, key)| key).collect();
        let is_same = next == snapshot.stored && lease.is_none() && over.is_empty();
        if !is_same && !self.store(&snapshot, &next, (lease, &over, &needs))? {
            return Ok(None);
        }
        let report = server.report(now);
        locked(&self.local).adopt(server.membership.rules(), report);
        Ok(Some(out))
    }

    fn store(
        &self,
        snapshot: &Snapshot,
        next: &StoredServer,
        (lease, over, needs): (Option<(Member, LeaseId)>, &[&String], &BTreeSet<Member>),
    ) -> Result<bool, Failed> {
        let state_key = self.key("state");
        // Those that were found dead without a key may have put it again.
        let fallen = lessees(snapshot.stored.state())
            .filter(|m| !needs.contains(m) && !snapshot.live.contains_key(m));
        let fallen: Vec<String> = fallen.map(|m| self.live_key(m)).collect();
        let mut when = vec![If::Unchanged(&state_key, snapshot.revision)];
        when.extend(fallen.iter().map(|key| If::Unchanged(key, 0)));
        let mut then = Vec::new();
        if *next != snapshot.stored {
            then.push(Then::Put(&state_key, stored::encode(next)?));
        }
        let live_key = lease.map(|(me, _)| self.live_key(me));
        if let (Some((me, id)), Some(key)) = (lease, &live_key)
            && needs.contains(&me)
        {
            then.push(Then::PutLeased(key, me.to_string().into_bytes(), id));
        }
        then.extend(over.iter().map(|key| Then::Delete(key)));
        Ok(self.gateway.transact(&when, &then)?.is_some())
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let other = || {
            Error::incompatible(format!(
                "{} is another pool now, or gone: the contents of the old one are gone, start its compute processes again",
                self.place()
            ))
        };
        let pairs = self.gateway.range(&self.prefix)?;
        let find = |name: &str| pairs.iter().find(|pair| pair.key == self.key(name));
        let foundation = find("foundation").ok_or_else(other)?;
        if Foundation::decode(&foundation.value)?.pool != self.foundation.pool {
            return Err(other());
        }
        let state = find("state").ok_or_else(other)?;
        let stored = stored::decode(&state.value)?;
        let live_prefix = self.key("live/");
        let live = |pair: &Pair| {
            let (node, incarnation) = pair.key.strip_prefix(&live_prefix)?.split_once('.')?;
            let node = crate::addr::NodeId::from_bits(node.parse().ok()?);
            let member = Member { node, incarnation: incarnation.parse().ok()? };
            Some((member, pair.key.clone()))
        };
        let live = pairs.iter().filter_map(live).collect();
        Ok(Snapshot { stored, revision: state.changed, live })
    }

    /// The membership as operators see it.
    ///
    /// # Errors
    /// Those of etcd.
    pub(super) fn look(&self) -> Result<MembershipReport> {
        self.change(None, |server, now| {
            server.membership.judge(now);
            Ok(server.report(now))
        })
    }

    /// Where others reach a node that listens at this address: of all addresses, the one by which
    /// this machine reaches etcd.
    ///
    /// # Errors
    /// `Unreachable` when no server takes a connection.
    pub(super) fn reached_at(&self, listens: &str) -> Result<String> {
        match listens.parse::<SocketAddr>() {
            Ok(at) if at.ip().is_unspecified() => {
                let ip = every(&self.servers, own_ip)?;
                Ok(SocketAddr::new(ip, at.port()).to_string())
            }
            _ => Ok(listens.to_owned()),
        }
    }

    /// What this process has decided since the last call.
    pub(super) fn take_news(&self) -> Vec<News> {
        std::mem::take(&mut locked(&self.local).news)
    }

    /// What [`EtcdMembership::look`] says, as of the last question.
    pub(super) fn known_report(&self) -> Option<MembershipReport> {
        locked(&self.local).report.clone()
    }
}

/// Questions come from this process itself.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Why an attempt failed.
enum Failed {
    Etcd(Error),
    Rules(Error),
}

impl From<Error> for Failed {
    fn from(e: Error) -> Self {
        Self::Etcd(e)
    }
}

/// Asks until a server answers, each once.
fn every<T>(servers: &[String], ask: impl Fn(&str) -> Result<T>) -> Result<T> {
    let mut last = Err(Error::unreachable("an address in etcd without servers"));
    for server in servers {
        last = ask(server);
        if !last.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unreachable) {
            break;
        }
    }
    last
}

/// The address of this machine on the way to a server.
fn own_ip(server: &str) -> Result<IpAddr> {
    let away = |e| Error::unreachable(format!("etcd at {server} takes no connection: {e}"));
    let mut trouble = Error::unreachable(format!("etcd at {server}: the name has no address"));
    for at in server.to_socket_addrs().map_err(away)? {
        let connected = TcpStream::connect_timeout(&at, REQUEST_WITHIN);
        match connected.and_then(|stream| stream.local_addr()) {
            Ok(own) => return Ok(own.ip()),
            Err(e) => trouble = away(e),
        }
    }
    Err(trouble)
}

impl Local {
    /// Notes which keys are away, and which members have registered.
    fn look(&mut self, snapshot: &Snapshot, now: Nanos, grace_ns: Nanos) {
        let needed: BTreeSet<Member> = lessees(snapshot.stored.state()).collect();
        // This process or etcd stood still: the time counts for no absence.
        if now > self.looked_at + 2 * grace_ns {
            self.absent.clear();
        }
        self.looked_at = now;
        self.absent.retain(|m, _| needed.contains(m) && !snapshot.live.contains_key(m));
        for m in needed.into_iter().filter(|m| !snapshot.live.contains_key(m)) {
            self.absent.entry(m).or_insert(now);
        }
        let registered = snapshot.stored.node_directory().entries();
        self.since.retain(|m, _| registered.iter().any(|e| e.member == *m));
        for entry in registered {
            self.since.entry(entry.member).or_insert(now);
        }
    }

    /// The membership server of what is stored, as this process would keep it.
    fn server(
        &self,
        of: &EtcdMembership,
        snapshot: &Snapshot,
        holder: Option<Member>,
        now: Nanos,
    ) -> MembershipServer {
        let grace_ns = of.foundation.lease_ns / GRACE_ONE_IN;
        let tolerated = self.absent.iter().filter(|(_, since)| now < *since + grace_ns);
        let mut holders: BTreeSet<Member> = snapshot.live.keys().copied().collect();
        holders.extend(tolerated.map(|(m, _)| *m).chain(holder));
        let mut rules = self.rules.clone();
        rules.adopt(snapshot.stored.rules(), &holders, now);
        let membership = Arc::new(InProcess::of(rules));
        of.foundation.restored(&of.badges, membership, &snapshot.stored, &self.since)
    }

    /// An attempt has succeeded.
    fn adopt(&mut self, mut rules: MembershipRules, report: MembershipReport) {
        self.news.extend(rules.take_news());
        // Another thread may have gone further meanwhile.
        if rules.latest().epoch >= self.rules.latest().epoch {
            self.rules = rules;
        }
        self.report = Some(report);
    }
}

/// Any bytes as an answer, of success or of a refusal, or as a stored value, as `kind` says.
pub(super) fn fuzz(kind: u8, bytes: &[u8]) {
    match kind & 3 {
        0 => gateway::fuzz(200, bytes),
        1 => gateway::fuzz(429, bytes),
        2 => _ = Foundation::decode(bytes),
        _ => _ = stored::decode::<StoredServer>(bytes),
    }
}

impl Judge for EtcdMembership {
    fn latest(&self) -> Arc<MembershipState> {
        locked(&self.local).rules.latest()
    }

    fn node_directory(&self) -> NodeDirectory {
        self.known_report().map(|report| report.node_directory).unwrap_or_default()
    }

    fn lose(&self, member: Member) {
        // If it fails, the lease of the member ends.
        let _ = self.change(None, |server, _| {
            server.membership.lose(member);
            Ok(())
        });
    }
}
