//! `Debug` in one line.

/// Implements `Debug` as one formatted line: `debug_line!(Type, it => "Type({})", it.name)`.
#[macro_export]
macro_rules! debug_line {
    ($type:ty, $it:ident => $($line:tt)+) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $it = self;
                write!(f, $($line)+)
            }
        }
    };
}
