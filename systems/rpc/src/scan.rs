//! Scans: a call for every page of a memory node.

use dmtree_fabric::{NodeId, OpKind, OpOutcome, Result, Stage};
use dmtree_parts::{PAGE_BYTES, Page, Resume, ScanRequest};

use crate::client::{Rpc, unexpected};
use crate::wire::{Reply, Request};

/// Range reads.
pub(crate) struct Scans<'c>(pub(crate) &'c Rpc);

impl Scans<'_> {
    pub(crate) async fn scan_op(
        &self,
        r: &ScanRequest<'_>,
        page: &mut Page,
    ) -> Result<Option<Resume>> {
        page.clear();
        r.check()?;
        let scope = self.0.ep.begin(OpKind::Scan);
        self.0.ep.stage_cost(Stage::Operation, 1);
        let mut resume = None;
        let (begin, _) = r.ends();
        let mut range = begin.map(|key| self.0.node.range_of(key));
        loop {
            let owners = self.0.node.owners();
            let last = owners.len() - 1;
            let at = *range.get_or_insert(if r.reverse { last } else { 0 });
            let rest = ScanRequest { limit: r.limit - page.len(), ..r.after(resume.as_ref()) };
            let Some((found, next)) = self.page_of(owners[at], &rest).await? else {
                // Nothing was scanned yet: the scan begins in the range that it has learned of.
                range = begin.map(|key| self.0.node.range_of(key));
                continue;
            };
            found.iter().for_each(|(key, value)| page.push(key, value));
            let is_full = page.len() == r.limit || page.bytes() >= PAGE_BYTES;
            let has_neighbour = if r.reverse { at > 0 } else { at < last };
            match next {
                Some(next) => resume = Some(next),
                None if has_neighbour && self.reaches(r, at) => {
                    range = Some(if r.reverse { at - 1 } else { at + 1 });
                }
                None => {
                    resume = None;
                    break;
                }
            }
            if is_full {
                resume = page
                    .get(page.len() - 1)
                    .map(|(key, _)| Resume(std::ops::Bound::Excluded(key.to_vec())));
                break;
            }
        }
        self.0.ep.stage_cost(Stage::ScanCollect, page.len() as u32);
        scope.end(OpOutcome::Other);
        Ok(resume)
    }

    /// Whether a scan goes on beyond a range.
    fn reaches(&self, r: &ScanRequest<'_>, range: usize) -> bool {
        let borders = self.0.node.borders.get().map_or(&[][..], Vec::as_slice);
        match r.reverse {
            true => !r.is_under(&borders[range - 1]),
            false => !r.is_over(&borders[range]),
        }
    }

    async fn page_of(
        &self,
        owner: NodeId,
        r: &ScanRequest<'_>,
    ) -> Result<Option<(Page, Option<Resume>)>> {
        match self.0.ask_node(owner, &Request::Scan(*r)).await? {
            Some(Reply::Page(page, next)) => Ok(Some((page, next))),
            Some(other) => Err(unexpected(owner, &other)),
            None => Ok(None),
        }
    }
}
