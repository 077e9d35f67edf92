//! The peak of the resident memory of this process.

use std::fs;

use crate::results::kibibytes;

/// Measures the peak from a time on.
#[derive(Clone, Copy, Debug)]
pub struct Peak(bool);

impl Peak {
    /// Resets the peak, where the system (Linux) can.
    pub fn begin() -> Self {
        // proc_pid_clear_refs(5): 5 sets the peak to what is resident now.
        Self(fs::write("/proc/self/clear_refs", "5").is_ok())
    }

    /// Resident bytes at the peak since then; `None` where the system does not tell.
    pub fn bytes(self) -> Option<u64> {
        if !self.0 {
            return None;
        }
        kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_status() {
        let peak = |status| kibibytes(status, "VmHWM:");
        assert_eq!(peak("VmPeak:\t 9 kB\nVmHWM:\t   12 kB\nVmRSS:\t 3 kB\n"), Some(12 << 10));
        assert_eq!(peak("VmRSS:\t 3 kB\n"), None);
        assert_eq!(peak("VmHWM:\t x kB\n"), None);
    }

    #[test]
    fn forgets_what_was_held_before() {
        const HELD: usize = 256 << 20;
        let held = vec![1u8; HELD];
        let all = Peak::begin();
        assert!(held.iter().all(|b| *b == 1));
        drop(held);
        let without = Peak::begin();
        if let (Some(all), Some(without)) = (all.bytes(), without.bytes()) {
            assert!(without + (HELD / 2) as u64 <= all.max(HELD as u64), "{without} of {all}");
        }
    }
}
