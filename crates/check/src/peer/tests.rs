//! The kit fails where it must. A toy index keeps its pairs in a map of this process, and READs one
//! word for each operation.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use dmtree_fabric::{Capabilities, Endpoint, OpKind, OpOutcome, Result};
use dmtree_parts::{
    CacheStats, Fill, Loaded, NodeContext, OpSet, Outcome, Page, RangeIndex, Resume, Root,
    ScanRequest, Shape, Write, check_key,
};
use serde::{Deserialize, Serialize};

use super::costs::{self, cost, means, row};
use super::rows::{self, basics, model};
use super::*;
use crate::conformance::Keys;

type Map = Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>;

/// The maps of the process, by the number in the root word, minus one.
static MAPS: Mutex<Vec<Map>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Options {
    /// Puts of new keys after so many are lost.
    loses_after: Option<usize>,
    /// A new value is made from what was there before a verb.
    races: bool,
}

struct ToyNode(Map, Options, Root);
struct Toy(Endpoint, Arc<ToyNode>);

impl Toy {
    fn map(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.1.0.lock().expect("no panic under this lock")
    }

    async fn verb(&self) -> Result<()> {
        self.0.read(self.1.2.word, 8).await.map(|_| ())
    }
}

/// The outcome of a write, and the value afterwards.
fn written(before: Option<&Vec<u8>>, w: Write<'_>) -> (Outcome, Option<Vec<u8>>) {
    let kept = |outcome| (outcome, before.cloned());
    match (w, before) {
        (Write::Insert(_), Some(_)) => kept(Outcome::Exists),
        (Write::Update(_) | Write::Delete | Write::CompareAndSet { .. }, None) => {
            kept(Outcome::NotFound)
        }
        (Write::CompareAndSet { expected, .. }, Some(now)) if expected != now => {
            kept(Outcome::Mismatch)
        }
        (Write::Put(v) | Write::Insert(v) | Write::Update(v), _) => {
            (Outcome::Done, Some(v.to_vec()))
        }
        (Write::Delete, _) => (Outcome::Done, None),
        (Write::CompareAndSet { new, .. }, _) => (Outcome::Done, new.map(<[u8]>::to_vec)),
    }
}

impl RangeIndex for Toy {
    const OPS: OpSet = OpSet::ALL;
    const NEEDS: Capabilities = Capabilities::NONE;
    type Options = Options;
    type Node = ToyNode;

    fn check_options(_: &Options, _: &NodeContext) -> Result<()> {
        Ok(())
    }
    async fn format(ep: &Endpoint, _: &NodeContext, _: &Options, root: Root) -> Result<()> {
        let number = {
            let mut maps = MAPS.lock().expect("no panic under this lock");
            maps.push(Map::default());
            maps.len() as u64
        };
        ep.write_word(root.word, number).await
    }
    fn node(cx: &NodeContext, o: &Options, root: Root) -> Result<Arc<ToyNode>> {
        let ep = cx.pool.endpoint(0)?;
        let number = ep.core().block_on(ep.slot(), ep.faa(root.word, 0))?;
        let map = MAPS.lock().expect("no panic under this lock")[number as usize - 1].clone();
        Ok(Arc::new(ToyNode(map, *o, root)))
    }
    fn client(ep: Endpoint, node: Arc<ToyNode>) -> Self {
        Self(ep, node)
    }
    fn endpoint(&self) -> &Endpoint {
        &self.0
    }

    async fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        check_key(key)?;
        let op = self.0.begin(OpKind::Get);
        self.verb().await?;
        out.clear();
        let found = self.map().get(key).cloned();
        found.iter().for_each(|v| out.extend_from_slice(v));
        op.end(OpOutcome::Hit);
        Ok(found.is_some())
    }

    async fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<Outcome> {
        check_key(key)?;
        w.check()?;
        let op = self.0.begin(OpKind::Put);
        let early = self.map().get(key).cloned();
        self.verb().await?;
        let mut map = self.map();
        let before = if self.1.1.races { early } else { map.get(key).cloned() };
        let (outcome, after) = written(before.as_ref(), w);
        match after {
            Some(_) if before.is_none() && self.1.1.loses_after.is_some_and(|n| map.len() >= n) => {
            }
            Some(v) if outcome == Outcome::Done => _ = map.insert(key.to_vec(), v),
            None => _ = map.remove(key),
            Some(_) => {}
        }
        op.end(OpOutcome::InsertPlain);
        Ok(outcome)
    }

    async fn scan(&mut self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        page.clear();
        let op = self.0.begin(OpKind::Scan);
        self.verb().await?;
        op.end(OpOutcome::Other);
        let map = self.map();
        let mut inside: Vec<_> = map.iter().filter(|(k, _)| r.contains(k)).collect();
        if r.reverse {
            inside.reverse();
        }
        inside.iter().take(r.limit).for_each(|(k, v)| page.push(k, v));
        let more = inside.len() > r.limit;
        Ok(more.then(|| Resume(Bound::Excluded(inside[r.limit - 1].0.clone()))))
    }

    async fn load(
        &mut self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        _: bool,
        _: Fill,
    ) -> Result<Loaded> {
        let pairs = pairs.map(|(k, v)| self.map().insert(k, v)).count() as u64;
        Ok(Loaded { pairs, leaves: 0 })
    }

    async fn walk(&mut self) -> Result<Shape> {
        Ok(Shape { keys: self.map().len() as u64, ..Shape::default() })
    }

    fn cache_stats(_: &ToyNode) -> CacheStats {
        CacheStats::default()
    }
}

