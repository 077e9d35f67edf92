//! A client of an index with blocking calls, in this process or in another one: for tests, and for
//! the tools of the command line. Measured operations do not use it.

use std::collections::BTreeSet;
use std::future::Future;

use dmtree_fabric::{Error, ErrorKind, Result, Snapshot};
use dmtree_parts::{
    AnyIndex, BatchWrite, Fill, Found, Loaded, Outcome, Page, Resume, ScanRequest, Shape,
    SnapshotId, Values, Work, Write,
};

use crate::remote_client::{Answer, Ask, RemoteClient};
use crate::scenario::dropped_after;

/// A client of any index, for callers without futures. The errors are those of the index.
pub struct Client {
    place: Place,
    /// Steps of an operation in this process.
    steps: u64,
}

enum Place {
    Here(AnyIndex),
    There(RemoteClient),
}

/// Waits for an operation of a client: of the index, or of the other process.
macro_rules! wait {
    ($self:ident, |$index:ident| $here:expr, |$remote:ident| $there:expr) => {
        match &mut $self.place {
            Place::Here($index) => {
                let ep = $index.endpoint().clone();
                ep.core().block_on(ep.slot(), ending($self.steps, $here))
            }
            Place::There($remote) => $there,
        }
    };
}

/// Waits for an operation for so many steps.
async fn ending<T>(steps: u64, work: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = dropped_after(steps, work).await;
    ended.unwrap_or_else(|| Err(Error::timed_out(format!("does not end within {steps} steps"))))
}

impl From<AnyIndex> for Client {
    fn from(index: AnyIndex) -> Self {
        Self { place: Place::Here(index), steps: u64::MAX }
    }
}

impl From<RemoteClient> for Client {
    fn from(remote: RemoteClient) -> Self {
        Self { place: Place::There(remote), steps: u64::MAX }
    }
}

impl Client {
    /// The same with operations that fail after so many steps: where time stands still they have no
    /// other deadline.
    #[must_use]
    pub(crate) fn within(self, steps: u64) -> Self {
        Self { steps, ..self }
    }
}

