//! Models in the place of cached inner nodes: a model is a hint, fences decide.
//!
//! A compute node predicts the leaves that may hold a key, READs all of them in one round trip,
//! and takes the one that has the key within its fences. The tree of inner nodes stays on memory
//! nodes as it is without models: it is what models are trained from, and where a search goes that
//! a model does not lead to its leaf.
//!
//! *Why no model can be wrong.* A table names leaves with their generations, as records of bottom
//! nodes named them (B: published). A search that reads one of them, whole and alive, in that
//! generation, with fences that hold the key, has what a route from the cache gives it. It goes on
//! as from such a route: along `next`, at most [`MAX_HOPS`] leaves, or down the tree. So a model
//! that is old, of half a directory, or of garbage, is a longer way.
//!
//! | file | owns |
//! |---|---|
//! | `page.rs` | a page: the leaves of a range, and the lines that predict them (invariant M) |
//! | `directory.rs` | the pages of all keys, as a compute node knows them |
//! | `search.rs` | the way from a key to its leaf, and to the leaves of a scan |
//! | `train.rs` | training: claim, bottom nodes, blocks, publication, retirement; refresh (D) |
//! | `check.rs` | what a walk compares |
//!
//! *Longer ways.* A search that takes more than its window counts at its page. At every
//! `retrain_after` of them a chore compares the directory word with the node's directory, and
//! fetches it where it has changed; otherwise it trains the page. Pages of other nodes' training
//! are fetched when a search needs them.
//!
//! *Budget.* Pages that are here fit a part of the cache's budget, in second-chance order; a page
//! that is not here is one READ. A directory that does not fit even without pages is not kept:
//! searches descend the tree.
//!
//! Nothing here is needed after a crash. A trainer that dies leaves a claim, which the next one
//! takes over, and blocks that nothing names, or that nothing names any more: the garbage
//! collection finds them.

mod check;
mod directory;
#[cfg(test)]
mod litmus;
mod page;
mod search;
mod train;

pub(crate) use check::Published;
pub(crate) use page::LeafEntry;
pub(crate) use search::{Found, ModelSearch};
pub(crate) use train::Trainer;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use directory::{Directory, PageRef};
use page::{ModelPage, Precision};

use crate::options::{Models, Techniques};
use crate::{DmNode, Mutant};

/// Leaves that a search goes to the right of its window.
const MAX_HOPS: u32 = 4;
/// READs that a search does to the left of its window.
const MAX_LEFT: u32 = 2;
/// Leaves behind the last page's table that a node remembers.
const MAX_TAIL: usize = 64;
/// Pages that one training writes at most.
const MAX_PAGES: usize = 8;

/// The models of an index on a compute node.
#[derive(Debug)]
pub(crate) struct NodeModels {
    /// The likeliest leaf is READ alone.
    is_coarse: bool,
    at: Precision,
    /// Leaves of a page.
    page_leaves: usize,
    /// Longer ways to a training; 0 for none after the first.
    retrain_after: u32,
    budget: u64,
    directory: RwLock<Arc<Directory>>,
    /// A client of this node has looked for a directory.
    has_looked: AtomicBool,
    /// Bytes of the pages that are here.
    used: AtomicU64,
    /// Where the search for room goes on.
    hand: AtomicUsize,
}

impl NodeModels {
    /// Those of these options, if there are any, within a budget.
    pub fn of(t: &Techniques, span: usize, budget: u64) -> Option<Self> {
        (t.models != Models::None).then(|| Self {
            is_coarse: t.models == Models::Likeliest,
            at: Precision { span: span as u32, error: t.error_bound - 1 },
            page_leaves: t.page_leaves as usize,
            retrain_after: t.retrain_after,
            budget,
            directory: RwLock::new(Arc::new(Directory::empty(0, true))),
            has_looked: AtomicBool::new(false),
            used: AtomicU64::new(0),
            hand: AtomicUsize::new(0),
        })
    }

    /// Bytes that models may take.
    pub fn budget_bytes(&self) -> u64 {
        self.budget
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed) + self.directory().memory_bytes()
    }

    fn directory(&self) -> Arc<Directory> {
        self.directory.read().expect("no panic under this lock").clone()
    }

    /// The leaves of a page that a search for a key READs.
    fn window(&self, node: &DmNode, page: &ModelPage, key: &[u8]) -> Range<usize> {
        let (mut window, likeliest) = page.window(key, self.at);
        if self.is_coarse {
            return likeliest..likeliest + 1;
        }
        if node.has(Mutant::LearnWindowShort) {
            window.end = window.end.max(window.start + 2) - 1;
        }
        if node.has(Mutant::LearnLeftBorder) {
            window.start = likeliest;
        }
        window
    }

    /// A directory takes the place of another. Pages that stay keep what is known of them.
    fn install(&self, mut new: Directory) -> Arc<Directory> {
        let old = self.directory();
        for page in &mut new.pages {
            let same = &old.pages[old.number(&page.name.lo)];
            if same.name == page.name && !Arc::ptr_eq(same, page) {
                same.longer.store(0, Ordering::Relaxed);
                *page = same.clone();
            }
        }
        if new.memory_bytes() > self.budget {
            new = Directory::empty(new.word, false);
        }
        let new = Arc::new(new);
        *self.directory.write().expect("no panic under this lock") = new.clone();
        let is_kept =
            |page: &&Arc<PageRef>| Arc::ptr_eq(page, &new.pages[new.number(&page.name.lo)]);
        for page in old.pages.iter().filter(|page| !is_kept(page)) {
            self.drop_models(page);
        }
        new
    }

    fn drop_models(&self, page: &PageRef) {
        if let Some(models) = page.loaded().take() {
            self.used.fetch_sub(models.memory_bytes(), Ordering::Relaxed);
        }
    }

    /// The models of a page are here from now on, and others leave for them.
    fn keep(&self, directory: &Directory, page: &PageRef, models: &Arc<ModelPage>) {
        let bytes = models.memory_bytes();
        let room = self.budget.saturating_sub(directory.memory_bytes());
        if bytes > room {
            return;
        }
        for _ in 0..2 * directory.pages.len() {
            if self.used.load(Ordering::Relaxed) + bytes <= room {
                break;
            }
            let hand = self.hand.fetch_add(1, Ordering::Relaxed) % directory.pages.len();
            let victim = &directory.pages[hand];
            if !victim.used.swap(false, Ordering::Relaxed) {
                self.drop_models(victim);
            }
        }
        if page.loaded().replace(models.clone()).is_none() {
            self.used.fetch_add(bytes, Ordering::Relaxed);
        }
        // Another directory may have taken its place meanwhile.
        let now = self.directory();
        if !std::ptr::eq(&*now.pages[now.number(&page.name.lo)], page) {
            self.drop_models(page);
        }
    }
}
