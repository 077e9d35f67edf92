//! Postings and slots of a simulated node that has crashed.

use super::{Core, PostingState};
use crate::transport::Ticket;

impl Core {
    /// The node of a list's client has crashed, and none of its verbs will execute any more: its
    /// outcome reaches no client.
    pub(crate) fn lose(&self, t: Ticket) {
        let (hook, detached, dropped) = {
            let mut postings = self.postings.borrow_mut();
            let p = &mut postings[t.posting as usize];
            let open = matches!(p.state, PostingState::InFlight | PostingState::Detached);
            if p.generation != t.generation || !open {
                return;
            }
            let detached = matches!(p.state, PostingState::Detached);
            if detached {
                self.detached.set(self.detached.get() - 1);
            }
            p.state = PostingState::Lost;
            (p.hook.take(), detached, p.dropped)
        };
        drop(hook);
        if dropped {
            self.end_abandoned(t, &Ok(()));
        } else if detached {
            self.close_posting(t);
        }
    }

    /// A new incarnation of its node takes a slot over. Verbs of the former one may execute still:
    /// no operation waits for their end.
    pub fn renew_slot(&self, slot: u32) {
        let waiting = {
            let mut slots = self.slots.borrow_mut();
            let s = &mut slots[slot as usize];
            s.abandoned = 0;
            std::mem::take(&mut s.when_quiet)
        };
        for p in self.postings.borrow_mut().iter_mut().filter(|p| p.slot == slot && p.dropped) {
            p.counted = false;
        }
        // Not run: they are of the former incarnation. They may own endpoints.
        drop(waiting);
    }
}
