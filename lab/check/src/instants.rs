//! Operations on several keys that take effect at one instant: snapshots and atomic batches.
//!
//! Keys are checked one by one ([`crate::history`]), so the instant of such an operation is
//! narrowed here first. A batch took effect before the end of whatever has seen a value of it. A
//! snapshot shows each key's value as of one instant: after the call of the write of that value,
//! and before the end of whatever surely replaced it. When no instant is left, or a part of a batch
//! is missing, the history is wrong; otherwise the narrower times go into the check of each key.
//! Every bound is sound; a history that passes may still be wrong.

use std::collections::BTreeMap;

use crate::history::ValueId;
use crate::log::{Answer, Call, Log, Record, Wrong, name};

/// Call and return of an operation, the latter if its effect is known.
pub(crate) type Span = (u64, Option<u64>);

/// The writes and removals of a key that may have taken effect.
#[derive(Default)]
struct Writes {
    /// By value.
    of: BTreeMap<ValueId, Span>,
    /// Those that did, and their values.
    done: Vec<(u64, u64, Option<ValueId>)>,
    /// The removals, also of unknown effect.
    removals: Vec<Span>,
}

/// What each key's history knows of its values.
struct Values<'l> {
    log: &'l Log,
    keys: BTreeMap<u64, Writes>,
}

/// The keys of a batch.
pub(crate) fn batch_keys(low: u64, high: u64, step: u64) -> impl Iterator<Item = u64> {
    (low..=high).step_by(step.max(1) as usize)
}

/// The times of batches and snapshots, by record, narrower than their call and return.
///
/// # Errors
/// A snapshot that shows no one instant, or a part of a batch.
pub(crate) fn narrowed(log: &Log) -> Result<BTreeMap<usize, Span>, Wrong> {
    let of = |r: &Record| matches!(r.call, Call::Batch(..) | Call::Snapshot(..));
    if !log.records.iter().any(of) {
        return Ok(BTreeMap::new());
    }
    let mut spans = batches(log);
    let values = Values::of(log, &spans);
    for (i, r) in log.records.iter().enumerate() {
        let Call::Snapshot(low, high) = r.call else { continue };
        let Some((ret, Answer::Pairs(pairs))) = r.ret.as_ref().map(|ret| (ret.at, &ret.answer))
        else {
            continue;
        };
        let shown: BTreeMap<u64, ValueId> = pairs.iter().copied().collect();
        let span = values.instant((r.called, ret), (low, high), &shown);
        let span = span.and_then(|span| values.whole((low, high), &shown, &spans).map(|()| span));
        let (from, to) = span.map_err(|why| Wrong::Answer { record: i, why })?;
        spans.insert(i, (from, Some(to)));
    }
    Ok(spans)
}

/// The spans of batches: each ends before whatever has seen it does.
fn batches(log: &Log) -> BTreeMap<usize, Span> {
    let mut spans = BTreeMap::new();
    let mut by_value = BTreeMap::new();
    for (i, r) in log.records.iter().enumerate() {
        if let (Call::Batch(.., v), false) = (r.call, is_refused(r)) {
            spans.insert(i, span(r));
            by_value.insert(v, i);
        }
    }
    for r in &log.records {
        let Some(ret) = &r.ret else { continue };
        let values: Vec<ValueId> = match &ret.answer {
            Answer::Found(Some(v)) => vec![*v],
            Answer::Pairs(pairs) => pairs.iter().map(|(_, v)| *v).collect(),
            _ => continue,
        };
        for i in values.iter().filter_map(|v| by_value.get(v)) {
            let (called, end) = spans[i];
            // A value that is seen before its write is an error of its key.
            if ret.at > called {
                spans.insert(*i, (called, Some(end.map_or(ret.at, |end| end.min(ret.at)))));
            }
        }
    }
    spans
}

fn is_refused(r: &Record) -> bool {
    matches!(r.ret.as_ref().map(|ret| &ret.answer), Some(Answer::Refused(_)))
}

fn span(r: &Record) -> Span {
    let ret = r.ret.as_ref().filter(|ret| ret.answer == Answer::Done);
    (r.called, ret.map(|ret| ret.at))
}

