//! Prefetching for the simulator: it looks ahead in the event queue and prefetches the memory that
//! the next events will touch. Prefetches are hints: no event in virtual time depends on them.

use super::world::{Event, World};
use crate::core::Core;
use crate::cpu::prefetch_at;

/// About the bytes of memory that the first verb of a group touches.
const TARGET_BYTES: usize = 128;

impl World {
    /// Called when the calendar has reached new events. Prefetches in two stages: for the events
    /// after next, the entries that identify their lists; for the next events, the memory that they
    /// use.
    pub(super) fn prefetch_ahead(&self, core: &Core) {
        let [next, later] = self.wheel.upcoming();
        for event in later {
            self.prefetch_entry(event);
        }
        for event in next {
            self.prefetch_memory(core, event);
        }
    }

    fn prefetch_entry(&self, event: Event) {
        match event {
            Event::Launch(list) => self.lists.prefetch(list),
            Event::Arrive(g) | Event::Deliver(g) => self.groups.prefetch(g),
            _ => {}
        }
    }

    fn prefetch_memory(&self, core: &Core, event: Event) {
        let list = match event {
            Event::Launch(list) => list,
            Event::Arrive(g) | Event::Deliver(g) => match self.groups.peek(g) {
                Some(group) => {
                    if matches!(event, Event::Arrive(_)) {
                        prefetch_at(group.target, TARGET_BYTES);
                    }
                    group.list
                }
                None => return,
            },
            Event::Resume(thread) => match self.threads[thread as usize].done.front() {
                Some(list) => *list,
                None => return,
            },
            _ => return,
        };
        let Some(l) = self.lists.peek(list) else { return };
        core.prefetch(l.ticket);
        if matches!(event, Event::Deliver(_) | Event::Resume(_)) && !l.detached {
            core.prefetch_client(l.slot);
        }
    }
}
