//! The host's side: a node's memory, registered, and an end for each client thread that may reach
//! it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::memory::{OnChip, RegisteredRegion};
use super::nic::{Nic, failed};
use super::offer::{Answer, End, Offer};
use super::queue_pair::{QueuePair, Sizes, packet_number};
use crate::addr::NodeId;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::membership::Member;
use crate::sync::locked;

/// A node's memory, open to the client threads with accepted offers.
pub struct Port(Arc<Inner>);

struct Inner {
    /// Fields go in this order: ends before memory, memory before the domain.
    ends: Mutex<Ends>,
    on_chip: Option<OnChip>,
    region: RegisteredRegion,
    cq: GenericCompletionQueue,
    pd: Arc<ProtectionDomain>,
    nic: Arc<Nic>,
    me: Member,
}

#[derive(Default)]
struct Ends {
    next: u64,
    open: BTreeMap<u64, (Member, QueuePair)>,
    /// Highest incarnation of each node that may not connect any more.
    revoked: BTreeMap<NodeId, u32>,
}

impl Ends {
    fn is_revoked(&self, member: Member) -> bool {
        self.revoked.get(&member.node).is_some_and(|r| *r >= member.incarnation)
    }
}

/// The host's end of one client thread's connection. Dropping it closes the end: no verb of that
/// thread executes here any more.
pub struct Accepted {
    port: Weak<Inner>,
    number: u64,
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if let Some(port) = self.port.upgrade() {
            let end = locked(&port.ends).open.remove(&self.number);
            if let Some((_, mut qp)) = end {
                qp.fail();
            }
        }
    }
}

impl Port {
    /// Registers the region of `me`, and on-chip memory: `on_chip_bytes` of it, or as much as the
    /// device has.
    ///
    /// # Errors
    /// `Full` when the memory cannot be registered, `Unsupported` when the device refuses; both
    /// name the remedy.
    pub fn open(nic: Arc<Nic>, me: Member, host: Arc<Host>, on_chip_bytes: u32) -> Result<Self> {
        let context = nic.context()?;
        let pd = context
            .alloc_pd()
            .map_err(|e| failed("no protection domain", &e, "see `dmtree doctor`"))?;
        // Ends of the host post nothing: one entry is more than enough.
        let cq = context
            .create_cq_builder()
            .setup_cqe(1)
            .build()
            .map_err(|e| failed("no completion queue", &e, "see `dmtree doctor`"))?;
        let region = RegisteredRegion::new(&nic, &pd, host)?;
        let on_chip = OnChip::new(&context, &pd, on_chip_bytes);
        let (cq, ends) = (GenericCompletionQueue::from(cq), Mutex::default());
        Ok(Self(Arc::new(Inner { ends, on_chip, region, cq, pd, nic, me })))
    }

    /// On-chip memory that it exposes, bytes.
    pub fn on_chip_bytes(&self) -> u32 {
        self.0.on_chip.as_ref().map_or(0, |c| c.exposed().0)
    }

    /// Takes the offer of a client thread of `from`: the answer to send it, and the end, which
    /// stays open until it is dropped or revoked. With `reads_only` its NIC refuses other verbs of
    /// the client than READs.
    ///
    /// # Errors
    /// `Revoked` for a member with revoked access; `Incompatible` for an offer that does not fit,
    /// `Unsupported` when the device refuses: named with node, attribute and remedy.
    pub fn accept(
        &self,
        from: Member,
        offer: &[u8],
        reads_only: bool,
    ) -> Result<(Vec<u8>, Accepted)> {
        let port = &*self.0;
        let offer = Offer::parse(from, port.me, offer)?;
        let sizes = Sizes { depth: 1, inline_bytes: 0 };
        let (mut qp, _) = QueuePair::new(&port.pd, &port.cq, sizes)?;
        let own = End::new(port.me, &port.nic, qp.number(), packet_number(qp.number()));
        let agreed = own.agree(&offer.client)?;
        qp.init(&port.nic, reads_only)?;
        let connected = qp.connect(&port.nic, &own, &offer.client, agreed);
        connected.map_err(|e| e.context(format!("{} accepts {from}", port.me)))?;
        let mut memory = port.region.exposed();
        memory.on_chip = port.on_chip.as_ref().map(OnChip::exposed);
        let answer = Answer { host: own, client_qpn: offer.client.qpn, memory }.to_bytes()?;
        let mut ends = locked(&port.ends);
        if ends.is_revoked(from) {
            drop(ends);
            return Err(refusal(port.me, from));
        }
        let number = ends.next;
        ends.next += 1;
        ends.open.insert(number, (from, qp));
        Ok((answer, Accepted { port: Arc::downgrade(&self.0), number }))
    }

    /// Ends the access of a member and of its earlier incarnations. When this returns, no verb of
    /// them executes here any more, and none will.
    pub fn revoke(&self, member: Member) {
        let mut ends = locked(&self.0.ends);
        let highest = ends.revoked.entry(member.node).or_default();
        *highest = (*highest).max(member.incarnation);
        let gone = |m: &Member| m.node == member.node && m.incarnation <= member.incarnation;
        let numbers: Vec<u64> =
            ends.open.iter().filter(|(_, (m, _))| gone(m)).map(|(n, _)| *n).collect();
        // Under the lock: a second caller must not return before the ends are gone.
        for number in numbers {
            if let Some((_, mut qp)) = ends.open.remove(&number) {
                qp.fail();
            }
        }
    }
}

fn refusal(host: Member, from: Member) -> Error {
    Error::revoked(format!("{} refuses {from}: it has lost its membership", host.node))
}
