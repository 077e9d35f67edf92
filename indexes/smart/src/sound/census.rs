//! A census: memory that dead nodes held, or that dropped operations had taken, is found and taken back; locks of the dead are released.
//!
//! How lost memory is told from memory in use while everybody works is the pool's business (`dmtree_pool::Census`); here is what is
//! reachable: a cursor over the keys meets every leaf and node that is there throughout.

use dmtree_fabric::{ErrorKind, OpKind, OpOutcome, Result, Step};
use dmtree_parts::{Found, Work};
use dmtree_pool::{ArenaKey, Census, Grant, Held, Lost, Span, Told};

use super::client::Smart;
use super::defects::Defect;
use super::find::{Spot, View};
use super::format::head::Head;
use super::format::leaf::{State, Stored, Word};
use super::format::slot::{Child, LINE, Slot, Symbol};
use super::get::LeafView;
use super::node::Chore;

/// Pause of a census that waits for operations to end, ns.
const PAUSE_NS: u64 = 50_000;
/// Pieces of work of one call of maintenance.
const PIECES: u32 = 16;
/// Leaves marked in one piece.
const LEAVES: usize = 256;

/// A census under way.
#[derive(Debug)]
pub(crate) struct Going {
    census: Census,
    phase: Phase,
    live: Held,
    lost: Lost,
    /// Those of them that are free once nobody has noted them: with the largest life they may have had.
    objects: Vec<(ArenaKey, Grant)>,
    found: Found,
}

#[derive(Debug)]
enum Phase {
    /// Operations that ran at the beginning have to end.
    Settling,
    /// What is reachable, from a key on.
    Marking(Vec<u8>),
    /// Operations that ran while it was marked have to end.
    Ending,
    /// What the lost objects were.
    Checking(usize),
    /// Operations that may have retired one of them have to end.
    Clearing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    On,
    Wait,
    Over,
}

impl Smart {
    /// A whole census, at once.
    pub(crate) async fn census_op(&self) -> Result<Found> {
        let mut going = self.begin_census().await?;
        let counted = loop {
            match self.census_step(&mut going).await {
                Ok(Pace::On) => {}
                Ok(Pace::Wait) => self.ep.sleep(PAUSE_NS).await,
                Ok(Pace::Over) => break Ok(going.found),
                Err(e) => break Err(e),
            }
        };
        self.node.pool.end_census(&self.ep, going.census).await;
        counted
    }

    /// A piece of the census that follows a death, by one node for all. What goes wrong for want of somebody else begins again.
    pub(crate) async fn census_chore(&self) -> Result<Work> {
        if !self.node.pool.is_first() {
            return Ok(Work::None);
        }
        let scope = self.ep.begin(OpKind::Maintain);
        let again = Again { c: self, wanted: true };
        let mut going = match self.node.take_census() {
            Some(going) => going,
            None => match self.begin_census().await {
                Ok(going) => Box::new(going),
                Err(e) => return again.after(e),
            },
        };
        for _ in 0..PIECES {
            match self.census_step(&mut going).await {
                Ok(Pace::On) => {}
                Ok(Pace::Wait) => {
                    self.ep.sleep(PAUSE_NS).await;
                    break;
                }
                Ok(Pace::Over) => {
                    self.node.pool.end_census(&self.ep, going.census).await;
                    again.done();
                    scope.end(OpOutcome::Other);
                    return Ok(Work::Some);
                }
                Err(e) => {
                    self.node.pool.end_census(&self.ep, going.census).await;
                    return again.after(e);
                }
            }
        }
        self.node.keep_census(going);
        scope.end(OpOutcome::Other);
        Ok(Work::Some)
    }

    async fn begin_census(&self) -> Result<Going> {
        self.ep.renew_deadline();
        let census = self.node.pool.begin_census(&self.ep, self.node.root.index).await?;
        Ok(Going {
            census,
            phase: Phase::Settling,
            live: Held::default(),
            lost: Lost::default(),
            objects: Vec::new(),
            found: Found::default(),
        })
    }

    async fn census_step(&self, going: &mut Going) -> Result<Pace> {
        self.ep.renew_deadline();
        let pool = &self.node.pool;
        match &going.phase {
            Phase::Settling | Phase::Ending | Phase::Clearing
                if !pool.is_past(&self.ep, &going.census).await? =>
            {
                return Ok(Pace::Wait);
            }
            Phase::Settling => going.phase = Phase::Marking(Vec::new()),
            Phase::Marking(from) => {
                let from = from.clone();
                let pin = self.pin();
                let next = self.mark_some(&from, &mut going.live).await?;
                drop(pin);
                match next {
                    Some(next) => going.phase = Phase::Marking(next),
                    None => {
                        pool.raise_barrier(&self.ep, &mut going.census).await?;
                        going.phase = Phase::Ending;
                    }
                }
            }
            Phase::Ending => {
                let held = pool.collect(&self.ep, &going.census, Told::All).await?;
                going.found.doubly = (held.twice.len() + going.live.overlaps(&held)) as u64;
                going.lost = pool.lost(&going.census, &[&going.live, &held]);
                going.phase = Phase::Checking(0);
            }
            Phase::Checking(i) => {
                let i = *i;
                let Some((key, at)) = going.lost.objects.get(i).copied() else {
                    pool.raise_barrier(&self.ep, &mut going.census).await?;
                    going.phase = Phase::Clearing;
                    return Ok(Pace::On);
                };
                let pin = self.pin();
                if let Some(life) = self.last_life(key, at).await? {
                    going.objects.push((key, Grant { addr: at, life }));
                }
                drop(pin);
                going.phase = Phase::Checking(i + 1);
            }
            Phase::Clearing => {
                // An operation, too: should another node have begun a census meanwhile, it waits for this.
                let _pin = self.pin();
                self.take_lost(going).await?;
                return Ok(Pace::Over);
            }
        }
        Ok(Pace::On)
    }

