//! Questions to a node, blocking, with a deadline. They are rare, and no client operation asks one.

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::dial::{Line, Question, To};
use super::io::Net;
use super::wire::{Answer, Ask, Credential, Hello, PoolId};
use crate::addr::Role;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::locked;
use crate::transport::Nanos;

/// Longest wait for an answer, and for the connection before it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks a node questions. The connection is made on demand.
pub(super) struct Admin {
    net: Arc<dyn Net>,
    pub(super) address: String,
    pool: Option<PoolId>,
    /// The member in the name of which it asks; none before registration.
    credential: Option<Credential>,
    /// The kind of node that has to be there, if that is known.
    role: Option<Role>,
    /// A connection on which nothing is being asked.
    line: Mutex<Option<Line>>,
}

impl Admin {
    /// For the node that listens at a numeric address.
    pub(super) fn new(
        net: &Arc<dyn Net>,
        address: String,
        pool: Option<PoolId>,
        role: Option<Role>,
    ) -> Self {
        Self { net: net.clone(), address, pool, credential: None, role, line: Mutex::default() }
    }

    /// Another one for the same node, with connections of its own.
    pub(super) fn again(&self) -> Self {
        Self::new(&self.net, self.address.clone(), self.pool, self.role)
    }

    /// The same for a node of this pool alone.
    pub(super) fn of_pool(self, pool: PoolId) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Asks in the name of a member.
    pub(super) fn speaking_for(self, credential: Credential) -> Self {
        // A connection speaks for one member to its end.
        Self { credential: Some(credential), line: Mutex::default(), ..self }
    }

    /// Asks; asks once more on a new connection when the old one has broken, since all questions
    /// are idempotent. Concurrent threads do not wait for each other: each has a connection of its
    /// own.
    pub(super) fn ask(&self, ask: &Ask) -> Result<Answer> {
        let until = self.net.now() + PATIENCE.as_nanos() as Nanos;
        let old = locked(&self.line).take();
        let had_one = old.is_some();
        match self.try_ask(old, ask, until) {
            Err(e) if had_one && e.kind() == ErrorKind::Unreachable => {
                self.try_ask(None, ask, until + PATIENCE.as_nanos() as Nanos)
            }
            done => done,
        }
    }

    fn try_ask(&self, line: Option<Line>, ask: &Ask, until: Nanos) -> Result<Answer> {
        let mut question = self.begin(line, ask, until)?;
        if !self.net.has_threads() {
            return Err(Error::unreachable("nothing waits for an answer here"));
        }
        loop {
            let now = self.net.now();
            match question.drive(now) {
                Poll::Ready(done) => return self.end(done),
                Poll::Pending => {
                    let longest = until.saturating_sub(now).max(1_000_000);
                    self.net.wait(question.waits_for().as_slice(), longest);
                }
            }
        }
    }

    /// [`Admin::ask`], polled where nothing may block.
    pub(super) async fn ask_soon(&self, ask: &Ask) -> Result<Answer> {
        if self.net.has_threads() {
            return self.ask(ask);
        }
        let patience = PATIENCE.as_nanos() as Nanos;
        let old = locked(&self.line).take();
        if old.is_some() {
            let done = self.poll(self.begin(old, ask, self.net.now() + patience)?).await;
            if !done.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unreachable) {
                return done;
            }
        }
        self.poll(self.begin(None, ask, self.net.now() + patience)?).await
    }

    async fn poll(&self, mut question: Question) -> Result<Answer> {
        std::future::poll_fn(|cx| match question.drive(self.net.now()) {
            Poll::Ready(done) => Poll::Ready(self.end(done)),
            Poll::Pending => {
                self.net.wake_soon(cx.waker());
                Poll::Pending
            }
        })
        .await
    }

    fn begin(&self, line: Option<Line>, ask: &Ask, until: Nanos) -> Result<Question> {
        let hello = Hello::Ask { pool: self.pool, credential: self.credential };
        let to = To { address: &self.address, role: self.role, hello: &hello };
        Question::begin(&*self.net, to, line, ask, until)
    }

    /// Begins to ask without waiting: the caller drives the question, and calls [`Admin::end`] with
    /// its outcome.
    pub(super) fn begin_to_ask(&self, ask: &Ask) -> Result<Question> {
        self.begin(None, ask, self.net.now() + PATIENCE.as_nanos() as Nanos)
    }

    /// Keeps the line for the next question.
    pub(super) fn end(&self, done: Result<(Answer, Line)>) -> Result<Answer> {
        let (answer, line) = done?;
        locked(&self.line).get_or_insert(line);
        match answer {
            Answer::Refused(f) => Err(f.into()),
            answer => Ok(answer),
        }
    }
}

/// The error of an answer that does not fit the question.
#[cold]
pub(super) fn unexpected(answer: &Answer) -> Error {
    Error::corrupt(format!("an answer that does not fit the question: {answer:?}"))
}
