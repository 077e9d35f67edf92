//! Creation options, stated once: their names, meanings, first values and ranges. Parsing, checks,
//! and the tests that every system has (`dmtree_check::peer`) follow from the statement.

use dmtree_fabric::{Error, Result};

/// The range of a number among creation options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The option.
    pub name: &'static str,
    /// The least and the greatest value.
    pub bounds: (u64, u64),
    /// Values are multiples of this.
    pub step: u64,
}

impl Range {
    /// Refuses a value outside of it.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn check(&self, value: u64) -> Result<()> {
        let (Self { name, step, .. }, (low, high)) = (self, self.bounds);
        if (low..=high).contains(&value) && value.is_multiple_of(*step) {
            return Ok(());
        }
        let of = if *step > 1 { format!(", a multiple of {step}") } else { String::new() };
        Err(Error::invalid(format!("{name} is {value}; it must be {low} to {high}{of}")))
    }
}

/// Declares creation options, which the catalog stores: a struct with these fields, of which one
/// that is unknown is refused and one that is missing has its default; `first()`, with the values
/// that stand here; and `check_ranges()`, which refuses a number outside of the range behind its
/// value. The default stands behind the name: `Self::first()`, or a preset.
///
/// ```
/// dmtree_parts::options! {
///     /// The layout of an index.
///     pub struct Options = Self::first();
///     /// Slots of a leaf.
///     leaf_slots: u32 = 32, in 4..=128;
///     /// Bytes of a value.
///     value_bytes: u32 = 8, in 8..=1024, by 8;
///     /// Leaves are sorted.
///     sorted: bool = false;
/// }
///
/// let e = Options { leaf_slots: 3, ..Options::default() }.check_ranges().unwrap_err();
/// assert!(e.to_string().contains("leaf_slots is 3; it must be 4 to 128"));
/// let e = Options { value_bytes: 12, ..Options::default() }.check_ranges().unwrap_err();
/// assert!(e.to_string().contains("it must be 8 to 1024, a multiple of 8"));
/// ```
#[macro_export]
macro_rules! options {
    (
        $(#[$about:meta])*
        pub struct $name:ident = $default:expr;
        $($(#[$doc:meta])* $field:ident: $type:ty = $first:expr
            $(, in $range:expr $(, by $step:literal)?)?;)+
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                $default
            }
        }

        impl $name {
            /// The ranges of its numbers.
            pub const RANGES: &'static [$crate::options::Range] = &[$($(
                $crate::options::Range {
                    name: stringify!($field),
                    bounds: {
                        const RANGE: ::core::ops::RangeInclusive<$type> = $range;
                        (*RANGE.start() as u64, *RANGE.end() as u64)
                    },
                    step: 1 $(* $step)?,
                },
            )?)+];

            /// The values that the declaration gives.
            fn first() -> Self {
                Self { $($field: $first,)+ }
            }

            /// Refuses a number outside of its range.
            ///
            /// # Errors
            /// `InvalidArgument`, naming the option and its range.
            fn check_ranges(&self) -> ::dmtree_fabric::Result<()> {
                let values = [$($({
                    const _: ::core::ops::RangeInclusive<$type> = $range;
                    self.$field as u64
                },)?)+];
                Self::RANGES.iter().zip(values).try_for_each(|(range, value)| range.check(value))
            }
        }
    };
}

/// Refuses an option that is out of its range.
///
/// # Errors
/// `InvalidArgument`, naming the option and its range.
pub fn check_range(name: &'static str, value: u64, low: u64, high: u64) -> Result<()> {
    Range { name, bounds: (low, high), step: 1 }.check(value)
}

/// Refuses a combination of options: one that is on without what it needs.
///
/// # Errors
/// `InvalidArgument` with the words of the first.
pub fn all_needed<'w>(rules: impl IntoIterator<Item = (bool, bool, &'w str)>) -> Result<()> {
    match rules.into_iter().find(|(on, needed, _)| *on && !needed) {
        Some((.., words)) => Err(Error::invalid(words)),
        None => Ok(()),
    }
}
