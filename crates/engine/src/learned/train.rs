//! Training: models from bottom nodes, and a directory for all compute nodes.
//!
//! 1. *Refresh.* READ the directory word. When it has changed, READ the directory, and end.
//! 2. *Claim.* `[CAS claim 0->tag, READ word]`: one trainer at a time. A claim of a living client
//!    ends the training; an abandoned one is freed, as any abandoned plain lock word, and taken.
//! 3. READ the directory that the word names: under the claim no other client changes it.
//! 4. READ the bottom nodes of the page's range, and no leaf: they have every published leaf with
//!    its lower fence. (A leaf without a record yet is found along `next`.)
//! 5. WRITE the new pages; awaited. WRITE the new directory; awaited.
//! 6. `CAS word old->new`: publishes.
//! 7. Retire the old directory and the pages that it has and the new one has not: their readers
//!    are operations that run now.
//! 8. `CAS tag->0`.
//!
//! *D (directory).* The word names a block that is whole, of this index, and names blocks of whole
//! pages; none of them is free. It holds by the order of 5, 6 and 7, and because all of 2 to 7 is
//! one operation: memory that is taken in it is reachable, or known to the garbage collection, when
//! it ends.
//!
//! *Crashes.* Before 6: blocks that nothing names. Behind 6: old blocks that nothing names any
//! more. The garbage collection finds both. The claim is abandoned: a sweep or the next trainer
//! frees it. Nothing else was changed, so there is nothing to repair. A trainer that has only
//! failed leaves the same; where nothing was published and no WRITE is in doubt it gives the blocks
//! back.
//!
//! A late trainer publishes an old table, which is a longer way. One without a lease has lost its
//! claim, and executes nothing any more.
//!
//! A block that is named and is no directory of this index and format is left as it is: training
//! fails, and names it. Searches descend the tree meanwhile.

use std::sync::Arc;

use dmtree_fabric::verb::read;
use dmtree_fabric::{Effect, Error, ErrorKind, Result, Stage, Step};
use dmtree_parts::MAX_VALUE_BYTES;
use dmtree_pool::{BlockPtr, Span};

use crate::format::{LockTag, block};
use crate::leaf::{Blocks, Unwritten};
use crate::learned::directory::{self, Directory, PageName, number_of};
use crate::learned::page::{Fenced, LeafEntry, ModelPage};
use crate::learned::{MAX_PAGES, NodeModels};
use crate::lock::{HeldLock, Lockable};
use crate::maintenance::GcRun;
use crate::recovery::WordRecovery;
use crate::router::{Router, route_of};
use crate::{Client, Mark, Mutant, Unlock};

/// A directory of so many pages has larger ones: its image stays a block.
const MANY_PAGES: usize = 4096;
/// Largest doubling of a page for that.
const MAX_DOUBLINGS: usize = 5;

/// The claim of a trainer.
struct Claim(LockTag);

impl Unlock<Claim> for Client {
    async fn unlock(&self, claim: Claim) -> Result<()> {
        let done = self.ep.cas(self.node.root.claim(), claim.0.0, 0).await.map(|_| ());
        self.unlocked(claim.0, done)
    }
}

/// What a training writes.
#[derive(Default)]
struct Written {
    names: Vec<PageName>,
    pages: Vec<Arc<ModelPage>>,
    blocks: Vec<BlockPtr>,
    /// With a mutant only: what is written when it is published.
    late: Unwritten,
}

/// What a look after the models of a key has come to.
#[derive(Default)]
pub(crate) struct Trained {
    /// This client has published; otherwise another one has trained, or trains.
    pub is_here: bool,
    /// A key that has no models then.
    pub next: Option<Vec<u8>>,
}

/// Trains the models of an index.
#[derive(Clone, Copy)]
pub(crate) struct Trainer<'c>(pub &'c Client, pub &'c NodeModels);

