//! Creation options: the layout, and the techniques.

use dmtree_fabric::Error;
use dmtree_parts::peer::value;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::format::Geometry;

/// Placement of the fingerprint tables (and so of the leaf locks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tables {
    /// Spread over the compute nodes.
    Compute,
    /// On the memory nodes.
    Memory,
    /// Nowhere: leaves are read whole, and their locks are words of the memory nodes.
    None,
}

/// The techniques of an index: what a laboratory switches to see what each is worth. Sound in every
/// position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Techniques {
    /// Copies of fingerprint tables in the cache.
    pub mirrors: bool,
    /// Where tables live.
    pub tables: Tables,
    /// Readers of one key share a READ.
    pub delegation: bool,
    /// Writers of one key share a WRITE.
    pub combining: bool,
    /// Leaves grow to 128 slots instead of splitting while the cache is short of room.
    pub adaptive_capacity: bool,
    /// Lock and table in one round trip; unlocks are not waited for.
    pub round_trip_combining: bool,
    /// Without tables: lock words of a memory node, where they are not on chip.
    pub locks: u32,
    /// Without tables: lock words lie in on-chip memory, where the fabric has any that no other
    /// index has taken.
    pub on_chip: bool,
}

impl Default for Techniques {
    fn default() -> Self {
        Self {
            mirrors: true,
            tables: Tables::Compute,
            delegation: true,
            combining: true,
            adaptive_capacity: true,
            round_trip_combining: true,
            locks: 16_384,
            on_chip: true,
        }
    }
}

/// Layout of an index, and its techniques. Stored in the catalog: the layout cannot change later.
///
/// The stored form is flat: the techniques stand beside the layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct Options {
    /// Bytes of a key kept inside its entry; longer keys go to blocks of their own. A multiple of
    /// 8, 8 to 256.
    pub key_inline_bytes: u32,
    /// Bytes of a value kept inside its entry; longer values go to blocks of their own. A multiple
    /// of 8, 0 to 1024.
    pub value_inline_bytes: u32,
    /// Slots of a new leaf: 32, 64 or 128; without tables 4 to 128.
    pub leaf_capacity: u32,
    /// Records of an inner node, 8 to 64.
    pub fanout: u32,
    /// What a laboratory switches.
    #[serde(flatten)]
    pub techniques: Techniques,
    /// Longest wait of one operation for others, ms.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            key_inline_bytes: 24,
            value_inline_bytes: 8,
            leaf_capacity: 32,
            fanout: 32,
            techniques: Techniques::default(),
            timeout_ms: 10_000,
        }
    }
}

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, s)
    }
}

/// Refuses unknown fields itself: `deny_unknown_fields` of serde does not go with `flatten`.
impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let given = Map::deserialize(d)?;
        let all = value(&Self::default());
        if let Some(unknown) = given.keys().find(|name| all.get(name).is_none()) {
            let known: Vec<&str> =
                all.as_object().into_iter().flatten().map(|(k, _)| &**k).collect();
            let known = known.join("`, `");
            return Err(D::Error::custom(format!(
                "unknown field `{unknown}`, expected one of `{known}`"
            )));
        }
        Self::deserialize(Value::Object(given)).map_err(D::Error::custom)
    }
}

impl Options {
    /// Without tables: whole leaves are read, and locked by words of the memory nodes.
    #[must_use]
    pub fn without_tables(&self) -> Self {
        let techniques = Techniques {
            tables: Tables::None,
            mirrors: false,
            delegation: false,
            combining: false,
            adaptive_capacity: false,
            ..self.techniques.clone()
        };
        Self { techniques, ..self.clone() }
    }

