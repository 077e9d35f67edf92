//! Where the membership of a pool is kept, as a node of the pool asks: in this process, at the
//! first memory node, or in etcd.

use std::net::Ipv4Addr;
#[cfg(feature = "etcd")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::admin::Admin;
use super::dial::{Line, Question};
#[cfg(feature = "etcd")]
use super::etcd::EtcdMembership;
use super::io::Net;
use super::membership_server::{Judge, MembershipServer};
use super::node_directory::NodeDirectory;
use super::status::MembershipReport;
use super::wire::{Answer, Ask, Credential};
use crate::error::{Error, ErrorKind, Result};
use crate::membership::News;
use crate::transport::Nanos;

/// A membership, and when it answered last.
pub(super) struct Rendezvous {
    at: At,
    answered_at: AtomicU64,
}

/// Where it is.
pub(super) enum At {
    /// Here: this is the first memory node.
    Here(Box<MembershipServer>),
    First(Admin),
    #[cfg(feature = "etcd")]
    Etcd(Arc<EtcdMembership>),
}

impl At {
    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, ask: &Ask, net: &dyn Net) -> Result<Answer> {
        match self {
            At::Here(server) => ask_here(server, ask, net),
            At::First(first) => first.ask(ask).map_err(of_the_first),
            #[cfg(feature = "etcd")]
            At::Etcd(etcd) => etcd.ask(ask),
        }
    }

    /// The same, polled where nothing may block.
    pub(super) async fn ask_soon(&self, ask: &Ask, net: &dyn Net) -> Result<Answer> {
        match self {
            At::First(first) => first.ask_soon(ask).await.map_err(of_the_first),
            _ => self.ask(ask, net),
        }
    }

    /// What a node that listens at this address says to others. The first memory node sees where a
    /// connection comes from.
    pub(super) fn reached_at(&self, listens: &str) -> Result<String> {
        match self {
            At::Here(_) | At::First(_) => Ok(listens.to_owned()),
            #[cfg(feature = "etcd")]
            At::Etcd(etcd) => etcd.reached_at(listens),
        }
    }

    /// The same in the name of a member, from where it was asked in no name.
    pub(super) fn speaking_for(&self, credential: Credential) -> Result<Self> {
        match self {
            At::Here(_) => Err(Error::invalid("the first memory node does not join its pool")),
            At::First(first) => Ok(At::First(first.again().speaking_for(credential))),
            #[cfg(feature = "etcd")]
            At::Etcd(etcd) => Ok(At::Etcd(etcd.clone())),
        }
    }
}

impl Rendezvous {
    pub(super) fn new(at: At, now: Nanos) -> Self {
        Self { at, answered_at: AtomicU64::new(now) }
    }

    /// The membership server, if it is here.
    pub(super) fn server(&self) -> Option<&MembershipServer> {
        match &self.at {
            At::Here(server) => Some(server),
            _ => None,
        }
    }

    /// What judges members, if this process does that as a memory node.
    pub(super) fn judge(&self) -> Option<&dyn Judge> {
        match &self.at {
            At::Here(server) => Some(&**server),
            At::First(_) => None,
            #[cfg(feature = "etcd")]
            At::Etcd(etcd) => Some(&**etcd),
        }
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, ask: &Ask, net: &dyn Net) -> Result<Answer> {
        let answered = self.at.ask(ask, net);
        self.note(&answered, net);
        answered
    }

    /// The same, polled where nothing may block.
    pub(super) async fn ask_soon(&self, ask: &Ask, net: &dyn Net) -> Result<Answer> {
        let answered = self.at.ask_soon(ask, net).await;
        self.note(&answered, net);
        answered
    }

    /// Begins to ask without waiting, where that can be.
    ///
    /// # Errors
    /// `Unreachable` where it cannot: the agent of the node asks instead, again and again.
    pub(super) fn begin_to_ask(&self, ask: &Ask) -> Result<Question> {
        match &self.at {
            At::First(first) => first.begin_to_ask(ask),
            _ => Err(Error::unreachable("the node is no node of this pool, or has not come yet")),
        }
    }

    /// Ends what was begun.
    pub(super) fn end(&self, done: Result<(Answer, Line)>) -> Result<Answer> {
        match &self.at {
            At::First(first) => first.end(done),
            _ => done.map(|(answer, _)| answer),
        }
    }

    /// An answer that names a trouble of the pool is an answer.
    fn note<T>(&self, answered: &Result<T>, net: &dyn Net) {
        if !answered.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unreachable) {
            self.answered_at.store(net.now(), Ordering::Relaxed);
        }
    }

    /// Where it is kept, for operators.
    pub(super) fn place(&self) -> String {
        match &self.at {
            At::Here(_) | At::First(_) => "mn0".to_owned(),
            #[cfg(feature = "etcd")]
            At::Etcd(etcd) => etcd.place(),
        }
    }

    /// For how long it has not answered, ns.
    pub(super) fn silent_ns(&self, now: Nanos) -> Nanos {
        match &self.at {
            At::Here(_) => 0,
            _ => now.saturating_sub(self.answered_at.load(Ordering::Relaxed)),
        }
    }

    /// What it says to operators, where this process knows that.
    pub(super) fn report(&self, now: Nanos) -> Option<MembershipReport> {
        match &self.at {
            At::Here(server) => Some(server.report(now)),
            At::First(_) => None,
            #[cfg(feature = "etcd")]
            At::Etcd(etcd) => etcd.known_report(),
        }
    }

    /// What has been decided here since the last call.
    pub(super) fn take_news(&self) -> Vec<News> {
        match &self.at {
            At::Here(server) => server.membership.take_news(),
            At::First(_) => Vec::new(),
            #[cfg(feature = "etcd")]
            At::Etcd(etcd) => etcd.take_news(),
        }
    }

    /// The node directory, where it is here.
    pub(super) fn own_directory(&self) -> Option<NodeDirectory> {
        self.server().map(MembershipServer::node_directory)
    }
}

fn ask_here(server: &MembershipServer, ask: &Ask, net: &dyn Net) -> Result<Answer> {
    match server.answer(ask.clone(), Ipv4Addr::LOCALHOST.into(), net.now()) {
        Answer::Refused(f) => Err(f.into()),
        answer => Ok(answer),
    }
}

/// An address alone does not say which node did not answer.
fn of_the_first(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unreachable => e.context("the first memory node"),
        _ => e,
    }
}
