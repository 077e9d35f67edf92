//! Memory that a NIC knows: regions by chunk, the chunks of slabs, on-chip memory.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys as sys;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;

use super::nic::Nic;
use super::offer::Exposed;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::region::Pages;
use crate::slab::Slab;

/// What peers may do.
pub(super) fn remote_access() -> AccessFlags {
    AccessFlags::LocalWrite
        | AccessFlags::RemoteRead
        | AccessFlags::RemoteWrite
        | AccessFlags::RemoteAtomic
}

/// Bytes that this process may lock; `None` without a limit.
fn lock_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|l| l.starts_with("Max locked memory"))?;
    line["Max locked memory".len()..].split_whitespace().next()?.parse().ok()
}

/// Refuses a region that does not fit into free memory: the system would kill this process, or
/// another one, while the NIC takes hold of it. Reserved huge pages are there already.
fn check_free(bytes: u64, pages: Pages, meminfo: &str) -> Result<()> {
    let kib = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = kib.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    let free = kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    if pages == Pages::Huge || bytes <= free {
        return Ok(());
    }
    Err(Error::full(format!(
        "verbs: a region of {bytes} bytes is larger than the {free} bytes of memory that are free: give a smaller one, or stop other programs"
    )))
}

fn register(
    pd: &Arc<ProtectionDomain>,
    what: &str,
    at: (usize, usize),
    access: AccessFlags,
) -> Result<Arc<MemoryRegion>> {
    // SAFETY: the caller owns the memory for as long as it keeps the registration, and what verbs
    // do to it is defined: words of atomics (regions), or bytes that belong to the posting
    // meanwhile (buffers).
    let registered = unsafe { pd.reg_mr(at.0, at.1, access) };
    registered.map_err(|e| {
        let limit = lock_limit().map_or(String::new(), |l| {
            format!(" (this process may lock {} KiB)", l >> 10)
        });
        Error::full(format!(
                "verbs: {} bytes of {what} cannot be registered: {e:?}{limit}; raise the limit: ulimit -l unlimited, or memlock in /etc/security/limits.conf",
                at.1
            ))
    })
}

/// A registered region.
pub(super) struct RegisteredRegion {
    /// Deregistered before the memory goes.
    chunks: Vec<Arc<MemoryRegion>>,
    chunk_bytes: u64,
    host: Arc<Host>,
}

impl RegisteredRegion {
    pub(super) fn new(nic: &Nic, pd: &Arc<ProtectionDomain>, host: Arc<Host>) -> Result<Self> {
        let chunk_bytes = nic.limits.chunk_bytes;
        let (base, bytes) = (host.region.base(), host.region.len());
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        check_free(bytes, host.region.pages(), &meminfo)?;
        let mut chunks = Vec::new();
        let mut at = 0;
        while at < bytes {
            let len = chunk_bytes.min(bytes - at);
            let range = (base + at as usize, len as usize);
            chunks.push(register(pd, "a region", range, remote_access())?);
            at += len;
        }
        Ok(Self { chunks, chunk_bytes, host })
    }

    pub(super) fn exposed(&self) -> Exposed {
        let region = &self.host.region;
        let rkeys = self.chunks.iter().map(|mr| mr.rkey()).collect();
        Exposed::new((region.base() as u64, region.len()), self.chunk_bytes, rkeys)
    }
}

/// Keys of a slab's chunks, and of memory of the client's own.
pub(super) struct Keys {
    /// By number of the chunk.
    lkeys: Vec<u32>,
    registered: Vec<Arc<MemoryRegion>>,
    pd: Arc<ProtectionDomain>,
    /// Keeps the chunks until after the registrations.
    slab: Option<Slab>,
}

impl Keys {
    pub(super) fn new(pd: Arc<ProtectionDomain>) -> Self {
        Self { lkeys: Vec::new(), registered: Vec::new(), pd, slab: None }
    }

    /// Key of a chunk of the slab: known, but for the first verb that uses it.
    pub(super) fn key(&mut self, slab: &Slab, chunk: u32) -> Result<u32> {
        match self.lkeys.get(chunk as usize) {
            Some(key) => Ok(*key),
            None => self.learn(slab, chunk),
        }
    }

    #[cold]
    fn learn(&mut self, slab: &Slab, chunk: u32) -> Result<u32> {
        let ours = self.slab.get_or_insert_with(|| slab.clone());
        if !ours.is_same(slab) {
            return Err(Error::invalid(
                "a verbs transport serves one executor: attach again for another",
            ));
        }
        while self.lkeys.len() <= chunk as usize {
            let number = self.lkeys.len() as u32;
            let at = slab
                .chunk(number)
                .ok_or_else(|| Error::invalid("a buffer of another executor's slab"))?;
            let mr = register(&self.pd, "buffers", at, AccessFlags::LocalWrite)?;
            self.lkeys.push(mr.lkey());
            self.registered.push(mr);
        }
        Ok(self.lkeys[chunk as usize])
    }

