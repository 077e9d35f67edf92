//! A client thread's queue pairs in a pool over RDMA, one per host, the own node included: a
//! processor's atomics and a NIC's are not atomic to each other. Offers and answers travel on the
//! links; a queue pair does not outlive its link.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::link::{Ended, Link};
use super::rdma::{Client, End, Rdma};
use super::transport::{NetTransport, restarted};
use crate::addr::NodeId;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::membership::Member;
use crate::transport::{Progress, Ticket, WorkRequest};

/// Polls, with verbs in flight, between two checks of the links: a check is a system call per link.
const LOOK_ONE_IN: u32 = 1024;

/// The queue pairs.
pub(super) struct Direct {
    client: Client,
    /// The own host's end of the queue pair to itself.
    own_end: RefCell<Option<End>>,
    /// [`super::NodeShared::incarnations_news`] at the last check of the links.
    news_seen: Cell<u64>,
    polls: Cell<u32>,
}

impl Direct {
    pub(super) fn open(rdma: &Rdma, me: Member) -> Result<Self> {
        let client = rdma.client(me)?;
        let (own_end, news_seen, polls) = (RefCell::default(), Cell::new(0), Cell::new(0));
        Ok(Self { client, own_end, news_seen, polls })
    }

    pub(super) fn post(
        &self,
        core: &Core,
        ticket: Ticket,
        list: &[WorkRequest],
    ) -> Poll<Result<()>> {
        self.client.post(core, ticket, list)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.client.is_idle()
    }

    /// Whether any verb is in flight.
    pub(super) fn waits(&self) -> bool {
        self.client.outstanding() > 0
    }

    fn is_time_to_look(&self) -> bool {
        self.polls.set(self.polls.get().wrapping_add(1));
        self.polls.get().is_multiple_of(LOOK_ONE_IN) && self.waits()
    }
}

impl NetTransport {
    pub(super) fn poll_direct(&self, core: &Core, direct: &Direct) -> Progress {
        // Called before doorbells are rung.
        self.leave_former_incarnations(core, direct);
        let progress = direct.client.poll(core);
        let moved = self.poll_links(core, direct.is_time_to_look());
        let recovered = self.recover(core, direct);
        if moved || recovered { Progress::Made } else { progress }
    }

    /// Ends connections to former incarnations of nodes that have come back: no live node uses the
    /// memory behind them.
    fn leave_former_incarnations(&self, core: &Core, direct: &Direct) {
        let news = self.shared.incarnations_news.load(Ordering::Acquire);
        if direct.news_seen.replace(news) == news {
            return;
        }
        let why_former = |link: &Link| {
            let Member { node, incarnation } = link.to();
            let is_over =
                self.shared.known_incarnation(node).is_some_and(|latest| latest != incarnation);
            let presence = self.shared.verdicts.check_presence(node);
            presence.err().or_else(|| is_over.then(|| restarted(node)))
        };
        let former: Vec<(NodeId, Error)> = {
            let links = self.links.borrow();
            let tied = links.values().filter(|l| l.has_queue_pair());
            tied.filter_map(|link| Some((link.to().node, why_former(link)?))).collect()
        };
        for (node, why) in former {
            direct.client.disconnect(core, node, &why);
        }
    }

    /// Asks for the connections that verbs wait for, and has the other ends of those that broke
    /// closed.
    fn recover(&self, core: &Core, direct: &Direct) -> bool {
        let (client, me) = (&direct.client, self.shared.me);
        let mut any = false;
        while let Some(node) = client.next_broken() {
            any = true;
            if node == me.node {
                direct.own_end.replace(None);
                client.closed(core, node, self.shared.check_issuer(me).err().as_ref());
                continue;
            }
            let now = self.shared.now();
            let is_asked = self.links.borrow_mut().get_mut(&node).map(|link| link.close_end(now));
            if is_asked.is_none() {
                client.closed(core, node, None);
            }
        }
        while let Some(node) = client.next_wanted() {
            any = true;
            let offered = match node == me.node {
                true => self.connect_to_self(core, direct),
                false => self.with_link(node, |link| {
                    link.offer(self.shared.now(), &client.offer(node)?);
                    Ok(())
                }),
            };
            if let Err(e) = offered {
                client.refuse(core, node, &e);
            }
        }
        any
    }

    fn connect_to_self(&self, core: &Core, direct: &Direct) -> Result<()> {
        let me = self.shared.me;
        self.shared.check_issuer(me)?;
        let Some(rdma) = &self.shared.rdma else { return Ok(()) };
        let (answer, end) = rdma.accept(me, &direct.client.offer(me.node)?, false)?;
        direct.own_end.replace(Some(end));
        direct.client.connect(core, me.node, &answer)
    }

    /// Handles the end of an offer, a link or a queue pair.
    pub(super) fn report_direct(&self, core: &Core, direct: &Direct, e: Ended) {
        let client = &direct.client;
        match e {
            Ended::Offer(node, Ok(answer)) => {
                // Verbs that waited have failed otherwise.
                let is_connected = client.connect(core, node, &answer).is_ok();
                if let Some(link) = self.links.borrow_mut().get_mut(&node) {
                    link.set_queue_pair_connected(is_connected);
                }
            }
            Ended::Offer(node, Err(e)) => client.refuse(core, node, &e),
            Ended::QueuePair(node, why) => client.disconnect(core, node, &why),
            Ended::End(node, why) => client.closed(core, node, why.as_ref()),
            Ended::Part(..) | Ended::Call(..) => {}
        }
    }
}
