//! What a walk asks of models: D of the published directory, and M of its pages.

use dmtree_fabric::{Error, GlobalAddr, Result};
use dmtree_pool::BlockPtr;

use crate::Client;
use crate::format::block;
use crate::learned::NodeModels;
use crate::learned::directory::{Head, PageName, number_of};
use crate::learned::page::{LeafEntry, ModelPage};
use crate::learned::train::read_directory;

/// The published directory with all of its pages.
pub(crate) struct Published<'c> {
    c: &'c Client,
    models: &'c NodeModels,
    pages: Vec<(PageName, Option<ModelPage>)>,
    /// Its blocks.
    pub blocks: Vec<BlockPtr>,
}

fn broken(what: &str, at: GlobalAddr) -> Error {
    Error::corrupt(format!("{what} at {at}"))
}

impl<'c> Published<'c> {
    /// READs it all. The claim has to be free, the pages whole, and what this node knows under the
    /// present word the same.
    pub async fn read(c: &'c Client, models: &'c NodeModels) -> Result<Self> {
        let (claim, at) = (c.node.root.claim(), c.node.root.directory());
        if c.ep.cas(claim, 0, 0).await? != 0 {
            return Err(broken("a held claim of a trainer", claim));
        }
        let word = c.ep.read(at, 8).await?.word(0);
        let (stamp, names) = read_directory(c, word).await?;
        let known = models.directory();
        let is_same = (known.word, known.stamp) == (word, stamp) && known.is_kept;
        if is_same && known.pages.iter().map(|p| &p.name).ne(&names) {
            return Err(broken("a node knows another directory than is published", at));
        }
        let mut published = Self { c, models, pages: Vec::new(), blocks: Vec::new() };
        for name in names {
            let page = match name.block() {
                Some(at) => Some(published.page(at, name.stamp).await?),
                None => None,
            };
            let page_ref = &known.pages[known.number(&name.lo)];
            let here = page_ref.loaded().clone().filter(|_| page_ref.name == name);
            if here.is_some_and(|here| page.as_ref() != Some(&*here)) {
                return Err(broken("a node has other models than are published", at));
            }
            published.pages.push((name, page));
        }
        published.blocks.extend((word != 0).then(|| BlockPtr::from_bits(word)));
        Ok(published)
    }

    async fn page(&mut self, at: BlockPtr, stamp: u64) -> Result<ModelPage> {
        let c = self.c;
        c.ep.renew_deadline();
        let bytes = c.ep.read(at.addr(), at.capacity()).await?;
        let head = Head::of(c.node.root.index, stamp);
        let page = bytes.extract(|b| ModelPage::decoded(head, block::check(at, b)?.1));
        self.blocks.push(at);
        page.ok_or_else(|| broken("a torn page of models", at.addr()))
    }

    /// M: as long as a leaf is what it was when it was trained, the window of each of its keys has
    /// it.
    pub fn has(&self, key: &[u8], leaf: &LeafEntry) -> bool {
        let number = number_of(&self.pages, |(name, _)| &name.lo, key);
        let Some(page) = &self.pages[number].1 else { return true };
        // The likeliest leaf may be another one.
        let window = || self.models.window(&self.c.node, page, key);
        let is_in = |i: usize| self.models.is_coarse || window().contains(&i);
        page.leaves().iter().position(|l| l == leaf).is_none_or(is_in)
    }
}
