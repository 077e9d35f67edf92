//! One end of a reliable connection: creation, bring-up with the agreed attributes, destruction.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::ibv_qp;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::device_context::Mtu as PathMtu;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, QueuePair as _, QueuePairAttribute, QueuePairState, QueuePairType,
};

use super::memory::remote_access;
use super::nic::{Mtu, Nic, PortLink, failed};
use super::offer::{Agreed, End};
use crate::error::{Error, Result};
use crate::rng::golden_hash;

/// The sizes of a queue pair: at most the requested ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Send queue entries.
    pub depth: u32,
    /// Bytes of a request's own payload.
    pub inline_bytes: u32,
}

/// A reliable connection's end. After its drop no verb of it executes any more: neither its own,
/// nor verbs of the other end here.
pub(super) struct QueuePair {
    qp: BasicQueuePair,
}

impl QueuePair {
    /// A new one. A device may have less room than its attributes say: then with smaller requests,
    /// then with fewer.
    pub(super) fn new(
        pd: &Arc<ProtectionDomain>,
        cq: &GenericCompletionQueue,
        wanted: Sizes,
    ) -> Result<(Self, Sizes)> {
        let mut sizes = wanted;
        loop {
            let built = pd
                .create_qp_builder()
                .setup_qp_type(QueuePairType::ReliableConnection)
                .setup_send_cq(cq.clone())
                .setup_recv_cq(cq.clone())
                .setup_max_send_wr(sizes.depth)
                .setup_max_recv_wr(1)
                .setup_max_send_sge(1)
                .setup_max_recv_sge(1)
                .setup_max_inline_data(sizes.inline_bytes)
                .build();
            match built {
                Ok(qp) => return Ok((Self { qp }, sizes)),
                Err(_) if sizes.inline_bytes > 0 => sizes.inline_bytes /= 2,
                Err(_) if sizes.depth > 16 => sizes.depth /= 2,
                Err(e) => {
                    let what = format!("no queue pair of {} requests", sizes.depth);
                    return Err(failed(what, &e, "close other programs that use the device"));
                }
            }
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.qp.qp_number()
    }

    /// The library's handle.
    pub(super) fn raw(&self) -> NonNull<ibv_qp> {
        // SAFETY: callers use it while they hold the queue pair.
        unsafe { self.qp.qp() }
    }

    /// Ready to be connected; with `reads_only` the other end may READ and do nothing else.
    pub(super) fn init(&mut self, nic: &Nic, reads_only: bool) -> Result<()> {
        let access = if reads_only { AccessFlags::RemoteRead } else { remote_access() };
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(nic.port)
            .setup_access_flags(access);
        self.modify(&attr, "INIT", nic, "see `dmtree doctor`")
    }

    /// Connected: verbs of either side execute.
    pub(super) fn connect(
        &mut self,
        nic: &Nic,
        own: &End,
        other: &End,
        agreed: Agreed,
    ) -> Result<()> {
        let mut path = AddressHandleAttribute::new();
        path.setup_port(nic.port).setup_dest_lid(other.lid).setup_service_level(0);
        if nic.address.link == PortLink::Ethernet {
            let gid = Gid { raw: other.gid };
            path.setup_grh(&gid, 0, nic.address.gid_index, 64, 0);
        }
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(path_mtu(agreed.mtu))
            .setup_dest_qp_num(other.qpn)
            .setup_rq_psn(other.psn)
            .setup_max_dest_read_atomic(agreed.responder_depth)
            .setup_min_rnr_timer(12)
            .setup_address_vector(&path);
        let way_out = "the peer's address must be reachable from this port: compare `dmtree doctor` of both nodes, or set the address index";
        self.modify(&attr, "RTR", nic, way_out)?;
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(own.psn)
            .setup_timeout(nic.config.timeout_code())
            .setup_retry_cnt(nic.config.retries)
            .setup_rnr_retry(7)
            .setup_max_read_atomic(agreed.initiator_depth);
        self.modify(&attr, "RTS", nic, "see `dmtree doctor`")
    }

    /// Nothing is sent, served or completed well any more.
    pub(super) fn fail(&mut self) {
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::Error);
        // It may have failed by itself; destroying it ends all the same.
        let _ = self.qp.modify(&attr);
    }

    fn modify(
        &mut self,
        attr: &QueuePairAttribute,
        state: &str,
        nic: &Nic,
        way_out: &str,
    ) -> Result<(), Error> {
        let what = format!("a queue pair of {} does not get to {state}", nic.device());
        self.qp.modify(attr).map_err(|e| failed(what, &e, way_out))
    }
}

fn path_mtu(mtu: Mtu) -> PathMtu {
    match mtu.0 {
        4096 => PathMtu::Mtu4096,
        2048 => PathMtu::Mtu2048,
        1024 => PathMtu::Mtu1024,
        512 => PathMtu::Mtu512,
        _ => PathMtu::Mtu256,
    }
}

/// First packet number of a connection: another one each time, so that packets of an earlier
/// connection of the same number do not fit. 24 bits.
#[expect(clippy::disallowed_methods, reason = "nothing but stale packets depends on it")]
pub(super) fn packet_number(qpn: u32) -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ns = now.map_or(0, |d| d.as_nanos() as u64);
    (golden_hash(ns ^ u64::from(qpn)) >> 40) as u32
}
