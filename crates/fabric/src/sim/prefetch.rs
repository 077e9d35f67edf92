//! Prefetching for the simulator: it looks ahead in the event queue and prefetches the memory that
//! the next events will touch. Prefetches are hints: no event in virtual time depends on them.

use super::flight::Event;
use super::world::World;
use crate::core::Core;
use crate::cpu::prefetch_at;

/// About the bytes of memory that the first verb of a group touches.
const TARGET_BYTES: usize = 128;

/// Looks ahead in the events of a world.
pub(super) struct Ahead<'w>(pub &'w World);

impl Ahead<'_> {
    /// Called when the calendar has reached new events. Prefetches in two stages: for the events
    /// after next, the entries that identify their lists; for the next events, the memory that they
    /// use.
    pub(super) fn prefetch(self, core: &Core) {
        let [next, later] = self.0.wheel.upcoming();
        for event in later {
            self.entry(event);
        }
        for event in next {
            self.memory(core, event);
        }
    }

    fn entry(&self, event: Event) {
        match event {
            Event::Launch(list) => self.0.lists.prefetch(list),
            Event::Arrive(g) | Event::Deliver(g) => self.0.groups.prefetch(g),
            _ => {}
        }
    }

    fn memory(&self, core: &Core, event: Event) {
        let list = match event {
            Event::Launch(list) => list,
            Event::Arrive(g) | Event::Deliver(g) => match self.0.groups.peek(g) {
                Some(group) => {
                    if matches!(event, Event::Arrive(_)) {
                        prefetch_at(group.target, TARGET_BYTES);
                    }
                    group.list
                }
                None => return,
            },
            Event::Resume(thread) => match self.0.threads[thread as usize].done.front() {
                Some(list) => *list,
                None => return,
            },
            _ => return,
        };
        let Some(l) = self.0.lists.peek(list) else { return };
        core.prefetch(l.ticket);
        if matches!(event, Event::Deliver(_) | Event::Resume(_)) && !l.detached {
            core.prefetch_client(l.slot);
        }
    }
}
