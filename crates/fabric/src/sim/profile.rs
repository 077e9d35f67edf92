//! Profiles: the parameters of a NIC, its link and its host, as data files.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::fields::{FIELDS, Field};
use crate::error::{Error, Result};
use crate::suggest::{nearest, unknown as unknown_name};

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($field:ident),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[allow(missing_docs, reason = "every field has its unit, meaning and source in `FIELDS`")]
            pub struct $name { $(pub $field: f64),* }
        )*
    };
}

sections! {
    /// The port and its wire.
    Link { gbps, efficiency, mtu_bytes, ack_factor }
    /// Bytes of packets beside their payload.
    Header { read_request, read_response, write_first, write_next, ack, atomic_request, atomic_response, send }
    /// Times that no server is busy for.
    Latency { propagation_ns, loopback_ns, completion_ns, jitter_sigma }
    /// The target NIC's pipeline.
    Responder { read, write, atomic, write_cold, send }
    /// The client NIC's pipeline.
    Initiator { read, write, atomic }
    /// Atomics on one word.
    SameWord { dram, on_chip }
    /// Queue pairs.
    QueuePair { max_rd_atomic, knee, miss_ns }
    /// The slowdown of a client NIC by many outstanding verbs.
    Outstanding { knee, read_floor, write_floor }
    /// Doorbell registers.
    Doorbell { slots, hold_ns, hold_per_sharer_ns }
    /// Client threads.
    Cpu {
        post_ns, round_ns, operation_ns, cache_lookup_ns, fingerprint_scan_ns, entry_check_ns, node_image_slot_ns,
        local_queue_ns, polled_line_ns, cache_fill_ns, scan_collect_pair_ns,
        mem_table_put_ns, mem_table_probe_ns, table_probe_ns, table_entry_ns, merge_entry_ns, iter_entry_ns,
        log_record_ns,
        measured_factor,
        instructions_per_ns,
        cores,
        pair_ratio,
        contention,
    }
    /// Between NIC and memory.
    Pcie { gbps }
    /// Remote calls.
    Rpc { handler_ns, cores, atomics }
    /// The cores of a memory node that run data services.
    Host { cores, call_ns, node_ns, entry_ns, copy_ns, merge_ratio }
    /// Memory on the NIC.
    OnChip { bytes }
    /// Memory that the client's CPU reaches itself.
    LoadStore { line_ns, in_flight }
}

/// The parameters of a kind of hardware; [`FIELDS`] describes each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the sections have their own")]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// One line.
    pub description: String,
    /// Confidence in the whole profile, in words.
    pub trust: String,
    pub link: Link,
    pub header: Header,
    pub latency: Latency,
    pub responder_ns: Responder,
    pub initiator_ns: Initiator,
    pub same_word_ns: SameWord,
    pub queue_pair: QueuePair,
    pub outstanding: Outstanding,
    pub doorbell: Doorbell,
    pub cpu: Cpu,
    pub pcie: Pcie,
    pub rpc: Rpc,
    pub host: Host,
    pub on_chip: OnChip,
    pub load_store: LoadStore,
}

macro_rules! shipped {
    ($($name:literal),*) => {
        /// The profiles in the binary: name and text.
        const SHIPPED: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../profiles/", $name, ".toml")))),*];
    };
}
shipped!(
    "dmtree-artifact-100g",
    "dmtree-artifact-smt",
    "cx4-100g",
    "cx5-100g",
    "cx6-100g",
    "cx6-200g",
    "cx7-400g",
    "bf2-host",
    "bf3-host",
    "efa",
    "cxl2-pool",
    "soft-roce",
    "ideal"
);

