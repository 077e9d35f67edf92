//! What is stored in etcd, as bytes: a version, the fields, a checksum.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::data_path::Common;
use super::super::membership_server::{MembershipServer, PoolConfig, StoredServer};
use super::super::roles::Badges;
use super::super::wire::PoolId;
use crate::error::{Error, Result};
use crate::membership::{InProcess, LeaseParameters, Member};
use crate::transport::Nanos;

/// Of the foundation and of the state.
const VERSION: u32 = 1;
/// Longest value, bytes: etcd refuses requests of 1.5 MiB.
const MAX_BYTES: usize = 1 << 20;

/// What a pool is, from its foundation on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Foundation {
    pub(in super::super) pool: PoolId,
    pub(in super::super) config: PoolConfig,
    pub(in super::super) common: Common,
    /// The secret that badges are computed with.
    pub(in super::super) secret: [u8; 32],
    pub(in super::super) lease_ns: Nanos,
    pub(in super::super) acknowledge_ns: Nanos,
    pub(in super::super) drift_one_in: u64,
}

impl Foundation {
    pub(super) fn lease_parameters(&self) -> LeaseParameters {
        LeaseParameters {
            lease_ns: self.lease_ns,
            acknowledge_ns: self.acknowledge_ns,
            drift_one_in: self.drift_one_in,
            mutant: None,
        }
    }

    /// The lease that is asked of etcd, which counts in seconds.
    pub(super) fn lease_s(&self) -> u64 {
        self.lease_ns.div_ceil(1_000_000_000).max(1)
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        encode(self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let foundation: Self = decode(bytes)?;
        let (c, is_time) = (&foundation, |ns: Nanos| (1..=86_400_000_000_000).contains(&ns));
        if c.drift_one_in < 2 || !is_time(c.lease_ns) || !is_time(c.acknowledge_ns) {
            return Err(Error::corrupt("the foundation of the pool in etcd has impossible times"));
        }
        Ok(foundation)
    }

    /// The membership server of a pool without members.
    pub(super) fn server(&self, badges: &Badges) -> MembershipServer {
        let membership = Arc::new(InProcess::new(self.lease_parameters()));
        self.restored(badges, membership, &StoredServer::default(), &BTreeMap::new())
    }

    /// The membership server of what is stored; `since` says when members registered.
    pub(super) fn restored(
        &self,
        badges: &Badges,
        membership: Arc<InProcess>,
        stored: &StoredServer,
        since: &BTreeMap<Member, Nanos>,
    ) -> MembershipServer {
        let config = self.config.clone();
        let server =
            MembershipServer::new(self.pool, config, self.common, badges.clone(), membership);
        server.restored(stored, since)
    }
}

/// The bytes of a value.
pub(super) fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut out = VERSION.to_le_bytes().to_vec();
    let fields = postcard::to_stdvec(value).map_err(|e| Error::invalid(e.to_string()))?;
    out.extend(fields);
    out.extend(crc32c::crc32c(&out).to_le_bytes());
    match out.len() {
        n if n <= MAX_BYTES => Ok(out),
        n => Err(Error::full(format!("the membership takes {n} bytes, and etcd {MAX_BYTES}"))),
    }
}

/// The value of such bytes.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let strange = |what: &str| Error::corrupt(format!("the pool in etcd {what}"));
    let Some((version, rest)) = bytes.split_first_chunk::<4>() else {
        return Err(strange("is cut off"));
    };
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Error::incompatible(format!(
            "the pool in etcd has format {}, and this release has {VERSION}: run the same release everywhere",
            u32::from_le_bytes(*version)
        )));
    }
    let Some((fields, checksum)) = rest.split_last_chunk::<4>() else {
        return Err(strange("is cut off"));
    };
    if crc32c::crc32c(&bytes[..bytes.len() - 4]) != u32::from_le_bytes(*checksum) {
        return Err(strange("fails its checksum"));
    }
    let (value, left) =
        postcard::take_from_bytes(fields).map_err(|_| strange("is in no known form"))?;
    if left.is_empty() { Ok(value) } else { Err(strange("is longer than it says")) }
}