    /// The largest life that a lost object may have had; `None` when nobody can tell.
    async fn last_life(&self, key: ArenaKey, at: dmtree_fabric::GlobalAddr) -> Result<Option<u16>> {
        self.ep.step(Step::Structure);
        let first = self.ep.read(at, 8).await?.word(0);
        let written = match key == self.node.nodes.key() {
            true => Head::of_bits(first).map(|h| h.life),
            false => Word::of_bits(first).map(|w| w.life),
        };
        // A grant may have been used up without a word written.
        Ok(if first == 0 { Some(0) } else { written.map(|life| life.saturating_add(1)) })
    }

    /// The end: what was noted meanwhile is somebody's.
    async fn take_lost(&self, going: &mut Going) -> Result<()> {
        let pool = &self.node.pool;
        let noted = pool.collect(&self.ep, &going.census, Told::Notes).await?;
        for (key, g) in std::mem::take(&mut going.objects) {
            let bytes = u64::from(key.object_bytes);
            let noted = noted.has(Span::object(g.addr, bytes));
            if (noted && !self.node.has(Defect::CensusNoNotes)) || pool.is_worn_out(key, g.life) {
                continue;
            }
            going.found.objects += 1;
            going.found.bytes += bytes;
            pool.retire_lost(key, g);
        }
        for (at, bytes) in std::mem::take(&mut going.lost.space) {
            if noted.has(Span::Bytes(at.bits(), bytes)) {
                continue;
            }
            going.found.space_bytes += bytes;
            pool.retire_space(&going.census, at, bytes);
        }
        Ok(())
    }

    /// Marks what is reachable from a key on; where to go on.
    async fn mark_some(&self, from: &[u8], live: &mut Held) -> Result<Option<Vec<u8>>> {
        let top = self.top().await?;
        let node = |v: &View| Span::object(v.at, u64::from(self.node.nodes.key().object_bytes));
        let root = self.find_until(&[], 0).await?.node;
        if root.at != top.addr {
            return Err(dmtree_fabric::Error::corrupt(format!("{} is no root", root.at)));
        }
        live.add(node(&root));
        let mut stack = vec![(in_order(&root, Some(from)), root, true, 0)];
        let mut marked = 0;
        while let Some((slots, view, border, next)) = stack.last_mut() {
            let Some(slot) = slots.get(*next).copied() else {
                stack.pop();
                continue;
            };
            *next += 1;
            let Some(i) = view.slots.iter().position(|s| *s == slot) else { continue };
            let spot = Spot { at: view.slot_at(i), slot };
            let on_border = *border && slot.is(Symbol::of(from, view.head.len));
            match slot.child()? {
                Some(Child::Node { at, kind }) => {
                    let Some(child) = self.child(spot, at, kind).await? else { continue };
                    live.add(node(&child));
                    let border = on_border && child.leads_to(from);
                    stack.push((in_order(&child, border.then_some(from)), child, border, 0));
                }
                Some(Child::Leaf { at, lines }) => {
                    let key = self.mark_leaf(at, lines, live).await?;
                    marked += 1;
                    if marked >= LEAVES && &key[..] >= from {
                        return Ok(Some([&key[..], &[0]].concat()));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    async fn mark_leaf(
        &self,
        at: dmtree_fabric::GlobalAddr,
        lines: usize,
        live: &mut Held,
    ) -> Result<Vec<u8>> {
        let view = self.read_leaf(at, lines).await?;
        live.add(Span::object(at, lines as u64 * LINE));
        let leaf = view.leaf(self);
        if let Stored::Block(b) = leaf.value {
            live.add(Span::block(b));
        }
        if view.word.state == State::Dead {
            self.node.push_chore(Chore::Bury(leaf.key.to_vec()));
        }
        self.release_for_dead(&view).await?;
        Ok(leaf.key.to_vec())
    }

    /// A leaf that somebody held who is dead.
    async fn release_for_dead(&self, view: &LeafView) -> Result<()> {
        let word = view.word;
        if word.holder.is_some_and(|h| self.node.is_gone(h)) {
            self.ep.cas(view.at, word.bits(), word.held_by(None).bits()).await?;
        }
        Ok(())
    }
}

/// The slots of a node in the order of keys; those from a key on.
fn in_order(view: &View, from: Option<&[u8]>) -> Vec<Slot> {
    let first = from.map(|key| Symbol::of(key, view.head.len));
    let mut slots: Vec<Slot> = view.slots.iter().copied().filter(|s| s.has_child()).collect();
    slots.retain(|s| s.symbol() >= first);
    slots.sort_by_key(|s| s.symbol());
    slots
}

/// A census that is wanted again, unless it is done.
struct Again<'c> {
    c: &'c Smart,
    wanted: bool,
}

impl Again<'_> {
    fn done(mut self) {
        self.wanted = false;
    }

    /// What will do later is no error.
    fn after(self, e: dmtree_fabric::Error) -> Result<Work> {
        let soon = [ErrorKind::Unreachable, ErrorKind::Busy, ErrorKind::TimedOut];
        if soon.contains(&e.kind()) {
            return Ok(Work::None);
        }
        if e.kind() == ErrorKind::Corrupt {
            self.done();
        }
        Err(e)
    }
}

impl Drop for Again<'_> {
    fn drop(&mut self) {
        if self.wanted {
            self.c.node.push_chore(Chore::Census);
        }
    }
}