impl Profile {
    /// Names of the shipped profiles.
    pub fn names() -> Vec<&'static str> {
        SHIPPED.iter().map(|(name, _)| *name).collect()
    }

    /// A shipped profile.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown name; lists the valid ones.
    pub fn named(name: &str) -> Result<Self> {
        match SHIPPED.iter().find(|(n, _)| *n == name) {
            Some((n, text)) => Self::parse(&format!("shipped profile {n}"), text),
            None => {
                let why = unknown_name("profile", name, &Self::names());
                Err(Error::invalid(format!("{why}, or a file that ends with .toml")))
            }
        }
    }

    /// Reads a profile's text; `from` names it in messages. Every field must be there that has no
    /// value for older files, unless it names a shipped profile as its `base`, which has the
    /// others.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the file, the field and the allowed range.
    pub fn parse(from: &str, text: &str) -> Result<Self> {
        let mut table: Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map(|s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            let at = line.map(|l| format!(", line {l}")).unwrap_or_default();
            Error::invalid(format!("{from}{at}: {}", e.message().trim()))
        })?;
        match table.remove("base") {
            None => Self::from_table(from, table),
            Some(Value::String(base)) => {
                let base = Self::named(&base).map_err(|e| e.context(format!("{from}: base")))?;
                Self::from_table(from, base.with(table))
            }
            Some(other) => Err(Error::invalid(format!(
                "{from}: base is {other}: give the name of a shipped profile in quotes"
            ))),
        }
    }

    /// The numbers of this profile, changed by those of another table, which has the texts.
    fn with(&self, changes: Table) -> Table {
        let mut whole = self.to_table();
        whole.retain(|_, section| section.is_table());
        for (name, change) in changes {
            match (whole.get_mut(&name), change) {
                (Some(Value::Table(section)), Value::Table(change)) => section.extend(change),
                (_, change) => _ = whole.insert(name, change),
            }
        }
        whole
    }

    fn from_table(from: &str, mut table: Table) -> Result<Self> {
        let refuse = |m: String| Err(Error::invalid(format!("{from}: {m}")));
        for (path, value) in leaves(&table) {
            let known = FIELDS.iter().any(|f| f.path == path);
            match (known, path.as_str()) {
                (false, "name" | "description" | "trust") if value.is_str() => {}
                (false, "name" | "description" | "trust") => {
                    return refuse(format!("{path} must be a text"));
                }
                (false, _) => return refuse(unknown(&path)),
                (true, _) => {}
            }
        }
        for (field, value) in FIELDS.iter().filter_map(|f| Some((f, f.older?))) {
            let (section, name) = field.path.split_once('.').unwrap_or_default();
            if let Some(Value::Table(section)) = table.get_mut(section) {
                section.entry(name).or_insert(Value::Float(value));
            }
        }
        for field in FIELDS {
            let Some(value) = lookup(&table, field.path) else {
                return refuse(format!("field {} is missing: give {}", field.path, range(field)));
            };
            let number = value.as_float().or_else(|| value.as_integer().map(|i| i as f64));
            match number {
                Some(n) if n.is_finite() && (field.low..=field.high).contains(&n) => {}
                Some(n) => {
                    return refuse(format!("{} is {n}: give {}", field.path, range(field)));
                }
                None => {
                    return refuse(format!("{} is {value}: give {}", field.path, range(field)));
                }
            }
        }
        let profile: Self = Value::Table(table).try_into().map_err(|e: toml::de::Error| {
            Error::invalid(format!("{from}: {}", e.message().trim()))
        })?;
        profile.check(from)?;
        Ok(profile)
    }

    /// Checks across fields.
    fn check(&self, from: &str) -> Result<()> {
        let h = &self.header;
        if self.link.gbps > 0.0 && self.link.gbps < 0.1 {
            return Err(Error::invalid(format!(
                "{from}: link.gbps is {}: below 0.1 Gb/s no run ends (0 is infinite)",
                self.link.gbps
            )));
        }
        if h.write_next > h.write_first {
            return Err(Error::invalid(format!(
                "{from}: header.write_next ({}) exceeds header.write_first ({}): a following packet carries no address",
                h.write_next, h.write_first
            )));
        }
        Ok(())
    }

    /// Sets one field from words, as a command line gives it.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown field or a value out of range.
    pub fn set(&mut self, path: &str, value: &str) -> Result<()> {
        let Some(field) = FIELDS.iter().find(|f| f.path == path) else {
            return Err(Error::invalid(unknown(path)));
        };
        let number: f64 = value
            .trim()
            .parse()
            .map_err(|_| Error::invalid(format!("{path} is {value:?}: give {}", range(field))))?;
        let mut table = self.to_table();
        let (section, name) = path.split_once('.').unwrap_or(("", path));
        if let Some(Value::Table(s)) = table.get_mut(section) {
            s.insert(name.to_owned(), Value::Float(number));
        }
        *self = Self::from_table(&self.name, table)?;
        Ok(())
    }

    /// The value of a field.
    pub fn get(&self, path: &str) -> Option<f64> {
        lookup(&self.to_table(), path)?.as_float()
    }

    fn to_table(&self) -> Table {
        Table::try_from(self).unwrap_or_default()
    }

    /// The file's form.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}

fn leaves(table: &Table) -> Vec<(String, Value)> {
    let mut out = Vec::new();
    for (section, value) in table {
        match value {
            Value::Table(t) => {
                out.extend(t.iter().map(|(name, v)| (format!("{section}.{name}"), v.clone())));
            }
            other => out.push((section.clone(), other.clone())),
        }
    }
    out
}

fn lookup<'t>(table: &'t Table, path: &str) -> Option<&'t Value> {
    let (section, name) = path.split_once('.')?;
    table.get(section)?.as_table()?.get(name)
}

fn range(f: &Field) -> String {
    format!("a number from {} to {} ({}: {})", f.low, f.high, f.unit, f.doc)
}

