//! Numbers for things that come and go.

/// Items by number; numbers are used again.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn put(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(n) => {
                self.items[n as usize] = Some(item);
                n
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    pub(crate) fn at(&mut self, n: u32) -> &mut T {
        self.items[n as usize].as_mut().expect("numbers are not used after take")
    }

    #[cfg(feature = "sim")]
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }

    #[cfg(feature = "sim")]
    pub(crate) fn peek(&self, n: u32) -> Option<&T> {
        self.items.get(n as usize)?.as_ref()
    }

    pub(crate) fn take(&mut self, n: u32) -> T {
        self.free.push(n);
        self.items[n as usize].take().expect("numbers are not used after take")
    }

    /// Prefetches an entry.
    #[cfg(feature = "sim")]
    pub(crate) fn prefetch(&self, n: u32) {
        if let Some(place) = self.items.get(n as usize) {
            crate::cpu::prefetch_at(std::ptr::from_ref(place).addr(), size_of::<Option<T>>());
        }
    }
}
