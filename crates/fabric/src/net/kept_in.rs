//! Pools with a membership that no memory node keeps: their addresses, foundation and opening.

use std::sync::Arc;

use super::data_path::Common;
#[cfg(feature = "etcd")]
use super::etcd::{EtcdMembership, Foundation};
use super::io::Net;
use super::membership_server::PoolConfig;
use super::node_directory::NodeEntry;
use super::rendezvous::At;
use super::start::Found;
use super::status::PoolView;
use super::wire::PoolId;
use crate::error::{Error, Result};
use crate::membership::LeaseParameters;

/// Where the membership of a pool is kept that no memory node keeps: an address
/// `etcd://HOST:PORT,HOST:PORT/POOL`.
#[derive(Clone, Copy, Debug)]
pub struct KeptIn<'a> {
    /// The address.
    pub address: &'a str,
    /// Takes the place of a pool of this name without processes that live.
    pub anew: bool,
}

/// What a pool is founded with.
type Founded = (PoolId, PoolConfig, Common, [u8; 32], LeaseParameters);

#[cfg(feature = "etcd")]
impl KeptIn<'_> {
    pub(super) fn parse(text: &str) -> Option<Result<super::etcd::Address>> {
        super::etcd::Address::parse(text)
    }

    pub(super) fn found(self, net: &Arc<dyn Net>, of: Founded, first: NodeEntry) -> Result<At> {
        let address = Self::parse(self.address).unwrap_or_else(|| {
            Err(Error::invalid(format!(
                "{:?} is no place for a membership: it is etcd://HOST:PORT,HOST:PORT/POOL",
                self.address
            )))
        })?;
        let (pool, config, common, secret, lease) = of;
        let foundation = Foundation {
            pool,
            config,
            common,
            secret,
            lease_ns: lease.lease_ns,
            acknowledge_ns: lease.acknowledge_ns,
            drift_one_in: lease.drift_one_in,
        };
        let kept = EtcdMembership::found(net, &address, foundation, first, self.anew)?;
        Ok(At::Etcd(Arc::new(kept)))
    }
}

#[cfg(feature = "etcd")]
impl super::etcd::Address {
    pub(super) fn open(&self, net: &Arc<dyn Net>) -> Result<Found> {
        let etcd = EtcdMembership::open(net, self)?;
        let (pool, common) = (etcd.foundation.pool, etcd.foundation.common);
        let options = etcd.foundation.config.options.clone();
        Ok(Found { at: At::Etcd(Arc::new(etcd)), first: String::new(), pool, common, options })
    }
}

#[cfg(feature = "etcd")]
impl super::etcd::Address {
    /// For operators.
    pub(super) fn view(&self, net: &Arc<dyn Net>) -> Result<PoolView> {
        let etcd = EtcdMembership::open(net, self)?;
        Ok(PoolView {
            pool: etcd.foundation.pool,
            data_path: etcd.foundation.common.data_path.name().to_owned(),
            membership: Some(etcd.look()?),
            membership_at: etcd.place(),
            membership_silent_ns: 0,
            here: None,
        })
    }
}

#[cfg(not(feature = "etcd"))]
impl KeptIn<'_> {
    pub(super) fn parse(text: &str) -> Option<Result<NoEtcd>> {
        text.starts_with("etcd://").then(|| Err(without()))
    }

    pub(super) fn found(self, _: &Arc<dyn Net>, _: Founded, _: NodeEntry) -> Result<At> {
        Err(without())
    }
}

/// An address in builds without the feature.
#[cfg(not(feature = "etcd"))]
pub(super) enum NoEtcd {}

#[cfg(not(feature = "etcd"))]
impl NoEtcd {
    pub(super) fn open(&self, _: &Arc<dyn Net>) -> Result<Found> {
        match *self {}
    }

    pub(super) fn view(&self, _: &Arc<dyn Net>) -> Result<PoolView> {
        match *self {}
    }
}

#[cfg(not(feature = "etcd"))]
fn without() -> Error {
    Error::unsupported("this build has no etcd: build it with the feature `etcd`")
}
