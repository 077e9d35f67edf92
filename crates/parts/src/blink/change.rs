//! Adds a new separator to the page above: splits of inner pages, and new roots.
//!
//! Verbs in order, per level: READ of the path to the page (or the page of the last descent); lock,
//! READ page, WRITE page and release. If the record fills the page: WRITE right half as a new page,
//! WRITE left half and release, and the same again one level up. A new root: WRITE page, CAS root
//! word: old root -> new page.
//!
//! Invariants: a client holds one lock at a time. A page that does not cover the key any more has
//! been split, and the right link leads to the page that does. Between the division of a page and
//! the record of its separator, the right link of the left half reaches the right half.
//!
//! A crash before a separator is added leaves it missing for ever; the subtree stays reachable by
//! the right link. A crash between the WRITEs of the two halves loses the memory of the right half.
//! In both cases a lock that was held stays held.

use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Step};

use super::{Descent, Format, Header, Inner, MAX_LEVELS, Page, PageTree, apart, highest, lowest};

/// A separator and the page behind it, which are due in the page above.
type Due = (Vec<u8>, GlobalAddr);

/// Changes of inner pages.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait Separators: PageTree {
    /// Adds a record to the page of `level` that covers its key, or makes a root there.
    async fn add_separator(&self, level: u8, key: &[u8], child: GlobalAddr) -> Result<()> {
        let (mut level, mut key, mut child) = (level, key.to_vec(), child);
        // Each round is the last, or continues one level up.
        for _ in 0..MAX_LEVELS {
            let Some(at) = self.parent(level, &key, child).await? else { return Ok(()) };
            match self.insert_record(at, &key, child).await? {
                None => return Ok(()),
                Some((separator, right)) => {
                    (level, key, child) = (level + 1, separator, right);
                }
            }
        }
        Err(Error::corrupt(format!("a tree of more than {MAX_LEVELS} levels")))
    }

    /// The page of `level` that should cover a key: from the last descent, or by a new descent.
    /// `None`: the level did not exist, and a new root with this record is there now.
    async fn parent(&self, level: u8, key: &[u8], child: GlobalAddr) -> Result<Option<GlobalAddr>> {
        let known = self.way().path.borrow().get(usize::from(level)).copied();
        if let Some(at) = known.filter(|at| !at.is_null()) {
            return Ok(Some(at));
        }
        if let Some((above, known)) = self.lowest_cached(key, level)
            && above == level + 1
        {
            return Ok(Some(known.leaf));
        }
        let mut backoff = self.ep.backoff("the page above", self.node.root.word);
        loop {
            let root = self.read_root().await?;
            let page = self.read_page(root).await?;
            let top = match &page {
                Page::Leaf => 0,
                Page::Inner(image) => Inner::of(self.format(), image)?.h.level,
            };
            if top >= level {
                let first = Some((root, page)).filter(|_| self.pages().reads_root);
                return self.descend_from(first, key, level).await.map(|r| Some(r.leaf));
            }
            if top + 1 == level && self.grow(level, root, key, child).await? {
                return Ok(None);
            }
            // Another client's root is there, or is about to be.
            self.retried.set(true);
            backoff.step().await?;
        }
    }

    /// Puts a new root above the old one; false when the root has changed.
    async fn grow(
        &self,
        level: u8,
        old: GlobalAddr,
        key: &[u8],
        child: GlobalAddr,
    ) -> Result<bool> {
        let g = self.format();
        let at = self.new_page().await?;
        let (low, high) = (lowest(g.key_bytes()), highest(g.key_bytes()));
        let sibling = GlobalAddr::NULL;
        let (low, high) = (&low[..], &high[..]);
        let beyond = GlobalAddr::NULL;
        let h = Header { leftmost: old, sibling, level, records: 1, low, high, beyond };
        let image = self.inner_image(&h, [(key, child)].into_iter()).await?;
        self.ep.step(Step::Structure);
        self.ep.write(at, image).await?;
        let was = self.ep.cas(self.node.root.word, old.bits(), at.bits()).await?;
        self.pages().forget_top();
        Ok(was == old.bits())
    }

    /// The image of a new inner page.
    async fn inner_image<'k>(
        &self,
        h: &Header<'_>,
        records: impl Iterator<Item = (&'k [u8], GlobalAddr)>,
    ) -> Result<Buf> {
        let g = self.format();
        let mut image = self.blank(g.inner_bytes()).await?;
        g.put_header(&mut image, h);
        for (i, (key, child)) in records.enumerate() {
            g.put_record(&mut image, i, key, child);
        }
        g.seal(&mut image);
        Ok(image)
    }

    /// Locks and READs the inner page that covers a key; starts at `at` and follows right links.
    async fn lock_inner(
        &self,
        at: GlobalAddr,
        key: &[u8],
    ) -> Result<(GlobalAddr, Self::Held, Buf)> {
        let mut at = at;
        loop {
            let held = self.lock(at).await?;
            let (held, image) = self.under(held, self.read_inner(at).await).await?;
            let (held, n) = self.under(held, Inner::of(self.format(), &image)).await?;
            let h = n.h;
            if h.covers(key) {
                return Ok((at, held, image));
            }
            self.unlock(held).await?;
            at = match h.begins_after(key) {
                true => self.descend(key, h.level).await?,
                false => self.hop(&h, at)?,
            };
        }
    }

    /// READs a locked inner page until it passes its check: the WRITE of the last holder may not
    /// have landed.
    async fn read_inner(&self, at: GlobalAddr) -> Result<Buf> {
        let g = self.format();
        let (what, size) = (("inner page being written", at), (g.inner_bytes(), g.inner_slots()));
        let whole = |b: &[u8]| {
            let plain = g.plain(b)?;
            Inner::check(g, &plain)?;
            Some(apart(plain))
        };
        let (plain, image) = self.read_whole(what, size, Step::Structure, whole).await?;
        let mut image = image.into_buf();
        if let Some(plain) = plain {
            image[..plain.len()].copy_from_slice(&plain);
            image[plain.len()..].fill(0);
        }
        Ok(image)
    }

    /// Adds a record. Returns the separator and page of a split, which are due one level up.
    async fn insert_record(
        &self,
        at: GlobalAddr,
        key: &[u8],
        child: GlobalAddr,
    ) -> Result<Option<Due>> {
        let g = self.format();
        let (at, held, mut image) = self.lock_inner(at, key).await?;
        let (i, count, is_there) = {
            let n = Inner::of(g, &image)?;
            let i = n.rank(key);
            (i, n.h.records, i > 0 && n.key(i - 1) == key)
        };
        match is_there {
            true => g.put_record(&mut image, i - 1, key, child),
            false if count < g.inner_slots() => {
                g.insert_record(&mut image, (i, count), key, child);
            }
            false => {
                let e = Error::corrupt(format!("inner page {at} was left full"));
                return self.fail(held, e).await;
            }
        }
        if is_there || count + 1 < g.inner_slots() {
            let part = match is_there {
                true => {
                    g.seal(&mut image);
                    0..image.len()
                }
                false => g.seal_added(&mut image, count),
            };
            let begin = at.plus(part.start as u64);
            if part.len() < image.len() {
                let (same, mut record) = self.under(held, self.blank(part.len()).await).await?;
                record.copy_from_slice(&image[part]);
                self.write_back(same, begin, record, false).await?;
                return Ok(None);
            }
            self.write_back(held, begin, image, false).await?;
            return Ok(None);
        }
        self.split_inner(at, held, image).await.map(Some)
    }

    /// Divides a full inner page.
    async fn split_inner(&self, at: GlobalAddr, held: Self::Held, mut left: Buf) -> Result<Due> {
        let g = self.format();
        let (held, sibling) = self.under(held, self.new_page().await).await?;
        let (held, mut right) = self.under(held, self.blank(g.inner_bytes()).await).await?;
        let Some(separator) = g.divide(&mut left, &mut right, g.inner_slots() / 2, sibling) else {
            return self.fail(held, Error::corrupt("an inner page without a header")).await;
        };
        g.seal(&mut right);
        g.seal(&mut left);
        self.ep.step(Step::Structure);
        self.ep.write(sibling, right).await?;
        self.write_back(held, at, left, true).await?;
        Ok((separator, sibling))
    }
}

impl<T: PageTree> Separators for T {}
