//! Writes: each is a call, and a batch is a call for every memory node.

use dmtree_fabric::{Error, OpKind, OpOutcome, Result, Stage};
use dmtree_parts::op::counted;
use dmtree_parts::{Outcome, Write, check_key};

use crate::client::{Rpc, unexpected};
use crate::wire::{CALL_BYTES, Counts, Reply, Request, Wrote};

/// Writes of a key.
pub(crate) struct Writes<'c>(pub(crate) &'c Rpc);

impl Writes<'_> {
    pub(crate) async fn write_op(&self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        check_key(key)?;
        w.check()?;
        self.0.retried.set(false);
        let scope = self.0.ep.begin(w.kind());
        self.0.ep.stage_cost(Stage::Operation, 1);
        let (outcome, counts) = match self.0.ask(key, &Request::Write(key, w)).await? {
            (_, Reply::Wrote(outcome, counts)) => (outcome, counts),
            (from, other) => return Err(unexpected(from, &other)),
        };
        let plain = match counts {
            Counts::Hit => OpOutcome::Hit,
            Counts::Absent => OpOutcome::Absent,
            Counts::Inserted => OpOutcome::InsertPlain,
            Counts::Split => OpOutcome::InsertSplit,
        };
        scope.end(counted(plain, &self.0.retried));
        Ok(outcome)
    }

    pub(crate) async fn write_many_op(
        &self,
        writes: &[(&[u8], Write<'_>)],
        outcomes: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        outcomes.clear();
        let scope = self.0.ep.begin(OpKind::WriteMany);
        self.0.ep.stage_cost(Stage::Operation, writes.len() as u32);
        let mut ended: Vec<Option<Result<Outcome>>> = writes
            .iter()
            .map(|(key, w)| check_key(key).and_then(|()| w.check()).err().map(Err))
            .collect();
        while let Some(first) = ended.iter().position(Option::is_none) {
            self.0.ep.renew_deadline();
            self.write_some(writes, &mut ended, first).await;
        }
        outcomes.extend(ended.into_iter().flatten());
        scope.end(OpOutcome::Other);
        Ok(())
    }

    /// Sends the next writes of one memory node, as many as a call carries; a longer one alone.
    async fn write_some(
        &self,
        writes: &[(&[u8], Write<'_>)],
        ended: &mut [Option<Result<Outcome>>],
        first: usize,
    ) {
        let owner = self.0.node.owner(writes[first].0);
        let mut bytes = 0;
        let now: Vec<usize> = (first..writes.len())
            .filter(|i| ended[*i].is_none() && self.0.node.owner(writes[*i].0) == owner)
            .take_while(|i| {
                let (key, w) = &writes[*i];
                let expected = match w {
                    Write::CompareAndSet { expected, .. } => expected.len(),
                    _ => 0,
                };
                bytes += key.len() + w.value().map_or(0, <[u8]>::len) + expected + 16;
                bytes < CALL_BYTES || *i == first
            })
            .collect();
        let request = Request::WriteMany(now.iter().map(|i| writes[*i]).collect());
        let all = match self.0.ask_node(owner, &request).await {
            Ok(Some(Reply::WroteMany(all))) if all.len() == now.len() => all,
            Ok(None) => return,
            Ok(Some(other)) => {
                let e = unexpected(owner, &other);
                now.iter().for_each(|i| ended[*i] = Some(Err(e.clone())));
                return;
            }
            Err(e) => {
                now.iter().for_each(|i| ended[*i] = Some(Err(e.clone())));
                return;
            }
        };
        for (i, wrote) in now.into_iter().zip(all) {
            ended[i] = match wrote {
                Wrote::Ended(outcome) => Some(Ok(outcome)),
                Wrote::Full => Some(Err(Error::full(format!("{owner} has no room for a pair")))),
                Wrote::Moved => None,
            };
        }
    }
}
