//! What [`crate::crash`] found, as text.

use std::fmt::Write as _;

use crate::crash::Outcome;

fn ms(ns: u64) -> String {
    format!("{:.2} ms", ns as f64 / 1e6)
}

impl Outcome {
    /// Whether nothing acknowledged was lost and no survivor's operation failed.
    pub fn is_fine(&self) -> bool {
        self.keys_wrong == 0 && self.errors == 0
    }

    /// The report.
    pub fn text(&self) -> String {
        let s = &self.setup;
        let mut t = String::new();
        let dies = if s.hung { "hangs; its NIC goes on serving" } else { "dies" };
        let _ = writeln!(
            t,
            "simulated cluster, profile {}, seed {}: {} compute nodes of {} threads with {} clients each; cn{} {dies}\n{} keys, {} % updates; lease {}\n",
            s.profile,
            s.seed,
            s.cns,
            s.threads,
            s.coroutines,
            s.cns - 1,
            s.keys,
            s.update_percent,
            ms(s.lease_us * 1000)
        );
        for m in &self.moments {
            let after = m.at_ns as f64 / 1e6 - s.crash_us as f64 / 1e3;
            let _ = writeln!(t, "{:>10}  {after:+8.2} ms  {}", ms(m.at_ns), m.what);
        }
        let _ = writeln!(
            t,
            "\nsurvivors: {:.2} Mops before, {:.2} at least meanwhile, {:.2} afterwards (virtual time)",
            self.before_mops, self.least_mops, self.after_mops
        );
        let _ = writeln!(
            t,
            "longest operation of a survivor from the crash on: read {}, update {}",
            ms(self.longest_read_ns),
            ms(self.longest_update_ns)
        );
        let _ = writeln!(
            t,
            "{} written keys looked up in the end: {} lost or wrong; {} unacknowledged updates of the dead node took effect\n{} operations of survivors failed",
            self.keys_checked, self.keys_wrong, self.taken_effect, self.errors
        );
        self.samples.iter().for_each(|e| {
            let _ = writeln!(t, "  {e}");
        });
        t
    }
}
