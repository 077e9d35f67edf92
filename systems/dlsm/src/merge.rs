//! Compaction: sorted runs become tables. What it keeps is a function of the versions alone; where
//! it runs, and where the tables lie, is the caller's business.

use std::sync::Arc;

use dmtree_fabric::{Endpoint, Result, Stage};

use crate::build::{Builder, Built};
use crate::cursor::Cursor;
use crate::fetch::Fetch;
use crate::key::{KeyRange, Pair, Seq};
use crate::opened::Opened;
use crate::store::Store;
use crate::table::Table;
use crate::wire::Rule;

/// Keys between two awaits.
const TOGETHER: u32 = 128;
/// Bytes that a merge READs of a run at once: at first, and at most.
const AHEAD: (u64, u64) = (64 << 10, 1 << 20);

/// Of the versions of a key, newest first, those that stay: all that are newer than the oldest
/// snapshot, and the newest one up to it; but a deletion that no reader needs goes, if no deeper
/// level has the key.
pub(crate) fn kept(versions: &mut Vec<Pair>, oldest: Seq, bottom: bool) {
    let newer = versions.iter().take_while(|pair| pair.tag.seq() > oldest).count();
    versions.truncate(newer + 1);
    let needless = |last: &Pair| !last.tag.is_value() && last.tag.seq() <= oldest;
    if bottom && versions.last().is_some_and(needless) {
        versions.pop();
    }
}

/// Tables with their indexes, those that are elsewhere READ for as long as the merge lasts.
///
/// # Errors
/// `Corrupt`; those of the fabric.
pub(crate) async fn opened(
    fetch: &impl Fetch,
    runs: &[Vec<Arc<Table>>],
) -> Result<Vec<Vec<Opened>>> {
    let mut all = Vec::with_capacity(runs.len());
    for run in runs {
        let mut whole = Vec::with_capacity(run.len());
        for table in run {
            whole.push(table.whole(fetch).await?);
        }
        all.push(whole);
    }
    Ok(all)
}

/// A merge of runs of tables, as a rule says.
///
/// # Errors
/// `Corrupt`, `Full`; those of the fabric. What was stored is the caller's to give back.
pub(crate) async fn merge<S: Store>(
    (ep, fetch): (&Endpoint, &impl Fetch),
    store: &mut S,
    runs: &[Vec<Opened>],
    rule: &Rule,
) -> Result<Vec<Built>> {
    let whole = rule.range.clone();
    let wide = match rule.splits {
        // The versions of the upper border, too.
        true => {
            KeyRange { high: whole.high.clone().map(|high| [&high[..], &[0]].concat()), ..whole }
        }
        false => whole,
    };
    let mut cursor = Cursor::new(wide, false, AHEAD.1);
    runs.iter().for_each(|run| cursor.add_tables(run, AHEAD.0));
    write_all((ep, fetch), store, (cursor, Stage::MergeEntry), rule).await
}

/// Writes what a cursor yields as tables; an entry costs a stage.
///
/// # Errors
/// As [`merge`].
pub(crate) async fn write_all<S: Store>(
    (ep, fetch): (&Endpoint, &impl Fetch),
    store: &mut S,
    (mut cursor, stage): (Cursor, Stage),
    rule: &Rule,
) -> Result<Vec<Built>> {
    let mut tables = Vec::new();
    let mut builder = Builder::new(store, rule.format, rule.piece_bytes);
    let (mut keys, mut skip) = (0, rule.skips_one);
    while let Some(mut versions) = cursor.next(fetch).await? {
        keys += 1;
        ep.stage_cost(stage, versions.len() as u32);
        if keys % TOGETHER == 0 {
            ep.renew_deadline();
            ep.yield_now().await;
        }
        if std::mem::take(&mut skip) {
            continue;
        }
        if rule.splits {
            split(&mut versions, &rule.range);
        }
        kept(&mut versions, rule.oldest, rule.bottom);
        if builder.bytes() >= rule.table_bytes && !versions.is_empty() {
            tables.extend(builder.finish().await?);
            builder = Builder::new(store, rule.format, rule.piece_bytes);
        }
        for Pair { user, tag, value } in &versions {
            builder.push(user, *tag, value).await?;
        }
    }
    tables.extend(builder.finish().await?);
    store.settle().await?;
    Ok(tables)
}

/// As published: the first version at the upper border is of this part, that at the lower border of
/// the one before.
fn split(versions: &mut Vec<Pair>, range: &KeyRange) {
    let user = &versions[0].user;
    if range.low.as_ref() == Some(user) {
        versions.remove(0);
    } else if range.high.as_ref() == Some(user) {
        versions.truncate(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Tag;

    fn after(versions: &[(Seq, bool)], oldest: Seq, bottom: bool) -> Vec<Seq> {
        let pair = |(seq, value): &(Seq, bool)| Pair {
            user: b"k".to_vec(),
            tag: Tag::new(*seq, *value),
            value: Vec::new(),
        };
        let mut all = versions.iter().map(pair).collect();
        kept(&mut all, oldest, bottom);
        all.iter().map(|pair| pair.tag.seq()).collect()
    }

    #[test]
    fn versions_that_no_reader_needs_go() {
        let versions = [(9, true), (7, false), (5, true), (3, true)];
        assert_eq!(after(&versions, Seq::MAX, false), [9]);
        assert_eq!(after(&versions, 8, false), [9, 7]);
        assert_eq!(after(&versions, 8, true), [9], "the deletion hides nothing");
        assert_eq!(after(&versions, 6, true), [9, 7, 5]);
        assert_eq!(after(&versions, 1, true), [9, 7, 5, 3]);
        assert_eq!(after(&versions[1..], Seq::MAX, true), [0; 0]);
        assert_eq!(after(&versions[1..], Seq::MAX, false), [7]);
    }
}
