//! What clients wait for: how often, how long, and at which objects most. A client that need not
//! wait counts nothing.

use crate::core::WaitReason;
use crate::transport::Nanos;

/// Objects that are named at most: those that clients have waited for most often.
pub const MOST_AWAITED: usize = 8;

/// Waits, and the time in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCount {
    /// How many; a wait for a lock that is tried again and again counts once for each try.
    pub waits: u64,
    /// Their time, ns.
    pub ns: Nanos,
}

/// The waits of one endpoint, or the sum over several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// By what was waited for, in the order of the words.
    by_reason: Vec<(&'static str, WaitCount)>,
    /// Objects and their waits, at most so many too high as the least of them: the algorithm
    /// Space-Saving (Metwally, Agrawal and El Abbadi, ICDT 2005), in bounded memory.
    objects: Vec<(WaitReason, u64)>,
}

impl Waits {
    /// By what was waited for.
    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, WaitCount)> {
        self.by_reason.iter().copied()
    }

    /// The most awaited objects, the first most often. The counts of objects that were named late
    /// are upper bounds.
    pub fn most_awaited(&self) -> Vec<(WaitReason, u64)> {
        let mut sorted = self.objects.clone();
        sorted.sort_by_key(|(_, waits)| std::cmp::Reverse(*waits));
        sorted
    }

    pub(crate) fn count(&mut self, why: WaitReason, ns: Nanos) {
        self.add_reason(why.what, WaitCount { waits: 1, ns });
        if let Some((_, waits)) = self.objects.iter_mut().find(|(known, _)| *known == why) {
            *waits += 1;
        } else if self.objects.len() < MOST_AWAITED {
            self.objects.push((why, 1));
        } else if let Some(least) = self.objects.iter_mut().min_by_key(|(_, waits)| *waits) {
            *least = (why, least.1 + 1);
        }
    }

    fn add_reason(&mut self, what: &'static str, count: WaitCount) {
        let at = match self.by_reason.binary_search_by_key(&what, |(known, _)| known) {
            Ok(i) => i,
            Err(i) => {
                self.by_reason.insert(i, (what, WaitCount::default()));
                i
            }
        };
        let sum = &mut self.by_reason[at].1;
        *sum = WaitCount { waits: sum.waits + count.waits, ns: sum.ns + count.ns };
    }

    /// Adds the waits of others to these.
    pub fn add(&mut self, others: &Self) {
        for (what, count) in &others.by_reason {
            self.add_reason(what, *count);
        }
        for (why, waits) in &others.objects {
            match self.objects.iter_mut().find(|(known, _)| known == why) {
                Some((_, sum)) => *sum += waits,
                None => self.objects.push((*why, *waits)),
            }
        }
        self.objects = self.most_awaited();
        self.objects.truncate(MOST_AWAITED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(at: u64) -> WaitReason {
        WaitReason { what: "a lock", at }
    }

    #[test]
    fn waits_are_counted_by_reason() {
        let mut waits = Waits::default();
        waits.count(lock(1), 10);
        waits.count(WaitReason { what: "a page", at: 1 }, 5);
        waits.count(lock(2), 20);
        let mut twice = waits.clone();
        twice.add(&waits);
        let by_reason: Vec<_> = twice.by_reason().collect();
        let expected = [
            ("a lock", WaitCount { waits: 4, ns: 60 }),
            ("a page", WaitCount { waits: 2, ns: 10 }),
        ];
        assert_eq!(by_reason, expected);
    }

    #[test]
    fn the_most_awaited_objects_are_named_whatever_else_is_waited_for() {
        let mut sum = Waits::default();
        for thread in 0..3 {
            let mut waits = Waits::default();
            for n in 0..200 {
                waits.count(lock(1000 * (thread + 1) + n), 1);
                waits.count(lock(7), 1);
                if n % 2 == 0 {
                    waits.count(lock(8), 1);
                }
            }
            sum.add(&waits);
        }
        let most = sum.most_awaited();
        assert_eq!(most.len(), MOST_AWAITED);
        assert_eq!([most[0].0, most[1].0], [lock(7), lock(8)]);
        assert!(most[0].1 >= 600 && most[1].1 >= 300, "never too low: {most:?}");
    }
}
