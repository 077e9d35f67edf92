//! Snapshots and atomic batches: they show, and change, several keys at one instant.

use std::ops::Bound;

use dmtree_fabric::ErrorKind;
use dmtree_parts::{BatchWrite, OpSet, Page, ScanRequest, SnapshotId, Write};

use super::{Keys, Model, everything, value_for};
use crate::rng::Rng;
use crate::test_cluster::{Client, TestCluster};

/// The most snapshots that are open at a time.
const OPEN: usize = 12;

/// Random writes, removals and batches of clients on all compute nodes, one at a time, with
/// snapshots that stay open meanwhile: each shows what it showed first, however it is read. An
/// index that lacks snapshots, or batches, refuses them.
pub fn snapshots_and_batches(
    test_cluster: &TestCluster,
    seed: u64,
    keys: Keys,
    space: u64,
    steps: u64,
) {
    let mut clients: Vec<Client> =
        (0..test_cluster.places()).map(|cn| test_cluster.client(cn).expect("attach")).collect();
    let ops = test_cluster.ops();
    bad_input(&mut clients[0], ops);
    let (rng, model, open) = (Rng::new(seed), Model::new(), Vec::new());
    let mut run = Run { rng, model, open, keys, ops, space, step: 0 };
    for step in 0..steps {
        run.step = step;
        let place = run.rng.below(clients.len() as u64) as usize;
        let c = &mut clients[place];
        match run.rng.below(10) {
            0..=3 => run.write(c),
            4 if ops.batch_writes > 0 => run.batch(c),
            5 if ops.snapshots && run.open.len() < OPEN => run.take(c, place),
            6 => c.maintain().expect("maintain"),
            _ if !run.open.is_empty() => run.look(&mut clients),
            _ => {}
        }
    }
    while !run.open.is_empty() {
        run.release(&mut clients, 0);
    }
    let all = all_pairs(&mut clients[0], None, false);
    assert!(all.into_iter().eq(run.model), "a last scan");
    clients[0].maintain().expect("maintain");
    clients[0].walk().expect("every invariant holds");
}

