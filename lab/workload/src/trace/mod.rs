//! Operation traces: in the text form that the YCSB client prints with its `basic` binding, which
//! is described here, and in [other forms](Format).
//!
//! ```text
//! INSERT usertable user6284781860667377211 [ field0=... field1=... ]
//! UPDATE usertable user6284781860667377211 [ field1=... ]
//! READ usertable user6284781860667377211 [ <all fields>]
//! READ usertable user6284781860667377211 [ field0 field1 ]
//! SCAN usertable user6284781860667377211 17 [ <all fields>]
//! DELETE usertable user6284781860667377211
//! ```
//!
//! A value is printed as it is, so a line is parsed from its ends. A field starts at ` fieldN=`
//! (one space before it, N a decimal number without leading zeros), its value extends to the next
//! such start, and the record ends at the last ` ]`, which must end the line. Values may have
//! spaces, brackets, `=`, and bytes that are not UTF-8. A value that contains ` fieldN=` cannot be
//! told from two fields; where that repeats a field, it is an error. A newline in a value (the
//! client makes none) ends the line, and the rest is an error.
//!
//! The lines that the client prints about itself are skipped: properties, measurements, status,
//! start-up and shut-down messages, also those of standard error, in case both outputs went to one
//! file. Any other line is an error with its number. An operation on a second table is an error,
//! too, because an index has one key space.
//!
//! A trace has the requests, not the answers. To replay it, give each operation to thread
//! [`shard`]`(key, threads)`, and keep each thread's order; operations on one key then run in the
//! order of the trace. A key's value in the index is the encoding of a [`Record`];
//! [`Action::apply`] returns the effect of an operation on it.

mod client_lines;
mod formats;
mod parse;
mod reader;
mod record;

pub use formats::Format;
pub use parse::{Action, Fields, TraceOp};
pub use reader::{MAX_LINE, TraceCounts, TraceReader, shard};
pub use record::Record;