    /// Registers words that the client keeps for as long as the keys.
    pub(super) fn own(&mut self, words: &[u64]) -> Result<u32> {
        let at = (words.as_ptr().expose_provenance(), size_of_val(words));
        let mr = register(&self.pd, "words", at, AccessFlags::LocalWrite)?;
        let key = mr.lkey();
        self.registered.push(mr);
        Ok(key)
    }

    pub(super) fn registrations(&self) -> usize {
        self.registered.len()
    }
}

/// On-chip memory of a device, bytes; 0 when it has none, or does not say.
pub(super) fn on_chip_bytes(context: &DeviceContext) -> u64 {
    // SAFETY: all zeros is a valid value of a structure of integers.
    let mut attr: sys::ibv_device_attr_ex = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open, and the result is as large as the library believes.
    let there = unsafe {
        sys::ibv_query_device_ex(context.context().as_ptr(), std::ptr::null(), &mut attr)
    };
    if there == 0 { attr.max_dm_size } else { 0 }
}

/// Memory on the NIC, as far as it has any: verbs reach it, the processor does not.
pub(super) struct OnChip {
    bytes: u32,
    mr: NonNull<sys::ibv_mr>,
    dm: NonNull<sys::ibv_dm>,
    _pd: Arc<ProtectionDomain>,
}

// SAFETY: handles of the library, which locks for itself; they are used to make and to free only.
unsafe impl Send for OnChip {}
// SAFETY: as above.
unsafe impl Sync for OnChip {}

impl OnChip {
    /// `wanted` bytes, or as many as there are; `None` without any. The memory starts zeroed.
    pub(super) fn new(
        context: &DeviceContext,
        pd: &Arc<ProtectionDomain>,
        wanted: u32,
    ) -> Option<Self> {
        let have = on_chip_bytes(context);
        // Others may use a part of it, and it may be had in certain sizes only.
        let mut bytes = u64::from(wanted).min(have) as u32 / 64 * 64;
        while bytes > 0 {
            if let Some(chip) = Self::of_size(context, pd, bytes) {
                return Some(chip);
            }
            bytes = bytes / 2 / 64 * 64;
        }
        None
    }

    fn of_size(context: &DeviceContext, pd: &Arc<ProtectionDomain>, bytes: u32) -> Option<Self> {
        let mut wish =
            sys::ibv_alloc_dm_attr { length: bytes as usize, log_align_req: 6, comp_mask: 0 };
        // SAFETY: the context is open, the attributes are complete; a null result is handled.
        let dm = NonNull::new(unsafe { sys::ibv_alloc_dm(context.context().as_ptr(), &mut wish) })?;
        let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC
            | sys::ibv_access_flags::IBV_ACCESS_ZERO_BASED;
        let zeros = vec![0u8; bytes as usize];
        // SAFETY: device memory and protection domain are of this context; the source is as long as
        // the copy.
        let mr = unsafe {
            let copied =
                sys::ibv_memcpy_to_dm(dm.as_ptr(), 0, zeros.as_ptr().cast(), bytes as usize);
            match copied {
                0 => NonNull::new(sys::ibv_reg_dm_mr(
                    pd.pd().as_ptr(),
                    dm.as_ptr(),
                    0,
                    bytes as usize,
                    access.0,
                )),
                _ => None,
            }
        };
        let Some(mr) = mr else {
            // SAFETY: it was allocated above and is not used any more.
            unsafe { sys::ibv_free_dm(dm.as_ptr()) };
            return None;
        };
        Some(Self { bytes, mr, dm, _pd: pd.clone() })
    }

    /// Bytes and remote key.
    pub(super) fn exposed(&self) -> (u32, u32) {
        // SAFETY: the registration lives as long as this.
        (self.bytes, unsafe { self.mr.as_ref() }.rkey)
    }
}

impl Drop for OnChip {
    fn drop(&mut self) {
        // SAFETY: both were made by `new`, are freed once, the registration first.
        unsafe {
            sys::ibv_dereg_mr(self.mr.as_ptr());
            sys::ibv_free_dm(self.dm.as_ptr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_region_larger_than_free_memory_is_refused() {
        let meminfo = "MemTotal:  9000 kB\nMemAvailable:    4096 kB\n";
        assert!(check_free(4 << 20, Pages::Ordinary, meminfo).is_ok());
        let e = check_free((4 << 20) + 1, Pages::Transparent, meminfo).expect_err("too large");
        assert!(e.kind() == ErrorKind::Full && e.to_string().contains("give a smaller"), "{e}");
        assert!(check_free(1 << 40, Pages::Huge, meminfo).is_ok(), "reserved already");
        assert!(check_free(1 << 40, Pages::Ordinary, "").is_ok(), "the system does not say");
    }
}