const RACES: Options = Options { loses_after: None, races: true };
const SOUND: Options = Options { loses_after: None, races: false };

fn peer(options: Options) -> Peer<Toy> {
    Peer {
        local: vec![basics(), model("hashed keys", Keys::Hashed24, 300, 1_000)],
        sound: vec![(Setting::new("toy", options, Capabilities::NONE), 0..4)],
        ..Peer::new(vec![("toy", options)], |_| 1 << 10, |o, _| *o)
    }
}

fn one(failures: &[String], words: &str) {
    assert!(failures.len() == 1 && failures[0].contains(words), "{failures:?}");
}

#[test]
fn an_index_that_loses_a_key_fails() {
    assert_eq!(rows::local(&peer(SOUND)), Vec::<String>::new());
    assert_eq!(rows::apart(&peer(SOUND)), Vec::<String>::new());
    let loses = peer(Options { loses_after: Some(20), ..SOUND });
    one(&rows::local(&loses), "toy: hashed keys: ");
    one(&rows::apart(&loses), "toy, apart: ");
}

#[test]
fn seeds_that_must_find_nothing_find_a_race() {
    assert_eq!(defects::sound(&peer(SOUND)), Vec::<String>::new());
    assert!(!defects::sound(&peer(RACES)).is_empty());
}

/// A defect: it has to show, and its repair has to remove it.
#[test]
fn a_defect_that_is_repaired_fails() {
    let defect = |broken, repaired| {
        let setting = Setting::new("toy", broken, Capabilities::NONE);
        let defect = Defect::new("a race", setting, 0, Repair::Options(repaired));
        Peer { defects: vec![Defect { counted: 3, ..defect }], ..peer(SOUND) }
    };
    assert_eq!(defects::found(&defect(RACES, SOUND)), Vec::<String>::new());
    one(&defects::found(&defect(SOUND, SOUND)), "a race: no seed of 0..20 shows it");
    one(&defects::found(&defect(RACES, RACES)), "a race, repaired: seed ");
    let table = tables(&defect(RACES, SOUND));
    assert!(table.contains("| a race | toy | nothing | ") && table.contains(" | none of 3 |"));
}

#[test]
fn a_wrong_number_in_a_table_of_costs_fails() {
    let verb = cost(1, [1, 0, 0, 8, 0]);
    let with = |rows: Vec<costs::Row>, means: Vec<costs::Mean>| {
        let budget = Budget::<Toy>::new(vec![("toy", SOUND)], rows);
        let budget = Budget { keys: 1_000, means, ..budget };
        Peer { budgets: vec![budget], ..peer(SOUND) }
    };
    let rows = |cost| vec![row(&["toy"], &["get", "get absent", "update", "insert"], cost)];
    let good = with(rows(verb), means("toy", "get", &[(costs::TRIPS, 1.0)]));
    assert_eq!(costs::check(&good), Vec::<String>::new());
    assert!(
        tables(&good).contains("| toy | update | 1 | 1 | 0 | 0 | 8 | 0 | 1.000 | 1.00 | 1.00 |")
    );
    assert_eq!(costs::check(&with(rows(cost(1, [1, 0, 0, 16, 0])), Vec::new())).len(), 4);
    let mean = means("toy", "get", &[(costs::VERBS, 1.04)]);
    one(&costs::check(&with(Vec::new(), mean)), "toy: get, mean: 1.0000, wanted 1.0400");
    let twice = |times| vec![row(&["toy"], &["get"], cost(0, [0; 5])).again(verb, Some(times))];
    assert_eq!(costs::check(&with(twice(1.0), Vec::new())), Vec::<String>::new());
    one(&costs::check(&with(twice(1.1), Vec::new())), "wanted 1.1");
    one(&costs::check(&with(vec![row(&["toy"], &["merge"], verb)], Vec::new())), "not measured");
}
