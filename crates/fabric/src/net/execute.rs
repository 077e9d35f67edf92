//! Execution of the frames of a link.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::sessions::{Held, Mail, Session};
use super::{NodeShared, frames, locked};
use crate::error::{Error, Result};
use crate::membership::Member;

/// Executes a frame of verbs of a member, which may be a reader, and appends its outcome.
pub(super) fn verbs(
    shared: &NodeShared,
    (from, reads_only): (Member, bool),
    use_by: u64,
    verbs: &[u8],
    out: &mut Vec<u8>,
) {
    let start = frames::begin(out, frames::POST);
    let found = out.len() + 1;
    out.push(1);
    let in_time = shared.check_time(use_by, "a list");
    let allowed = in_time.and_then(|()| match reads_only && !frames::has_reads_only(verbs) {
        true => Err(self::reads_only()),
        false => Ok(()),
    });
    let result = allowed.and_then(|()| {
        shared
            .check_issuer(from)
            .and_then(|()| frames::execute(&shared.host, verbs, out))
            .map_err(Error::effect_unknown)
    });
    if let Err(e) = result {
        out.truncate(found - 1);
        frames::outcome(out, Some(&e));
    }
    frames::end(out, start);
}

/// The refusal of a call or verb of a reader that could change something.
pub(super) fn reads_only() -> Error {
    Error::incompatible(
        "a certificate with the role reader reads memory, and changes and calls nothing: `dmtree keys issue --role compute` makes another",
    )
}

/// The error of an offer to a host without RDMA.
pub(super) fn not_over_rdma(shared: &NodeShared) -> Error {
    Error::incompatible(format!(
        "{} got an offer of RDMA in a pool on fabric {}: connect again",
        shared.me.node, shared.common.data_path
    ))
}

/// Work on this host's ends of queue pairs.
enum Job {
    /// A frame with a request.
    About { session: Arc<Session>, kind: u8, use_by: u64, offer: Vec<u8> },
    /// The link has ended.
    Leave(Arc<Session>),
}

/// The thread that creates and closes ends of queue pairs: both are slow. It starts with the first
/// request.
pub(super) struct Ends {
    shared: Arc<NodeShared>,
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Ends {
    pub(super) fn of(shared: &Arc<NodeShared>) -> Self {
        Self { shared: shared.clone(), jobs: Mutex::default() }
    }

    /// Executes a frame; the outcome arrives as [`Mail`](super::sessions::Mail).
    pub(super) fn ask(&self, session: &Arc<Session>, kind: u8, use_by: u64, offer: Vec<u8>) {
        let job = Job::About { session: session.clone(), kind, use_by, offer };
        if self.send(job).is_err() {
            // Without the thread the peer sees a closed connection.
            self.shared.sessions.post(Mail::Close(session.token));
        }
    }

    /// Ends a link after its connection has gone. Until then revocation finds the link.
    pub(super) fn leave(&self, session: &Arc<Session>) {
        let is_sent = self.shared.rdma.is_some() && self.send(Job::Leave(session.clone())).is_ok();
        if !is_sent {
            self.shared.sessions.end_one(session);
        }
    }

    fn send(&self, job: Job) -> Result<(), Job> {
        let mut jobs = locked(&self.jobs);
        if jobs.is_none() {
            let (sender, inbox) = channel();
            let shared = self.shared.clone();
            let named = std::thread::Builder::new().name("dmtree queue pairs".into());
            if named.spawn(move || work(&shared, &inbox)).is_ok() {
                *jobs = Some(sender);
            }
        }
        match &*jobs {
            Some(jobs) => jobs.send(job).map_err(|e| e.0),
            None => Err(job),
        }
    }
}

fn work(shared: &NodeShared, inbox: &Receiver<Job>) {
    for job in inbox {
        let (session, kind, use_by, offer) = match job {
            Job::About { session, kind, use_by, offer } => (session, kind, use_by, offer),
            Job::Leave(session) => {
                shared.sessions.end_one(&session);
                continue;
            }
        };
        let done = session.run(|held| {
            held.end = None;
            match kind {
                frames::OFFER => accept(shared, &session, use_by, &offer, held),
                _ => Ok(Vec::new()),
            }
        });
        if let Some(done) = done {
            let mut frame = Vec::new();
            frames::answer(&mut frame, kind, &[], done);
            shared.sessions.post(Mail::AboutEnd(session.token, frame));
        }
    }
}

/// Takes the offer of a client thread, and keeps this host's end.
fn accept(
    shared: &NodeShared,
    session: &Session,
    use_by: u64,
    offer: &[u8],
    held: &mut Held,
) -> Result<Vec<u8>> {
    shared.check_time(use_by, "an offer")?;
    let rdma = shared.rdma.as_ref().ok_or_else(|| not_over_rdma(shared))?;
    let (answer, end) = rdma.accept(session.from(), offer, session.reads_only())?;
    held.end = Some(end);
    Ok(answer)
}
