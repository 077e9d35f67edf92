//! Options outside of a program: with names, for people and experiments, and as the bytes that
//! catalogs and journals keep.
//!
//! The bytes are the number of their form and all fields in the postcard format. A field that is
//! added, removed or moved makes another form, with another number. A program reads its own form
//! and refuses the others by their number: the layout of an index must be understood as a whole.

use std::fmt;

use dmtree_fabric::Error;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Models, Options, Tables, Techniques};

/// The form of the bytes. Form 1 was a JSON object.
const FORM: u8 = 4;
/// With which a JSON object begins.
const OBJECT: u8 = b'{';

/// Makes the flat form of [`Options`], and the conversions.
macro_rules! flat {
    (layout { $($layout:ident: $type:ty,)* } techniques { $($technique:ident: $of:ty,)* }) => {
        /// Every field beside the others.
        #[derive(Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default, rename = "Options")]
        struct Flat {
            $($layout: $type,)*
            $($technique: $of,)*
        }

        impl From<&Options> for Flat {
            fn from(options: &Options) -> Self {
                let Options { $($layout,)* techniques } = options;
                let Techniques { $($technique,)* } = techniques;
                Self { $($layout: *$layout,)* $($technique: *$technique,)* }
            }
        }

        impl From<Flat> for Options {
            fn from(flat: Flat) -> Self {
                let Flat { $($layout,)* $($technique,)* } = flat;
                Self { $($layout,)* techniques: Techniques { $($technique,)* } }
            }
        }
    };
}

flat! {
    layout {
        key_inline_bytes: u32,
        value_inline_bytes: u32,
        leaf_capacity: u32,
        neighbourhood: u32,
        fanout: u32,
        images: f64,
        log_kib: u32,
        log_groups: u32,
        log_past: Option<f64>,
        timeout_ms: u64,
    }
    techniques {
        mirrors: bool,
        tables: Tables,
        delegation: bool,
        combining: bool,
        adaptive_capacity: bool,
        round_trip_combining: bool,
        locks: u32,
        on_chip: bool,
        models: Models,
        error_bound: u32,
        page_leaves: u32,
        retrain_after: u32,
    }
}

impl Default for Flat {
    fn default() -> Self {
        Self::from(&Options::default())
    }
}

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Flat::from(self).serialize(s)
    }
}

/// With names alone: a list has none, and a field that is missing is as by default.
impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Named;

        impl<'de> Visitor<'de> for Named {
            type Value = Flat;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of options")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Flat, A::Error> {
                Flat::deserialize(MapAccessDeserializer::new(map))
            }
        }

        d.deserialize_map(Named).map(Self::from)
    }
}

impl Options {
    /// The bytes that catalogs and journals keep.
    pub fn stored(&self) -> Vec<u8> {
        let plain = "numbers and names have bytes";
        postcard::to_stdvec(&(FORM, Flat::from(self))).expect(plain)
    }

    /// The options of these bytes.
    ///
    /// # Errors
    /// `Incompatible` for another form, and for what is none.
    pub fn from_stored(bytes: &[u8]) -> dmtree_fabric::Result<Self> {
        let refused = |what: &str| Error::incompatible(format!("its stored options {what}"));
        let fields = match bytes.split_first() {
            Some((&FORM, fields)) => fields,
            Some((&OBJECT, _)) => {
                return Err(refused(
                    "are text, as a former release and the laboratory write them: use the program \
                     that made it",
                ));
            }
            Some((form, _)) => {
                let what = format!("have form {form}, and this release reads form {FORM}");
                return Err(refused(&what));
            }
            None => return Err(refused("are empty")),
        };
        let flat: Flat = match postcard::take_from_bytes(fields) {
            Ok((flat, [])) => flat,
            Ok((_, more)) => return Err(refused(&format!("have {} bytes too many", more.len()))),
            Err(e) => return Err(refused(&format!("are damaged ({e})"))),
        };
        let options = Self::from(flat);
        options.check().map_err(|e| refused(&format!("are damaged ({e})")))?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_parts::peer::value;
    use proptest::prelude::*;
    use serde_json::Map;

    #[test]
    fn the_named_form_is_flat_and_refuses_what_it_does_not_know() {
        let o = Options { fanout: 8, ..Options::default().without_tables() };
        let named = value(&o);
        assert_eq!((&named["fanout"], &named["tables"]), (&8.into(), &"none".into()));
        assert_eq!(named.as_object().map(Map::len), Some(22));
        assert_eq!(serde_json::from_value::<Options>(named).expect("options"), o);
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

    /// Another form has another number: these bytes change with [`FORM`] alone.
    #[test]
    fn the_form_is_frozen() {
        let stored = Options::default().stored();
        let digits: String = stored.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, "0418082000200000000000000000000400904e010001010101808001010008800440");
    }

    #[test]
    fn other_forms_are_refused_by_their_number() {
        let stored = Options::default().stored();
        let with = |first: u8| [&[first], &stored[1..]].concat();
        for (bytes, words) in [
            (b"{\"fanout\":32}".to_vec(), "a former release"),
            (with(3), "have form 3, and this release reads form 4"),
            (Vec::new(), "are empty"),
            (stored[..stored.len() - 1].to_vec(), "are damaged"),
            ([&stored[..], &[0, 0]].concat(), "have 2 bytes too many"),
            (Options { fanout: 7, ..Options::default() }.stored(), "fanout is 7"),
        ] {
            let e = Options::from_stored(&bytes).expect_err(words);
            assert_eq!(e.kind(), dmtree_fabric::ErrorKind::Incompatible);
            assert!(e.to_string().contains(words), "{words}: {e}");
        }
    }

    proptest! {
        #[test]
        fn stored_options_come_back(seed: u64, switches: bool, tables: bool) {
            let base = Options::default();
            let base = if tables { base } else { base.without_tables() };
            let mut state = seed;
            let mut below = |n| {
                state = dmtree_fabric::golden_hash(state) ^ state >> 7;
                state % n
            };
            let o = base.drawn(switches && tables, &mut below);
            prop_assert_eq!(Options::from_stored(&o.stored()).expect("whole"), o);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = bytes;
            let _ = Options::from_stored(&bytes);
            bytes.insert(0, FORM);
            let _ = Options::from_stored(&bytes);
        }
    }
}