    /// Derived sizes and offsets.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            k: self.key_inline_bytes as usize,
            v: self.value_inline_bytes as usize,
            fanout: self.fanout as usize,
        }
    }

    /// The capacities that leaves may have.
    pub fn capacities(&self) -> Vec<usize> {
        match self.techniques.tables {
            Tables::None => vec![self.leaf_capacity as usize],
            Tables::Compute | Tables::Memory => vec![32, 64, 128],
        }
    }

    /// Rejects invalid options.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self) -> dmtree_fabric::Result<()> {
        let range = |name: &str, value: u32, low: u32, high: u32, step: u32| {
            if value < low || value > high || !value.is_multiple_of(step) {
                let of = if step > 1 { format!(", a multiple of {step}") } else { String::new() };
                return Err(Error::invalid(format!(
                    "{name} is {value}; it must be {low} to {high}{of}"
                )));
            }
            Ok(())
        };
        range("key_inline_bytes", self.key_inline_bytes, 8, 256, 8)?;
        range("value_inline_bytes", self.value_inline_bytes, 0, 1024, 8)?;
        range("fanout", self.fanout, 8, 64, 1)?;
        let t = &self.techniques;
        range("locks", t.locks, 1, 1 << 20, 1)?;
        if t.tables == Tables::None {
            range("leaf_capacity", self.leaf_capacity, 4, 128, 1)?;
            let technique = [
                (t.mirrors, "mirrors"),
                (t.adaptive_capacity, "adaptive_capacity"),
                (t.combining, "combining"),
            ];
            if let Some((_, name)) = technique.iter().find(|(on, _)| *on) {
                return Err(Error::invalid(format!("{name} is true, and tables is none")));
            }
        } else if ![32, 64, 128].contains(&self.leaf_capacity) {
            return Err(Error::invalid(format!(
                "leaf_capacity is {}; it must be 32, 64 or 128",
                self.leaf_capacity
            )));
        }
        if self.timeout_ms == 0 {
            return Err(Error::invalid("timeout_ms is 0; every wait needs some time, 1 at least"));
        }
        Ok(())
    }

    /// A layout for a test, as `below(n)` draws it from 0 to `n - 1`: small nodes, keys and values
    /// inline or not. With `switches`, techniques are drawn too in half of the cases; otherwise
    /// they stay as they are here.
    #[must_use]
    pub fn drawn(&self, switches: bool, below: &mut dyn FnMut(u64) -> u64) -> Self {
        let mut of = |choices: &[u32]| choices[below(choices.len() as u64) as usize];
        let mut o = Self {
            fanout: of(&[8, 8, 16, 32]),
            leaf_capacity: of(&[32, 32, 64]),
            key_inline_bytes: of(&[24, 8, 40]),
            value_inline_bytes: of(&[8, 8, 64]),
            ..self.clone()
        };
        if self.techniques.tables == Tables::None {
            o.leaf_capacity = of(&[6, 8, 27, 32]);
            o.techniques.locks = of(&[1, 16, 16, 1024]);
        }
        let mut coin = || of(&[0, 1]) == 1;
        if switches && coin() {
            let t = &mut o.techniques;
            t.mirrors = coin();
            t.tables = if coin() { Tables::Compute } else { Tables::Memory };
            t.delegation = coin();
            t.combining = coin();
            t.adaptive_capacity = coin();
            t.round_trip_combining = coin();
        }
        o
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        assert!(Options::default().check().is_ok());
        let bad = Options { key_inline_bytes: 12, ..Options::default() };
        assert!(bad.check().expect_err("not a multiple").to_string().contains("multiple of 8"));
        let bad = Options { leaf_capacity: 48, ..Options::default() };
        assert!(bad.check().expect_err("unknown").to_string().contains("leaf_capacity is 48"));
        let none = Options::default().without_tables();
        assert!(Options { leaf_capacity: 27, ..none.clone() }.check().is_ok());
        let techniques = Techniques { mirrors: true, ..none.techniques.clone() };
        let bad = Options { techniques, ..none };
        assert!(bad.check().expect_err("of what").to_string().contains("mirrors is true"));
    }

    #[test]
    fn the_stored_form_is_flat_and_refuses_what_it_does_not_know() {
        let o = Options { fanout: 8, ..Options::default().without_tables() };
        let stored = value(&o);
        assert_eq!((&stored["fanout"], &stored["tables"]), (&8.into(), &"none".into()));
        assert_eq!(stored.as_object().map(Map::len), Some(13));
        assert_eq!(serde_json::from_value::<Options>(stored).expect("options"), o);
        let of = |text: &str| serde_json::from_str::<Options>(text);
        let some = of(r#"{"mirrors": false, "timeout_ms": 5}"#).expect("the rest is as by default");
        assert!(!some.techniques.mirrors && some.techniques.delegation);
        assert_eq!((some.timeout_ms, some.fanout), (5, 32));
        for (text, words) in [
            (r#"{"mirors": true}"#, ["`mirors`", "`mirrors`"]),
            (r#"{"techniques": {}}"#, ["`techniques`", "`fanout`"]),
            (r#"{"fanout": 8, "locks": "one"}"#, ["one", "u32"]),
            ("[]", ["sequence", "map"]),
        ] {
            let e = of(text).expect_err(text).to_string();
            assert!(words.iter().all(|w| e.contains(w)), "{text}: {e}");
        }
    }
}