impl<'l> Values<'l> {
    fn of(log: &'l Log, spans: &BTreeMap<usize, Span>) -> Self {
        let mut keys: BTreeMap<u64, Writes> = BTreeMap::new();
        let mut add = |key: u64, value: Option<ValueId>, span: Span| {
            let writes = keys.entry(key).or_default();
            writes.done.extend(span.1.map(|end| (span.0, end, value)));
            match value {
                Some(v) => _ = writes.of.insert(v, span),
                None => writes.removals.push(span),
            }
        };
        for (i, r) in log.records.iter().enumerate() {
            let answer = r.ret.as_ref().map(|ret| &ret.answer);
            let may_have =
                matches!(answer, None | Some(Answer::Done | Answer::Failed(_) | Answer::Tried(_)));
            if !may_have {
                continue;
            }
            match r.call {
                Call::Put(k, v)
                | Call::Insert(k, v)
                | Call::Update(k, v)
                | Call::CompareAndSet(k, _, v) => add(k, Some(v), span(r)),
                Call::Delete(k) => add(k, None, span(r)),
                Call::Batch(low, high, step, v) => {
                    batch_keys(low, high, step).for_each(|k| add(k, Some(v), spans[&i]));
                }
                Call::Get(_) | Call::Scan(..) | Call::ScanDown(..) | Call::Snapshot(..) => {}
            }
        }
        Self { log, keys }
    }

    /// When a key may have had a value, or none, with reasons: not before the first, not after the
    /// second. Ends are `None` where nothing bounds them.
    fn bounds(&self, key: u64, value: Option<ValueId>) -> (Option<u64>, Option<u64>) {
        let Some(writes) = self.keys.get(&key) else { return (None, None) };
        let initial = self.log.initial(key);
        if value.is_none() && (initial.is_some() || !writes.removals.is_empty()) {
            return (None, None);
        }
        let (from, written) = match value.filter(|_| value != initial).map(|v| writes.of.get(&v)) {
            // A value that no write wrote is an error of its key.
            Some(None) => return (None, None),
            Some(Some((called, ret))) => (Some(*called), *ret),
            None => (None, Some(0)),
        };
        let Some(written) = written else { return (from, None) };
        let behind = writes.done.iter().filter(|(called, ..)| *called >= written);
        (from, behind.filter(|(.., v)| *v != value).map(|(_, ret, _)| *ret).min())
    }

    /// The times at which a snapshot may have been taken.
    fn instant(
        &self,
        (called, ret): (u64, u64),
        (low, high): (u64, u64),
        shown: &BTreeMap<u64, ValueId>,
    ) -> Result<(u64, u64), String> {
        let text =
            |key| format!("k{key} = {}", shown.get(&key).map_or("absent".into(), |v| name(*v)));
        let (mut from, mut to) = ((called, None), (ret, None));
        for key in (low..=high).take_while(|key| *key < self.log.numbers) {
            let (low, high) = self.bounds(key, shown.get(&key).copied());
            from = low.filter(|at| *at > from.0).map_or(from, |at| (at, Some(key)));
            to = high.filter(|at| *at < to.0).map_or(to, |at| (at, Some(key)));
        }
        if from.0 < to.0 {
            return Ok((from.0, to.0));
        }
        let why = |key: Option<u64>, end| key.map_or(format!("its {end}"), text);
        let (early, late) = (why(to.1, "end"), why(from.1, "call"));
        Err(format!(
            "snapshot of k{low}..=k{high} shows no one instant: {early} was over at {}, and {late} \
             began at {}",
            to.0, from.0
        ))
    }

    /// A batch is seen whole: where one key shows its value, no other key shows what it replaced.
    fn whole(
        &self,
        (low, high): (u64, u64),
        shown: &BTreeMap<u64, ValueId>,
        spans: &BTreeMap<usize, Span>,
    ) -> Result<(), String> {
        for i in spans.keys() {
            let Call::Batch(first, last, step, value) = self.log.records[*i].call else { continue };
            let mut keys = batch_keys(first, last, step);
            let Some(seen) = keys.find(|key| shown.get(key) == Some(&value)) else { continue };
            for key in batch_keys(first, last, step).filter(|key| (low..=high).contains(key)) {
                let now = shown.get(&key).copied();
                if now != Some(value) && self.is_older(key, now, self.log.records[*i].called) {
                    let now = now.map_or("absent".to_owned(), name);
                    return Err(format!(
                        "snapshot of k{low}..=k{high} shows a part of a batch: k{seen} = {}, but \
                         k{key} = {now}",
                        name(value)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether what a key shows is surely older than a write called at this time.
    fn is_older(&self, key: u64, now: Option<ValueId>, called: u64) -> bool {
        let Some(writes) = self.keys.get(&key) else { return true };
        let ended = |span: &Span| span.1.is_some_and(|ret| ret <= called);
        match now {
            None => writes.removals.iter().all(ended),
            Some(v) if Some(v) == self.log.initial(key) => true,
            Some(v) => writes.of.get(&v).is_some_and(ended),
        }
    }
}