/// Names the nearest field, for misspellings.
fn unknown(path: &str) -> String {
    match nearest(path, FIELDS.iter().map(|f| f.path)) {
        Some(name) => format!("unknown field {path}: do you mean {name}?"),
        None => format!("unknown field {path}: see `dmtree fabric show` for all fields"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Built-in profiles with a part cut out and another put in.
        #[test]
        fn texts_that_were_changed_are_read_or_refused(
            which in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            gone in 0usize..12,
            put in prop_oneof!["-?[0-9]{1,20}", "[\\PC\n]{0,12}", Just("nan".to_owned())],
        ) {
            let names = Profile::names();
            let profile = Profile::named(names[which.index(names.len())]).expect("built in");
            let text = profile.to_toml();
            let at = at.index(text.len());
            let end = (at + gone).min(text.len());
            let text = [&text.as_bytes()[..at], put.as_bytes(), &text.as_bytes()[end..]].concat();
            if let Ok(p) = Profile::parse("x.toml", &String::from_utf8_lossy(&text)) {
                Profile::parse("again", &p.to_toml()).expect("its own text");
            }
        }
    }

    #[test]
    fn the_shipped_ones_are_sound_and_round_trip() {
        for name in Profile::names() {
            let p = Profile::named(name).unwrap();
            assert_eq!(p.name, name);
            assert!(p.description.len() > 20 && p.trust.len() > 5, "{name}");
            assert_eq!(Profile::parse("again", &p.to_toml()).unwrap(), p);
        }
        for f in FIELDS {
            assert!(Profile::named("ideal").unwrap().get(f.path).is_some(), "{}", f.path);
        }
    }

    #[test]
    fn bad_fields_are_named_with_file_and_range() {
        let text = Profile::named("ideal").unwrap().to_toml();
        let bad = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Profile::parse("my.toml", &text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        let mtu = "mtu_bytes = 4096.0\n";
        for (from, to, words) in [
            ("gbps", "gbsp", "my.toml: unknown field link.gbsp: do you mean link.gbps?"),
            (mtu, "", "my.toml: field link.mtu_bytes is missing: give a number from 256"),
            (mtu, "mtu_bytes = -1\n", "link.mtu_bytes is -1: give a number from 256 to 65536 (B"),
            (mtu, "mtu_bytes = \"big\"\n", "link.mtu_bytes is \"big\""),
            ("efficiency = 1.0", "efficiency = nan", "link.efficiency is NaN"),
            ("name = \"ideal\"", "name = 5", "name must be a text"),
            ("gbps = 0.0", "gbps = 1e-9", "no run ends"),
        ] {
            let e = bad(from, to);
            assert!(e.contains(words), "{e}");
        }
        assert!(
            Profile::parse("x.toml", "[link\n").unwrap_err().to_string().contains("x.toml, line 1")
        );
        assert!(Profile::named("cx9").unwrap_err().to_string().contains("cx5-100g"));
    }

    #[test]
    fn a_profile_may_give_its_differences_to_another() {
        let texts = "name = \"mine\"\ndescription = \"a card\"\ntrust = \"none\"\n";
        let of =
            |base: &str, rest: &str| Profile::parse("my.toml", &format!("{base}{texts}{rest}"));
        let mine = of("base = \"cx5-100g\"\n", "[link]\ngbps = 50\n").unwrap();
        let base = Profile::named("cx5-100g").unwrap();
        assert_eq!((mine.link.gbps, mine.name.as_str()), (50.0, "mine"));
        assert_eq!((mine.link.mtu_bytes, &mine.header), (base.link.mtu_bytes, &base.header));
        let refused = |base: &str, rest: &str| of(base, rest).unwrap_err().to_string();
        let e = refused("base = \"cx9\"\n", "");
        assert!(e.contains("my.toml: base") && e.contains("cx5-100g"), "{e}");
        assert!(refused("base = 5\n", "").contains("base is 5"));
        let e = refused("base = \"ideal\"\n", "[link]\ngbsp = 1\n");
        assert!(e.contains("my.toml: unknown field link.gbsp"), "{e}");
        assert!(refused("base = \"ideal\"\n", "link = 5\n").contains("my.toml"));
        let e = Profile::parse("my.toml", "base = \"ideal\"\n").unwrap_err().to_string();
        assert!(e.contains("name"), "{e}");
    }

    /// A file from before a field was there has that field's value for older files.
    #[test]
    fn older_profiles_are_read() {
        let new = Profile::named("dmtree-artifact-100g").unwrap();
        let text = new.to_toml();
        let (mut section, mut old) = ("", Vec::new());
        for line in text.lines() {
            section = line.strip_prefix('[').map_or(section, |name| name.trim_end_matches(']'));
            let path = format!("{section}.{}", line.split(" = ").next().unwrap());
            if !FIELDS.iter().any(|f| f.older.is_some() && f.path == path) {
                old.push(line);
            }
        }
        let read = Profile::parse("old.toml", &old.join("\n")).unwrap();
        for f in FIELDS {
            assert_eq!(read.get(f.path), f.older.or(new.get(f.path)), "{}", f.path);
        }
        assert!(text.lines().count() > old.len());
    }

    #[test]
    fn fields_can_be_overridden() {
        let mut p = Profile::named("cx6-100g").unwrap();
        p.set("responder_ns.read", "22").unwrap();
        assert_eq!(p.responder_ns.read, 22.0);
        let e = p.set("responder_ns.reed", "22").unwrap_err().to_string();
        assert!(e.contains("do you mean responder_ns.read?"), "{e}");
        assert!(p.set("responder_ns.read", "-3").unwrap_err().to_string().contains("from 0"));
        assert!(p.set("responder_ns.read", "much").is_err());
        assert_eq!(p.responder_ns.read, 22.0, "a refused value changes nothing");
    }
}