/// What must be refused, and change nothing.
fn bad_input(c: &mut Client, ops: OpSet) {
    let key = Keys::Hashed24.key(1);
    let refused = |kind, done: dmtree_fabric::Result<()>| {
        let e = done.expect_err("refused");
        assert!(e.kind() == kind && !e.to_string().contains('\n'), "{e}");
    };
    if ops.snapshots {
        let s = c.take_snapshot().expect("a snapshot");
        let foreign = SnapshotId { index: s.index + 1, ..s };
        refused(ErrorKind::InvalidArgument, c.get_at(foreign, &key).map(drop));
        refused(ErrorKind::InvalidArgument, c.release_snapshot(foreign));
        assert_eq!(c.get_at(s, &key).expect("open"), None);
        c.release_snapshot(s).expect("once");
        refused(ErrorKind::InvalidArgument, c.release_snapshot(s));
        refused(ErrorKind::InvalidArgument, c.get_at(s, &key).map(drop));
        let r = everything(10);
        refused(ErrorKind::InvalidArgument, c.scan_at(s, &r, &mut Page::new()).map(drop));
    } else {
        refused(ErrorKind::Unsupported, c.take_snapshot().map(drop));
    }
    let most = ops.batch_writes as usize;
    let many: Vec<Vec<u8>> = (0..=most as u64).map(|n| Keys::Hashed24.key(n)).collect();
    let batch: Vec<BatchWrite<'_>> = many.iter().map(|k| (&k[..], Some(&[7; 8][..]))).collect();
    let kind = if most > 0 { ErrorKind::InvalidArgument } else { ErrorKind::Unsupported };
    refused(kind, c.write_batch(&batch));
    let bad: [BatchWrite<'_>; 2] = [batch[0], (b"", None)];
    refused(kind, c.write_batch(&bad));
    assert_eq!(c.get(&many[0]).expect("get"), None, "a refused batch writes nothing");
    if most > 0 {
        c.write_batch(&[]).expect("nothing");
        c.write_batch(&batch[..most]).expect("the longest");
        many[..most].iter().for_each(|k| assert!(c.get(k).expect("get").is_some()));
        let gone: Vec<BatchWrite<'_>> = many[..most].iter().map(|k| (&k[..], None)).collect();
        c.write_batch(&gone).expect("removals");
        assert_eq!(all_pairs(c, None, false), []);
    }
}

/// All pairs, now or at a snapshot, in pages of a few.
fn all_pairs(c: &mut Client, s: Option<SnapshotId>, reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut out, mut page, mut resume) = (Vec::new(), Page::new(), None);
    loop {
        let r = ScanRequest { reverse, ..everything(37) };
        let r = r.after(resume.as_ref());
        let next = match s {
            None => c.scan(&r, &mut page),
            Some(s) => c.scan_at(s, &r, &mut page),
        };
        resume = next.expect("scan");
        out.extend(page.iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
        if resume.is_none() {
            return out;
        }
    }
}

struct Run {
    rng: Rng,
    model: Model,
    /// Snapshots, the clients that have taken them, and what they show.
    open: Vec<(SnapshotId, usize, Model)>,
    keys: Keys,
    ops: OpSet,
    space: u64,
    step: u64,
}

impl Run {
    fn key(&mut self) -> Vec<u8> {
        self.keys.key(self.rng.below(self.space))
    }

    fn write(&mut self, c: &mut Client) {
        let (key, value) = (self.key(), value_for(&mut self.rng, self.ops));
        if self.ops.delete && self.rng.below(3) == 0 {
            c.write(&key, Write::Delete).expect("delete");
            self.model.remove(&key);
        } else {
            c.write(&key, Write::Put(&value)).expect("put");
            self.model.insert(key, value);
        }
    }

    /// Of writes of one key in a batch the last one counts.
    fn batch(&mut self, c: &mut Client) {
        let n = self.rng.below(self.ops.batch_writes.min(20).into()) + 1;
        let writes: Vec<(Vec<u8>, Option<Vec<u8>>)> = (0..n)
            .map(|_| {
                let (key, value) = (self.key(), value_for(&mut self.rng, self.ops));
                (key, (self.rng.below(3) > 0).then_some(value))
            })
            .collect();
        let batch: Vec<BatchWrite<'_>> =
            writes.iter().map(|(k, v)| (&k[..], v.as_deref())).collect();
        c.write_batch(&batch).expect("a batch");
        for (key, value) in writes {
            match value {
                Some(v) => _ = self.model.insert(key, v),
                None => _ = self.model.remove(&key),
            }
        }
    }

    fn take(&mut self, c: &mut Client, place: usize) {
        let s = c.take_snapshot().expect("a snapshot");
        self.open.push((s, place, self.model.clone()));
    }

    /// Reads at one of the snapshots: a key, a range, or all before it is released.
    fn look(&mut self, clients: &mut [Client]) {
        let number = self.rng.below(self.open.len() as u64) as usize;
        let (key, other) = (self.key(), self.key());
        let (s, place, shown) = &self.open[number];
        let c = &mut clients[*place];
        match self.rng.below(4) {
            0 => self.release(clients, number),
            1 => {
                let (low, high) = (key.clone().min(other.clone()), key.max(other));
                let reverse = self.ops.reverse_scan && self.rng.below(2) == 0;
                let (low, high) = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
                let r = ScanRequest { low, high, reverse, limit: 1 + self.rng.below(20) as usize };
                let mut page = Page::new();
                let next = c.scan_at(*s, &r, &mut page).expect("scan at a snapshot");
                let mut wanted: Vec<_> = shown.iter().filter(|(k, _)| r.contains(k)).collect();
                if reverse {
                    wanted.reverse();
                }
                let whole = next.is_some() || page.len() == wanted.len();
                let wanted = wanted.iter().map(|(k, v)| (&k[..], &v[..])).take(page.len());
                assert!(whole && page.iter().eq(wanted), "step {}: {r:?} at {s:?}", self.step);
            }
            _ => {
                let found = c.get_at(*s, &key).expect("get at a snapshot");
                assert_eq!(found.as_ref(), shown.get(&key), "step {}: {s:?}", self.step);
            }
        }
    }

    fn release(&mut self, clients: &mut [Client], number: usize) {
        let (s, place, shown) = self.open.swap_remove(number);
        let c = &mut clients[place];
        let reverse = self.ops.reverse_scan && self.rng.below(2) == 0;
        let mut found = all_pairs(c, Some(s), reverse);
        if reverse {
            found.reverse();
        }
        assert!(found.into_iter().eq(shown), "step {}: all of {s:?}", self.step);
        c.release_snapshot(s).expect("once");
    }
}
