//! The data path: work requests in preallocated lists, one doorbell per list, completions into a
//! fixed array. Nothing here allocates, waits or decides.

use rdma_mummy_sys as sys;
use sideway::ibverbs::completion::{CompletionQueue as _, GenericCompletionQueue};

use super::offer::Exposed;
use super::queue_pair::{QueuePair, Sizes};
use crate::addr::GlobalAddr;
use crate::error::{Error, Result};
use crate::host::check_request;
use crate::transport::{Nanos, Opcode, WorkRequest};

/// Completions taken at a time.
pub(super) const POLL_BATCH: usize = 32;

/// The identifier that a completion returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId {
    /// Which doorbell's list it belongs to.
    pub flight: u32,
    /// Of that slot: 32 bits.
    pub generation: u32,
}

impl WorkId {
    /// In the place of a flight: the generation is the number of the peer.
    pub(super) const NUDGE: u32 = u32::MAX;

    fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.flight)
    }

    fn from_bits(bits: u64) -> Self {
        Self { flight: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub id: WorkId,
    /// 0 for success; the library's number otherwise.
    pub status: u32,
}

/// Memory at the other end.
pub(super) struct Remote {
    base: u64,
    bytes: u64,
    /// A key opens this many bytes: a power of two.
    chunk_shift: u32,
    rkeys: Box<[u32]>,
    on_chip: Option<(u32, u32)>,
}

impl Remote {
    pub(super) fn new(memory: &Exposed) -> Self {
        Self {
            base: memory.base().unwrap_or(0),
            bytes: memory.bytes,
            chunk_shift: memory.chunk_bytes.trailing_zeros(),
            rkeys: memory.rkeys.clone().into(),
            on_chip: memory.on_chip,
        }
    }

    /// Refuses verbs that the other end would refuse: such a refusal would break the connection.
    pub(super) fn check(&self, wr: &WorkRequest) -> Result<()> {
        match (wr.at.space(), self.on_chip) {
            (1, Some((bytes, _))) => check_request(wr, 1, u64::from(bytes)),
            _ => check_request(wr, 0, self.bytes),
        }
    }

    /// How many requests a verb becomes: one for each chunk that it touches.
    pub(super) fn pieces(&self, wr: &WorkRequest) -> u32 {
        if wr.at.space() != 0 {
            return 1;
        }
        let (first, len) = (wr.at.offset(), u64::from(wr.len.max(1)));
        (((first + len - 1) >> self.chunk_shift) - (first >> self.chunk_shift)) as u32 + 1
    }

    /// Address and key of the first piece of `len` bytes at `at`, and how long it is. The range was
    /// checked.
    fn piece(&self, at: GlobalAddr, len: u32) -> (u64, u32, u32) {
        if let (1, Some((_, rkey))) = (at.space(), self.on_chip) {
            return (at.offset(), rkey, len);
        }
        let chunk = at.offset() >> self.chunk_shift;
        let left = ((chunk + 1) << self.chunk_shift) - at.offset();
        let len = u64::from(len).min(left) as u32;
        (self.base + at.offset(), self.rkeys[chunk as usize], len)
    }
}

/// A connected queue pair's send queue, and the lists that are handed to it.
pub(super) struct SendQueue {
    qp: QueuePair,
    sizes: Sizes,
    pub remote: Remote,
    wrs: Box<[sys::ibv_send_wr]>,
    sges: Box<[sys::ibv_sge]>,
    /// Key of `words`, where the device takes no payload in requests.
    words_key: Option<u32>,
    /// Position of the next request in the queue, modulo its depth.
    head: u32,
    staged: u32,
    in_flight: u32,
    /// Requests that have completed, ever; and how many had, at which time, when that was last seen
    /// to change.
    retired: u64,
    seen: (u64, Nanos),
    is_nudged: bool,
}

impl SendQueue {
    pub(super) fn new(qp: QueuePair, sizes: Sizes, remote: Remote, words_key: Option<u32>) -> Self {
        let depth = sizes.depth as usize;
        // SAFETY: all zeros is a valid value of these structures of integers, raw pointers and
        // unions of them.
        let wrs = (0..depth).map(|_| unsafe { std::mem::zeroed::<sys::ibv_send_wr>() }).collect();
        let sge = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };
        let sges = vec![sge; depth].into();
        Self {
            qp,
            sizes,
            remote,
            wrs,
            sges,
            words_key,
            head: 0,
            staged: 0,
            in_flight: 0,
            retired: 0,
            seen: (0, 0),
            is_nudged: false,
        }
    }

    /// Requests that can be staged now.
    pub(super) fn room(&self) -> u32 {
        self.depth() - self.in_flight - self.staged
    }

    /// Requests that its depth allows in all: one entry is left for a nudge.
    pub(super) fn depth(&self) -> u32 {
        self.sizes.depth - 1
    }

    /// How long it has completed nothing, with requests in flight.
    pub(super) fn quiet_for(&mut self, now: Nanos) -> Nanos {
        if self.in_flight == 0 || self.retired != self.seen.0 {
            self.seen = (self.retired, now);
        }
        now - self.seen.1
    }

    /// Posts an empty WRITE, at most one at a time; whether it did.
    pub(super) fn nudge(&mut self, peer: u16) -> bool {
        if std::mem::replace(&mut self.is_nudged, true) {
            return false;
        }
        // SAFETY: all zeros is a valid value of this structure of integers, raw pointers and unions
        // of them.
        let mut wr = unsafe { std::mem::zeroed::<sys::ibv_send_wr>() };
        wr.wr_id = WorkId { flight: WorkId::NUDGE, generation: u32::from(peer) }.bits();
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        wr.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        let (remote_addr, rkey) = (self.remote.base, self.remote.rkeys.first().copied());
        wr.wr = sys::wr_t { rdma: sys::rdma_t { remote_addr, rkey: rkey.unwrap_or(0) } };
        let mut bad = std::ptr::null_mut();
        // SAFETY: as for `ring`; the request has no buffer, and there is an entry left for it.
        unsafe { sys::ibv_post_send(self.qp.raw().as_ptr(), &mut wr, &mut bad) == 0 }
    }

    /// The empty WRITE has completed.
    pub(super) fn nudged(&mut self) {
        self.is_nudged = false;
    }

    pub(super) fn staged(&self) -> u32 {
        self.staged
    }

    /// `n` requests have completed.
    pub(super) fn retire(&mut self, n: u32) {
        self.in_flight -= n;
        self.retired += u64::from(n);
    }

    /// Nothing of it executes any more.
    pub(super) fn fail(&mut self) {
        self.qp.fail();
    }

    /// Adds a verb that was checked, and for which there is room, to the list. `words` has room for
    /// one word per entry of the queue; `lkey` opens the verb's buffer. Returns how many requests
    /// have their payload in them.
    pub(super) fn stage(
        &mut self,
        wr: &WorkRequest,
        lkey: u32,
        words: &mut [u64],
        id: WorkId,
    ) -> u32 {
        let (mut at, mut left, mut local) = (wr.at, wr.len, wr.local.expose_provenance() as u64);
        let mut key = lkey;
        let mut is_inline = false;
        if wr.op == Opcode::WriteWord {
            let word = &mut words[self.head as usize];
            *word = wr.a.to_le();
            local = std::ptr::from_mut(word).expose_provenance() as u64;
            key = self.words_key.unwrap_or(0);
        }
        let mut flags = if wr.fenced { sys::ibv_send_flags::IBV_SEND_FENCE.0 } else { 0 };
        if matches!(wr.op, Opcode::Write | Opcode::WriteWord)
            && wr.len <= self.sizes.inline_bytes
            && wr.len > 0
        {
            is_inline = true;
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let mut pieces = 0;
        loop {
            let (remote_addr, rkey, len) = self.remote.piece(at, left);
            let slot = self.staged as usize;
            let sge = &mut self.sges[slot];
            *sge = sys::ibv_sge { addr: local, length: len, lkey: key };
            let sge = std::ptr::from_mut(sge);
            let out = &mut self.wrs[slot];
            out.wr_id = id.bits();
            out.sg_list = sge;
            // A length of 0 would mean 2 GiB to some devices.
            out.num_sge = i32::from(len > 0);
            out.send_flags = flags;
            out.opcode = opcode(wr.op);
            out.wr = match wr.op {
                Opcode::Cas => sys::wr_t {
                    atomic: sys::atomic_t { remote_addr, compare_add: wr.a, swap: wr.b, rkey },
                },
                Opcode::Faa => sys::wr_t {
                    atomic: sys::atomic_t { remote_addr, compare_add: wr.a, swap: 0, rkey },
                },
                _ => sys::wr_t { rdma: sys::rdma_t { remote_addr, rkey } },
            };
            self.staged += 1;
            pieces += 1;
            self.head = (self.head + 1) % self.sizes.depth;
            left -= len;
            if left == 0 {
                return if is_inline { pieces } else { 0 };
            }
            at = at.plus(u64::from(len));
            local += u64::from(len);
        }
    }

    /// A flight ends here: its last request alone reports a completion.
    pub(super) fn seal(&mut self) {
        if let Some(last) = self.staged.checked_sub(1) {
            self.wrs[last as usize].send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
    }

    /// Posts the staged requests to the NIC with one doorbell. On an error some of it may have been
    /// posted, and the queue pair must go.
    pub(super) fn ring(&mut self) -> Result<(), i32> {
        let n = std::mem::take(&mut self.staged) as usize;
        self.in_flight += n as u32;
        let list = &mut self.wrs[..n];
        let first = list.as_mut_ptr();
        for (i, wr) in list.iter_mut().enumerate() {
            // SAFETY: the next element is inside the list.
            wr.next = if i + 1 < n { unsafe { first.add(i + 1) } } else { std::ptr::null_mut() };
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is connected and used by this thread only; the list is linked
        // inside `wrs` and ends with null; each request has at most one entry, in `sges`. Buffers
        // belong to the posting until the completion or until the queue pair is destroyed, and
        // payload in requests is copied by the call.
        match unsafe { sys::ibv_post_send(self.qp.raw().as_ptr(), first, &mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}

fn opcode(op: Opcode) -> sys::ibv_wr_opcode::Type {
    match op {
        Opcode::Read => sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
        Opcode::Write | Opcode::WriteWord => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        Opcode::Cas => sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
        Opcode::Faa => sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
    }
}

/// Takes completions; an error is the completion queue's, and nothing can be learnt from it any
/// more.
pub(super) fn poll(
    cq: &GenericCompletionQueue,
    out: &mut [Completion; POLL_BATCH],
) -> Result<usize, Error> {
    // SAFETY: all zeros is a valid value of this structure of integers.
    let mut found: [sys::ibv_wc; POLL_BATCH] = unsafe { std::mem::zeroed() };
    // SAFETY: the completion queue is this thread's own; the array is as long as is said.
    let n = unsafe { sys::ibv_poll_cq(cq.cq().as_ptr(), POLL_BATCH as i32, found.as_mut_ptr()) };
    let Ok(n) = usize::try_from(n) else {
        return Err(Error::unreachable(format!(
            "verbs: the completion queue does not answer ({n}): restart this process"
        )));
    };
    for (out, wc) in out.iter_mut().zip(&found[..n]) {
        *out = Completion { id: WorkId::from_bits(wc.wr_id), status: wc.status };
    }
    Ok(n)
}

impl Completion {
    pub(super) const NONE: Self =
        Self { id: WorkId { flight: u32::MAX, generation: 0 }, status: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::NodeId;

    fn remote() -> Remote {
        let mut memory = Exposed::new((1 << 30, 10 << 20), 4 << 20, vec![5, 6, 7]);
        memory.on_chip = Some((4096, 9));
        Remote::new(&memory)
    }

    fn wr(at: GlobalAddr, len: u32) -> WorkRequest {
        WorkRequest::alone(Opcode::Read, at, len)
    }

    #[test]
    fn verbs_are_cut_at_chunks() {
        let (r, mn) = (remote(), NodeId::memory(0));
        let border = GlobalAddr::new(mn, (4 << 20) - 8);
        assert_eq!(r.pieces(&wr(border, 8)), 1);
        assert_eq!(r.pieces(&wr(border, 9)), 2);
        assert_eq!(r.piece(border, 9), ((1 << 30) + (4 << 20) - 8, 5, 8));
        assert_eq!(r.piece(border.plus(8), 1), ((1 << 30) + (4 << 20), 6, 1));
        assert_eq!(r.piece(GlobalAddr::on_chip(mn, 64), 8), (64, 9, 8));
    }

    #[test]
    fn nothing_outside_is_sent() {
        let (r, mn) = (remote(), NodeId::memory(0));
        assert!(r.check(&wr(GlobalAddr::new(mn, (10 << 20) - 8), 8)).is_ok());
        assert!(r.check(&wr(GlobalAddr::new(mn, (10 << 20) - 8), 9)).is_err());
        assert!(r.check(&wr(GlobalAddr::new(mn, 0), 8)).is_err(), "the first line is reserved");
        assert!(r.check(&wr(GlobalAddr::on_chip(mn, 4088), 8)).is_ok());
        assert!(r.check(&wr(GlobalAddr::on_chip(mn, 4096), 8)).is_err());
        let unaligned = WorkRequest { op: Opcode::Cas, ..wr(GlobalAddr::new(mn, 68), 8) };
        assert!(r.check(&unaligned).is_err());
    }

    #[test]
    fn work_ids_come_back() {
        let id = WorkId { flight: 77, generation: u32::MAX };
        assert_eq!(WorkId::from_bits(id.bits()), id);
    }
}