impl Trainer<'_> {
    /// Looks after the models of a key: fetches a directory that has changed, or trains the page of
    /// the key.
    pub(crate) async fn run(self, key: &[u8]) -> Result<Trained> {
        let c = self.0;
        c.spare.set(false);
        if let Some(fresh) = self.refresh().await? {
            let page = &fresh.pages[fresh.number(key)];
            if page.name.block().is_some() {
                return Ok(Trained::default());
            }
        }
        let Some((claim, word)) = self.claim().await? else { return Ok(Trained::default()) };
        let trained = self.train(word, claim.0.0, key).await;
        match trained {
            Err(e) if e.kind() == ErrorKind::Full && e.effect() == Effect::None => {
                c.unlock(claim).await?;
                Ok(Trained::default())
            }
            trained => {
                let (claim, trained) = c.under(claim, trained).await?;
                c.unlock(claim).await?;
                Ok(trained)
            }
        }
    }

    /// READs the directory word, and the directory when this node knows another one; returns it
    /// then.
    pub(crate) async fn refresh(self) -> Result<Option<Arc<Directory>>> {
        let known = self.1.directory();
        self.0.ep.step(Step::Route);
        let word = self.0.ep.read(self.0.node.root.directory(), 8).await?.word(0);
        if word == known.word {
            return Ok(None);
        }
        Mark::DirectoryFetched.hit();
        let (stamp, mut names) = read_directory(self.0, word).await?;
        if self.0.node.has(Mutant::LearnHalfRefresh) {
            let half = names.len().div_ceil(2);
            names.truncate(half);
            names.extend(known.pages.iter().skip(half).map(|page| page.name.clone()));
        }
        Ok(Some(self.1.install(Directory::of((word, stamp), names))))
    }

    /// Takes the claim; with it comes the directory word. `None` when another client trains.
    async fn claim(self) -> Result<Option<(Claim, u64)>> {
        let c = self.0;
        let at = c.node.root.claim();
        for _ in 0..2 {
            let tag = c.tags.next();
            let own = HeldLock { tag, on: Lockable::Word(at) };
            c.ep.step(Step::Lock);
            let (was, word) = c.try_for(own, (at, 0), read(c.node.root.directory(), 8)).await?;
            if was == 0 {
                c.hold(tag, own.on);
                return Ok(Some((Claim(tag), word.word(0))));
            }
            if !c.node.is_abandoned_at(was, at) || c.node.has(Mutant::LearnClaimKept) {
                break;
            }
            Mark::ClaimTakenOver.hit();
            WordRecovery(c).recover(at, was).await?;
        }
        Mark::ClaimHeld.hit();
        Ok(None)
    }

    /// Trains the page of a key under the claim.
    async fn train(self, word: u64, stamp: u64, key: &[u8]) -> Result<Trained> {
        let Self(c, models) = self;
        let old = read_directory(c, word).await?.1;
        let number = number_of(&old, |page| &page.lo, key);
        if old[number].block().is_some() && models.retrain_after == 0 {
            return Ok(Trained::default());
        }
        let size = models.page_leaves << (old.len() / MANY_PAGES).min(MAX_DOUBLINGS);
        let (fences, end, rest) = self.leaves(&old, number, size).await?;
        let mut written = Written::default();
        let published = async {
            self.pages(&fences, stamp, size, &mut written).await?;
            let mut names = old[..number].to_vec();
            names.extend_from_slice(&written.names);
            names.extend(rest.clone().map(PageName::untrained));
            names.extend_from_slice(&old[end..]);
            let word = self.publish(word, stamp, &names, &mut written).await?;
            Ok::<_, Error>((word, names))
        };
        let (new, names) = match published.await {
            Ok(published) => published,
            Err(e) => {
                if e.effect() == Effect::None {
                    written.blocks.into_iter().for_each(|at| Blocks(c).give_back_one(at));
                }
                return Err(e);
            }
        };
        Mark::Trained.hit();
        Blocks(c).write(&mut written.late).await?;
        self.retire(word, &old[number..end]);
        let new = models.install(Directory::of((new, stamp), names));
        for (name, page) in written.names.iter().zip(&written.pages) {
            let page_ref = &new.pages[new.number(&name.lo)];
            if page_ref.name == *name {
                models.keep(&new, page_ref, page);
            }
        }
        Ok(Trained { is_here: true, next: rest })
    }

    /// The leaves of a page's range, which may end at the page with this number instead of the next
    /// one, or at a key at which another training has to go on.
    async fn leaves(
        self,
        old: &[PageName],
        number: usize,
        size: usize,
    ) -> Result<(Vec<Fenced>, usize, Option<Vec<u8>>)> {
        let c = self.0;
        let mut cursor = old[number].lo.clone();
        let (mut fences, mut end): (Vec<Fenced>, usize) = (Vec::new(), number + 1);
        loop {
            c.ep.renew_deadline();
            let node = Router(c).descend(&cursor, 1).await?;
            let first = node.keys().floor(&cursor).unwrap_or(0);
            for i in first..node.len() {
                let low = node.keys().get(i).max(&cursor[..]);
                while end < old.len() && low >= &old[end].lo[..] {
                    // A page that has shrunk goes on into the next one.
                    if fences.len() * 4 >= size {
                        return Ok((fences, end, None));
                    }
                    end += 1;
                }
                if fences.len() >= size * MAX_PAGES {
                    return Ok((fences, end, Some(low.to_vec())));
                }
                fences.push((low.to_vec(), LeafEntry::of(&route_of(&node.record(i)))));
            }
            match node.hi() {
                Some(hi) => cursor = hi.to_vec(),
                None => return Ok((fences, old.len(), None)),
            }
        }
    }

    /// Trains pages and WRITEs them.
    async fn pages(
        self,
        fences: &[Fenced],
        stamp: u64,
        size: usize,
        written: &mut Written,
    ) -> Result<()> {
        let c = self.0;
        let head = directory::Head::of(c.node.root.index, stamp);
        let count = fences.len().div_ceil(size).max(1);
        for fences in fences.chunks(fences.len().div_ceil(count)) {
            // The fit takes the border of every slot of a leaf.
            let borders = fences.len() * c.node.capacity();
            c.ep.stage_cost(Stage::NodeImage, borders as u32);
            let late = c.node.has(Mutant::LearnTieCut);
            let page = Arc::new(ModelPage::train(fences, self.1.at, late));
            let at = self.write(&page.encoded(head), true, written).await?;
            written.names.push(PageName::new(fences[0].0.clone(), at, stamp));
            written.pages.push(page);
        }
        Ok(())
    }

    /// WRITEs an image into a new block, awaited.
    async fn write(self, image: &[u8], is_page: bool, written: &mut Written) -> Result<BlockPtr> {
        let c = self.0;
        if image.len() > MAX_VALUE_BYTES {
            let len = image.len();
            return Err(Error::full(format!("{len} bytes of models do not fit a block")));
        }
        let (at, buf) = Blocks(c).take(&[], image, None).await?;
        written.blocks.push(at);
        if is_page && c.node.has(Mutant::LearnPublishEarly) {
            written.late.push((at, buf));
            return Ok(at);
        }
        c.ep.step(Step::Structure);
        c.ep.write(at.addr(), buf).await?;
        Ok(at)
    }

    /// WRITEs the directory of these pages and publishes it; the new content of the word.
    async fn publish(
        self,
        old: u64,
        stamp: u64,
        names: &[PageName],
        written: &mut Written,
    ) -> Result<u64> {
        let c = self.0;
        let image = directory::encoded(directory::Head::of(c.node.root.index, stamp), names);
        let at = self.write(&image, false, written).await?;
        c.check_lease_untouched()?;
        c.ep.step(Step::Structure);
        let was = c.ep.cas(c.node.root.directory(), old, at.bits()).await.map_err(|e| {
            // Whatever its effect: the blocks may be published.
            e.effect_unknown()
        })?;
        if was != old {
            let word = c.node.root.directory();
            return Err(Error::corrupt(format!(
                "the directory word at {word} changed under a claim"
            ))
            .effect_unknown());
        }
        Ok(at.bits())
    }

    /// The old directory, and pages that only it has.
    fn retire(self, word: u64, pages: &[PageName]) {
        let c = self.0;
        let old = (word != 0).then(|| BlockPtr::from_bits(word));
        for at in pages.iter().filter_map(PageName::block).chain(old) {
            match c.node.has(Mutant::LearnRetireEarly) {
                true => Blocks(c).give_back_one(at),
                false => Blocks(c).retire(at),
            }
        }
    }

    /// The mark phase of a garbage collection: the directory and its pages are in use.
    pub(crate) async fn mark(self, gc_run: &mut GcRun) -> Result<()> {
        let c = self.0;
        let word = c.ep.read(c.node.root.directory(), 8).await?.word(0);
        if word == 0 {
            return Ok(());
        }
        let pages = read_directory(c, word).await?.1;
        let blocks = pages.iter().filter_map(PageName::block);
        for at in blocks.chain([BlockPtr::from_bits(word)]) {
            gc_run.live.add(Span::block(at));
        }
        Ok(())
    }
}

/// The stamp and the pages of the directory that a content of the word names; this operation has
/// READ that word.
pub(crate) async fn read_directory(c: &Client, word: u64) -> Result<(u64, Vec<PageName>)> {
    if word == 0 {
        return Ok((0, vec![PageName::untrained(Vec::new())]));
    }
    let at = BlockPtr::from_bits(word);
    c.ep.step(Step::Route);
    let bytes = c.ep.read(at.addr(), at.capacity()).await?;
    let pages = bytes.extract(|b| {
        block::check(at, b).and_then(|(_, image)| directory::decoded(c.node.root.index, image))
    });
    pages.ok_or_else(|| {
        Error::corrupt(format!(
            "at {} is no directory of this index in this format: searches descend the tree",
            at.addr()
        ))
    })
}
