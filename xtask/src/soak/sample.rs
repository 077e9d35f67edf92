//! Resources of long-lived processes, and whether they grow.

use std::fs;

/// The parts of a series' samples: the first one is the warm-up.
const WARM: usize = 4;

/// A resource that is measured again and again.
#[derive(Debug)]
pub struct Series {
    name: String,
    unit: &'static str,
    /// Its allowed growth: a part, and an amount.
    percent: u64,
    slack: u64,
    pub values: Vec<u64>,
}

impl Series {
    pub fn new(name: &str, unit: &'static str, (percent, slack): (u64, u64)) -> Self {
        Self { name: name.to_owned(), unit, percent, slack, values: Vec::new() }
    }

    /// Medians of its first and of its last third behind the warm-up.
    fn ends(&self) -> Option<(u64, u64)> {
        let judged = self.values.get(self.values.len() / WARM..)?;
        let third = judged.len() / 3;
        let median = |part: &[u64]| {
            let mut sorted = part.to_vec();
            sorted.sort_unstable();
            sorted.get(sorted.len() / 2).copied()
        };
        (third >= 3).then_some(())?;
        median(&judged[..third]).zip(median(&judged[judged.len() - third..]))
    }

    /// As in `mn0 rss 70 to 71 MiB`.
    pub fn line(&self) -> String {
        match self.ends() {
            Some((from, to)) => format!("{} {from} to {to} {}", self.name, self.unit),
            None => format!("{} too short to judge", self.name),
        }
    }

    /// Its violation.
    pub fn growth(&self) -> Option<String> {
        let (from, to) = self.ends()?;
        let most = from + from * self.percent / 100 + self.slack;
        (to > most).then(|| format!("grows: {}; {most} would be flat", self.line()))
    }
}

/// The series of a process.
#[derive(Debug)]
pub struct Uses(pub [Series; 3]);

impl Uses {
    pub fn new(name: &str) -> Self {
        Self([
            Series::new(&format!("{name} resident"), "MiB", (10, 8)),
            Series::new(&format!("{name} descriptors"), "", (10, 12)),
            Series::new(&format!("{name} threads"), "", (10, 8)),
        ])
    }

    /// Measures the process of this number.
    pub fn measure(&mut self, pid: u32) {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return };
        let field = |name: &str| {
            let line = status.lines().find(|l| l.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        let open = fs::read_dir(format!("/proc/{pid}/fd")).map(|all| all.count() as u64);
        let found = [field("VmRSS").map(|kib| kib >> 10), open.ok(), field("Threads")];
        for (series, value) in self.0.iter_mut().zip(found) {
            series.values.extend(value);
        }
    }

    /// Forgets the samples: another process has taken the place of the former one.
    pub fn restart(&mut self) {
        self.0.iter_mut().for_each(|series| series.values.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_from_noise() {
        let series = |value: fn(u64) -> u64| {
            let mut s = Series::new("x", "MiB", (10, 4));
            s.values.extend((0..60).map(value));
            s.growth().is_some()
        };
        assert!(!series(|_| 100));
        assert!(!series(|i| 100 + i % 7));
        assert!(!series(|i| i.min(10) * 10), "warming up");
        assert!(series(|i| 100 + i));
        assert!(Series::new("x", "", (0, 0)).growth().is_none());
    }
}
