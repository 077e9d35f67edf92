//! A model of the drivers' writes, and a check of their reads against it. A key is written and read
//! by one driver at a time; the next incarnation of its slot continues with it.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Write {
    number: u64,
    removes: bool,
}

#[derive(Debug, Default)]
struct Key {
    /// The write that is known to be the last with an effect.
    last: Option<Write>,
    /// Writes that may have happened, or happen later: their drivers have ended or got errors of
    /// unknown effect.
    open: Vec<Write>,
    running: Option<Write>,
}

impl Key {
    /// Whether a read may find the result of this write (0: nothing).
    fn finds(&mut self, number: u64) -> bool {
        let fits = |w: &Write| match number {
            0 => w.removes,
            n => w.number == n && !w.removes,
        };
        if self.last.as_ref().map_or(number == 0, fits) {
            return true;
        }
        let Some(i) = self.open.iter().position(fits) else { return false };
        self.last = Some(self.open.remove(i));
        true
    }
}

/// All keys.
#[derive(Debug, Default)]
pub struct Model {
    keys: BTreeMap<u32, Key>,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Reads that were judged.
    pub reads: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Violations.
    pub violations: Vec<String>,
}

impl Model {
    /// Applies a driver's line about an operation, as `crates/cli/src/lab/drive` writes it; false
    /// when it is another line.
    pub fn apply(&mut self, line: &str) -> bool {
        let mut words = line.split(' ');
        let (Some(what), Some(key)) = (words.next(), words.next()) else { return false };
        let Ok(number) = key.parse::<u32>() else { return false };
        let n = words.next().unwrap_or("0");
        let removes = n.starts_with('-');
        let Ok(n) = n.trim_start_matches('-').parse::<u64>() else { return false };
        let key = self.keys.entry(number).or_default();
        match what {
            "s" => key.running = Some(Write { number: n, removes }),
            "a" => {
                key.last = key.running.take();
                self.acknowledged += 1;
            }
            "n" => {
                key.running = None;
                self.errors += 1;
            }
            "u" => {
                key.open.extend(key.running.take());
                self.errors += 1;
            }
            "r" => {
                self.reads += 1;
                if !key.finds(n) {
                    let found = if n == 0 { "nothing".to_owned() } else { format!("write {n}") };
                    let why = format!("lost: key {number} has {found}; {key:?}");
                    self.violations.push(why);
                    // Reported once.
                    let removes = n == 0;
                    key.last = Some(Write { number: n, removes });
                }
            }
            "f" => self.errors += 1,
            "t" => self.violations.push(format!("torn: key {number}; {key:?}")),
            _ => return false,
        }
        true
    }

    /// The driver of these keys has ended: its running write may have happened.
    pub fn driver_ended(&mut self, keys: std::ops::Range<u32>) {
        for (_, key) in self.keys.range_mut(keys) {
            key.open.extend(key.running.take());
        }
    }

    /// The highest number of a write of these keys.
    pub fn highest(&self, keys: std::ops::Range<u32>) -> u64 {
        let of = |k: &Key| k.open.iter().chain(&k.last).chain(&k.running).map(|w| w.number).max();
        self.keys.range(keys).filter_map(|(_, k)| of(k)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lines: &[&str]) -> Model {
        let mut m = Model::default();
        lines.iter().for_each(|line| assert!(m.apply(line), "{line}"));
        m
    }

    #[test]
    fn acknowledged_writes_must_be_found() {
        assert!(after(&["r 1 0", "s 1 5", "a 1 5", "r 1 5"]).violations.is_empty());
        assert_eq!(after(&["s 1 5", "a 1 5", "r 1 0"]).violations.len(), 1);
        assert_eq!(after(&["s 1 5", "a 1 5", "s 1 6", "a 1 6", "r 1 5"]).violations.len(), 1);
        assert!(after(&["s 1 5", "a 1 5", "s 1 -6", "a 1 6", "r 1 0"]).violations.is_empty());
        assert_eq!(after(&["t 1"]).violations.len(), 1);
        assert_eq!(after(&["s 1 5", "a 1 5", "s 2 6", "a 2 6"]).acknowledged, 2);
    }

    #[test]
    fn writes_of_an_ended_driver_may_be_found_once() {
        let mut m = after(&["s 1 5", "a 1 5", "s 1 6"]);
        m.driver_ended(0..2);
        assert_eq!((m.highest(0..2), m.highest(2..9)), (6, 0));
        for (line, fine) in [("r 1 5", true), ("r 1 6", true), ("r 1 6", true), ("r 1 5", false)] {
            m.apply(line);
            assert_eq!(m.violations.is_empty(), fine, "{line}");
        }
    }

    #[test]
    fn a_write_without_an_effect_must_not_be_found() {
        let m = after(&["s 1 5", "n 1 5", "r 1 5"]);
        assert_eq!((m.violations.len(), m.errors), (1, 1));
        assert!(after(&["s 1 5", "u 1 5", "r 1 5", "r 1 5"]).violations.is_empty());
        assert!(!Model::default().apply("e some text") && !Model::default().apply("up"));
    }
}
