//! Range reads: a walk over the tree in key order, from a node that covers the range.
//!
//! The walk starts at the root, or at a cached node with a prefix that both bounds share. It keeps
//! a stack of nodes with the children that are still to be visited. Verbs: READ node for each inner
//! node; one batch of READs for consecutive leaves; READ block for a value in a block. A scan
//! changes only what every slow descent completes (`find.rs`).
//!
//! Invariants: nodes are READ anew, so the scan finds a key that is present throughout, because its
//! path only grows. Each pair is current at the sample of its leaf's word; a scan is no snapshot.
//! Prefixes are not stored: where a node's prefix is not a prefix of the bound, any key below the
//! node shows on which side of the bound all its keys are.

use std::ops::Bound;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, OpKind, OpOutcome, Result, Stage, Step};
use dmtree_parts::keys::common;
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest};

use super::client::Smart;
use super::find::Paths;
use super::find::{SlotRef, View};
use super::format::leaf::{LeafState, Stored};
use super::format::slot::{Child, Slot, Symbol};
use super::get::LeafView;
use super::get::Reads;
use super::insert::Inserts;

const MAX_READS_TOGETHER: usize = 64;

/// A node on the path, and its children that are still to be visited; the next one is last.
struct Frame {
    children: Vec<(GlobalAddr, Slot)>,
    /// The range may begin in the next child.
    border: bool,
}

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c Smart);

impl Scans<'_> {
    pub(crate) async fn scan_op(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        page.clear();
        r.check()?;
        let scope = self.0.ep.begin(OpKind::Scan);
        let _pin = self.0.op.pin()?;
        let resume = self.scan_pinned(r, page).await?;
        self.0.ep.stage_cost(Stage::ScanCollect, page.len() as u32);
        scope.end(OpOutcome::Other);
        Ok(resume)
    }

    async fn scan_pinned(&self, r: &ScanRequest<'_>, page: &mut Page) -> Result<Option<Resume>> {
        let (begin, end) = r.ends();
        let shared = match (begin, end) {
            (Some(a), Some(b)) => common(a, b),
            _ => 0,
        };
        let top = Paths(self.0).find_until(begin.map_or(&[], |b| &b[..shared]), 0).await?.node;
        let mut stack = vec![self.frame(&top, begin.map(|b| (b, true)), r.reverse).await?];
        while let Some(frame) = stack.last_mut() {
            let Some((at, slot)) = frame.children.last().copied() else {
                stack.pop();
                continue;
            };
            match slot.child()? {
                Some(Child::Node { at: node, kind }) => {
                    frame.children.pop();
                    let border = std::mem::replace(&mut frame.border, false);
                    if let Some(view) =
                        Paths(self.0).child(SlotRef { at, slot }, node, kind).await?
                    {
                        let begin = begin.map(|b| (b, border));
                        stack.push(self.frame(&view, begin, r.reverse).await?);
                    }
                }
                Some(Child::Leaf { .. }) => {
                    frame.border = false;
                    let most = MAX_READS_TOGETHER.min(r.limit - page.len());
                    let leaves = take_leaves(&mut frame.children, most)?;
                    match self.emit(&leaves, r, page).await? {
                        Ended::No => {}
                        Ended::Range => return Ok(None),
                        Ended::Page(last) => return Ok(Some(Resume(Bound::Excluded(last)))),
                    }
                }
                _ => {
                    frame.children.pop();
                }
            }
        }
        Ok(None)
    }

    /// The children of a node that are to be visited. `begin`: where the range begins, and whether
    /// that may be below this node.
    async fn frame(
        &self,
        view: &View,
        begin: Option<(&[u8], bool)>,
        reverse: bool,
    ) -> Result<Frame> {
        let mut children = view.children();
        if !reverse {
            children.reverse();
        }
        let Some((key, true)) = begin else { return Ok(Frame { children, border: false }) };
        if view.leads_to(key) {
            let first = Symbol::of(key, view.head.len);
            children.retain(|(_, s)| match reverse {
                false => s.symbol() >= Some(first),
                true => s.symbol() <= Some(first),
            });
            let border = children.last().is_some_and(|(_, s)| s.is(first));
            return Ok(Frame { children, border });
        }
        // All its keys are on one side of the bound.
        let inside = match Inserts(self.0).any_key(view).await? {
            Some(some) if reverse => some.as_slice() < key,
            Some(some) => some.as_slice() > key,
            None => false,
        };
        if !inside {
            children.clear();
        }
        Ok(Frame { children, border: false })
    }

    /// Adds the pairs of a group of leaves to the page.
    async fn emit(
        &self,
        leaves: &[(GlobalAddr, usize)],
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Ended> {
        let mut value = Vec::new();
        for mut view in self.read_leaves(leaves).await? {
            let mut backoff = self.0.ep.backoff("value being replaced", view.at);
            loop {
                let leaf = view.leaf(self.0);
                if r.is_behind(leaf.key) {
                    return Ok(Ended::Range);
                }
                if view.word.state == LeafState::Tombstone || !r.contains(leaf.key) {
                    break;
                }
                let whole = match leaf.value {
                    Stored::Inline(v) => {
                        page.push(leaf.key, v);
                        true
                    }
                    Stored::Block(b) => {
                        let whole = Reads(self.0).read_block(b, &mut value).await?;
                        if whole {
                            page.push(leaf.key, &value);
                        }
                        whole
                    }
                };
                if whole {
                    if page.len() >= r.limit || page.bytes() >= PAGE_BYTES {
                        return Ok(Ended::Page(leaf.key.to_vec()));
                    }
                    break;
                }
                backoff.step().await?;
                view = Reads(self.0).read_leaf(view.at, view.lines).await?;
            }
        }
        Ok(Ended::No)
    }

    /// READs leaves of the tree together; READs a torn leaf again.
    pub(crate) async fn read_leaves(
        &self,
        leaves: &[(GlobalAddr, usize)],
    ) -> Result<Vec<LeafView>> {
        let mut verbs = VerbVec::new();
        for (at, lines) in leaves {
            verbs.read(*at, (lines * 64) as u32);
        }
        self.0.ep.step(Step::Entry);
        let read_at = self.0.ep.now();
        let mut verbs = self.0.ep.batch(verbs).await?;
        self.0.ep.stage_cost(Stage::EntryCheck, leaves.len() as u32);
        let mut views = Vec::with_capacity(leaves.len());
        for (i, (at, lines)) in leaves.iter().enumerate() {
            let view = LeafView::of(self.0, *at, *lines, verbs.take_sampled(i), read_at);
            views.push(match view {
                Some(view) => view,
                None => Reads(self.0).read_leaf(*at, *lines).await?,
            });
        }
        Ok(views)
    }
}

enum Ended {
    No,
    /// Nothing of the range is left.
    Range,
    /// The page is full; its last key.
    Page(Vec<u8>),
}

/// Takes the next leaves, up to the next node.
fn take_leaves(
    children: &mut Vec<(GlobalAddr, Slot)>,
    most: usize,
) -> Result<Vec<(GlobalAddr, usize)>> {
    let mut leaves = Vec::new();
    while leaves.len() < most
        && let Some((_, slot)) = children.last()
        && let Some(Child::Leaf { at, lines }) = slot.child()?
    {
        leaves.push((at, lines));
        children.pop();
    }
    Ok(leaves)
}