#[allow(clippy::missing_errors_doc, reason = "they are the index's")]
impl Client {
    /// Reads a key.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        let get = wait!(self, |index| index.get(key, &mut out), |remote| return remote
            .ask(&Ask::Get(key)));
        Ok(get?.then_some(out))
    }

    /// Writes a key.
    pub fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        wait!(self, |index| index.write(key, w), |remote| remote.ask(&Ask::Write(key, w)))
    }

    /// Fills a page.
    pub fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        wait!(self, |index| index.scan(r, page), |remote| {
            let (found, next): (Page, _) = remote.ask(&Ask::Scan(*r))?;
            *page = found;
            Ok(next)
        })
    }

    /// Takes a snapshot.
    pub fn take_snapshot(&mut self) -> Result<SnapshotId> {
        wait!(self, |index| index.take_snapshot(), |remote| remote.ask(&Ask::TakeSnapshot))
    }

    /// Reads a key at a snapshot.
    pub fn get_at(&mut self, s: SnapshotId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        let get = wait!(self, |index| index.get_at(s, key, &mut out), |remote| return remote
            .ask(&Ask::GetAt(s, key)));
        Ok(get?.then_some(out))
    }

    /// Fills a page at a snapshot.
    pub fn scan_at(
        &mut self,
        s: SnapshotId,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        wait!(self, |index| index.scan_at(s, r, page), |remote| {
            let (found, next): (Page, _) = remote.ask(&Ask::ScanAt(s, *r))?;
            *page = found;
            Ok(next)
        })
    }

    /// Releases a snapshot.
    pub fn release_snapshot(&mut self, s: SnapshotId) -> Result<()> {
        wait!(self, |index| index.release_snapshot(s), |remote| remote
            .ask(&Ask::ReleaseSnapshot(s)))
    }

    /// Applies an atomic batch.
    pub fn write_batch(&mut self, batch: &[BatchWrite<'_>]) -> Result<()> {
        wait!(self, |index| index.write_batch(batch), |remote| remote
            .ask(&Ask::WriteBatch(batch.to_vec())))
    }

    /// Calls `each` for every pair of a range, in order, page by page, until `each` returns false.
    pub fn for_each(
        &mut self,
        request: ScanRequest<'_>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        let (mut page, mut resume, mut left) = (Page::new(), None, request.limit);
        while left > 0 {
            let r = ScanRequest { limit: left.min(4096), ..request };
            page.clear();
            resume = self.scan(&r.after(resume.as_ref()), &mut page)?;
            if page.iter().any(|(k, v)| !each(k, v)) || resume.is_none() {
                return Ok(());
            }
            left = left.saturating_sub(page.len());
        }
        Ok(())
    }

    /// Reads several keys.
    pub fn get_many(&mut self, keys: &[&[u8]]) -> Result<Values> {
        let mut values = Values::new();
        let out = &mut values;
        wait!(self, |index| index.get_many(keys, out), |remote| {
            remote.ask(&Ask::GetMany(keys.to_vec())).map(|found| *out = found)
        })?;
        Ok(values)
    }

    /// Applies several writes.
    pub fn write_many(&mut self, writes: &[(&[u8], Write<'_>)]) -> Result<Vec<Result<Outcome>>> {
        let mut all = Vec::new();
        let out = &mut all;
        wait!(self, |index| index.write_many(writes, out), |remote| {
            let all: Vec<Answer<Outcome>> = remote.ask(&Ask::WriteMany(writes.to_vec()))?;
            out.extend(all.into_iter().map(|o| o.map_err(Error::from)));
            Ok(())
        })?;
        Ok(all)
    }

    /// Foretells keys, in any order; whether the index listens.
    pub fn foretell(&mut self, keys: impl IntoIterator<Item = Vec<u8>>) -> Result<bool> {
        let keys: Vec<Vec<u8>> = BTreeSet::from_iter(keys).into_iter().collect();
        wait!(self, |index| index.foretell(&mut keys.into_iter()), |remote| remote
            .ask(&Ask::Foretell(keys)))
    }

    /// Bulk load.
    pub fn load(
        &mut self,
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: impl Into<Fill>,
    ) -> Result<Loaded> {
        let fill = fill.into();
        wait!(self, |index| index.load(&mut pairs.into_iter(), sorted, fill), |remote| remote
            .ask(&Ask::Load(pairs, sorted, fill)))
    }

    /// Does all maintenance and all work of workers that is due.
    pub fn maintain(&mut self) -> Result<()> {
        let all = async |index: &mut AnyIndex| {
            for _ in 0..100_000 {
                if index.maintain().await? == Work::None && index.work().await?.is_rest() {
                    return Ok(());
                }
            }
            Err(Error::new(ErrorKind::Busy, "maintenance does not come to an end"))
        };
        wait!(self, |index| all(index), |remote| remote.ask(&Ask::Maintain))
    }

    /// Gives the cache of the compute node another budget, and waits until it holds.
    pub fn set_cache_bytes(&mut self, bytes: u64) -> Result<()> {
        wait!(self, |index| index.set_cache_bytes(bytes), |_remote| Err(Error::new(
            ErrorKind::Unsupported,
            "the cache of a node of another process"
        )))
    }

    /// Runs GC.
    pub fn gc(&mut self) -> Result<Found> {
        wait!(self, |index| index.gc(), |remote| remote.ask(&Ask::Gc))
    }

    /// Walks and checks the structure; `Corrupt` for a broken invariant.
    pub fn walk(&mut self) -> Result<Shape> {
        wait!(self, |index| index.walk(), |remote| remote.ask(&Ask::Walk))
    }

    /// Its counters; zero for a client of another process, which counts for itself.
    pub fn counts(&self) -> Snapshot {
        match &self.place {
            Place::Here(index) => index.endpoint().snapshot(),
            Place::There(_) => Snapshot::default(),
        }
    }

    /// The counters since the last call.
    pub fn take_counts(&mut self) -> Snapshot {
        let counts = self.counts();
        if let Place::Here(index) = &self.place {
            index.endpoint().reset_counters();
        }
        counts
    }
}
