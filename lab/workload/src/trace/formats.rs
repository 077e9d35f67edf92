//! The forms of traces, and the parser of one file.
//!
//! * `ycsb`: what the YCSB client prints with its `basic` binding ([the module](super)).
//! * `twitter`: rows `timestamp,key,key size,value size,client id,operation,TTL`, as of the cache
//!   traces of Twitter (Yang, Yue and Rashmi, OSDI 2020). `get` and `gets` are reads, `delete` is
//!   one, every other operation writes a value of the size. A key may have commas.
//! * `csv`: the first row names the columns: `op` and `key`; `value`, or `size` of one in bytes;
//!   `length` of scans. A field may be quoted, as RFC 4180 says, without a line end in it.
//!
//! A value of which a trace has the size alone is made of its key and row. Values are stored as
//! records with one field, so that a replay knows a torn one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Fields;
use super::parse::{Action, TraceOp, parse_line, shown};
use super::record::Record;
use crate::error::Error;
use crate::keys::MAX_KEY;
use crate::values::{MAX_VALUE, ValueMaker};

/// The form of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The output of the YCSB client.
    #[default]
    Ycsb,
    /// A cache trace of Twitter.
    Twitter,
    /// Comma-separated, with a row of names.
    Csv,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 3] = [Format::Ycsb, Format::Twitter, Format::Csv];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Ycsb => "ycsb",
            Format::Twitter => "twitter",
            Format::Csv => "csv",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Format::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| Error::unknown("format of a trace", text, "ycsb, twitter, csv"))
    }
}

/// The parser of the lines of one file.
#[derive(Clone, Debug)]
pub(super) enum Parser {
    Ycsb,
    Twitter,
    /// The columns, once the first row was read.
    Csv(Vec<Column>),
}

impl Parser {
    pub(super) fn new(format: Format) -> Self {
        match format {
            Format::Ycsb => Parser::Ycsb,
            Format::Twitter => Parser::Twitter,
            Format::Csv => Parser::Csv(Vec::new()),
        }
    }

    /// Parses the line of this number, given without its newline. `None` for a line that has no
    /// operation.
    ///
    /// # Errors
    /// What is wrong, and what is expected there.
    pub(super) fn line(&mut self, line: &[u8], number: u64) -> Result<Option<TraceOp>, String> {
        let row = line.strip_suffix(b"\r").unwrap_or(line);
        let op = match self {
            Parser::Ycsb => parse_line(line)?,
            Parser::Twitter => Some(twitter(row, number)?),
            Parser::Csv(columns) if columns.is_empty() => {
                *columns = header(row)?;
                None
            }
            Parser::Csv(columns) => Some(csv(columns, row, number)?),
        };
        op.map(within_limits).transpose()
    }
}

/// Refuses what no index takes.
fn within_limits(op: TraceOp) -> Result<TraceOp, String> {
    if op.key.is_empty() || op.key.len() > MAX_KEY {
        return Err(format!(
            "a key of {} bytes: an index takes keys of 1 to {MAX_KEY} bytes",
            op.key.len()
        ));
    }
    if let Action::Insert(r) | Action::Update(r) = &op.action
        && r.encoded_len() > MAX_VALUE as usize
    {
        return Err(format!(
            "a record of {} bytes: an index takes values of {MAX_VALUE} bytes at most",
            r.encoded_len()
        ));
    }
    Ok(op)
}

/// A record with one field, number 0.
fn record(value: Vec<u8>) -> Record {
    Record(BTreeMap::from([(0, value)]))
}

/// A value of so many bytes.
fn made(key: &[u8], row: u64, bytes: u32) -> Result<Record, String> {
    if bytes > MAX_VALUE {
        return Err(format!(
            "a value of {bytes} bytes: an index takes values of {MAX_VALUE} bytes at most"
        ));
    }
    let mut value = Vec::new();
    ValueMaker.fill(key, row as u32, bytes as usize, &mut value);
    Ok(record(value))
}

/// A decimal number below 2^32.
fn number(what: &str, digits: &[u8]) -> Result<u32, String> {
    let text = std::str::from_utf8(digits).unwrap_or_default();
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parsed = text.parse().ok().filter(|_| plain);
    parsed.ok_or_else(|| format!("{what} {} is no number from 0 to {}", shown(digits), u32::MAX))
}

fn twitter(row: &[u8], at: u64) -> Result<TraceOp, String> {
    let wanted = || {
        format!(
            "a row is timestamp,key,key size,value size,client id,operation,TTL, and not {}",
            shown(row)
        )
    };
    // The key may have commas, the columns beside it have none.
    let begin = row.iter().position(|b| *b == b',').ok_or_else(wanted)?;
    let mut behind: Vec<&[u8]> = row[begin + 1..].rsplitn(6, |b| *b == b',').collect();
    behind.reverse();
    let [key, key_size, value_size, client, operation, ttl] = behind[..] else {
        return Err(wanted());
    };
    number("the timestamp", &row[..begin])?;
    number("the key size", key_size)?;
    number("the client id", client)?;
    number("the TTL", ttl)?;
    let bytes = number("the value size", value_size)?;
    let action = match operation {
        b"get" | b"gets" => Action::Read(Fields::All),
        b"delete" => Action::Delete,
        b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => {
            Action::Insert(made(key, at, bytes)?)
        }
        other => {
            return Err(format!(
                "the operation {} is none of get, gets, set, add, replace, cas, append, prepend, delete, incr, decr",
                shown(other)
            ));
        }
    };
    Ok(TraceOp { table: Vec::new(), key: key.to_vec(), action })
}

/// A column of a CSV trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Op,
    Key,
    Value,
    Size,
    Length,
}

const COLUMNS: [(&str, Column); 5] = [
    ("op", Column::Op),
    ("key", Column::Key),
    ("value", Column::Value),
    ("size", Column::Size),
    ("length", Column::Length),
];

/// The columns that the first row names.
fn header(row: &[u8]) -> Result<Vec<Column>, String> {
    const WANTED: &str =
        "the first row names the columns: op and key; value, or size; and length of scans";
    let mut columns = Vec::new();
    for name in fields(row, COLUMNS.len())? {
        let text = String::from_utf8_lossy(&name).trim().to_ascii_lowercase();
        let column = COLUMNS.iter().find(|(known, _)| *known == text).map(|(_, column)| *column);
        let column = column.ok_or_else(|| format!("unknown column {}: {WANTED}", shown(&name)))?;
        if columns.contains(&column) {
            return Err(format!("the column {text} stands twice: {WANTED}"));
        }
        columns.push(column);
    }
    if !columns.contains(&Column::Op) || !columns.contains(&Column::Key) {
        return Err(format!("no column op, or no column key, in {}: {WANTED}", shown(row)));
    }
    if columns.contains(&Column::Value) && columns.contains(&Column::Size) {
        return Err(format!("a column value and a column size: {WANTED}"));
    }
    Ok(columns)
}

fn csv(columns: &[Column], row: &[u8], at: u64) -> Result<TraceOp, String> {
    let found = fields(row, columns.len())?;
    if found.len() != columns.len() {
        return Err(format!(
            "{} fields where the first row names {}: {}",
            found.len(),
            columns.len(),
            shown(row)
        ));
    }
    let field = |column| {
        let place = columns.iter().position(|c| *c == column)?;
        found.get(place).map(AsRef::as_ref)
    };
    let key: &[u8] = field(Column::Key).unwrap_or_default();
    let op: &[u8] = field(Column::Op).unwrap_or_default();
    let written = || match (field(Column::Value), field(Column::Size)) {
        (Some(value), _) => Ok(record(value.to_vec())),
        (_, Some(size)) => made(key, at, number("the size", size)?),
        _ => Err(format!("{} needs a column value, or size", shown(op))),
    };
    let action = match op.to_ascii_lowercase().as_slice() {
        b"read" | b"get" => Action::Read(Fields::All),
        b"insert" | b"put" | b"set" => Action::Insert(written()?),
        b"update" => Action::Update(written()?),
        b"delete" => Action::Delete,
        b"scan" => {
            let length = field(Column::Length).ok_or("scan needs a column length")?;
            Action::Scan { count: number("the length", length)?, fields: Fields::All }
        }
        _ => {
            return Err(format!(
                "the operation {} is none of read (get), insert (put, set), update, delete, scan",
                shown(op)
            ));
        }
    };
    Ok(TraceOp { table: Vec::new(), key: key.to_vec(), action })
}

/// The fields of a row, `most` at most.
fn fields(row: &[u8], most: usize) -> Result<Vec<Cow<'_, [u8]>>, String> {
    let mut out: Vec<Cow<'_, [u8]>> = Vec::new();
    let mut rest = row;
    loop {
        if out.len() == most {
            return Err(format!("more than {most} fields: {}", shown(row)));
        }
        let (field, behind) = match rest.strip_prefix(b"\"") {
            Some(inside) => quoted(inside).ok_or_else(|| {
                format!("a quoted field without an end, or with text behind it: {}", shown(row))
            })?,
            None => {
                let end = rest.iter().position(|b| *b == b',').unwrap_or(rest.len());
                (Cow::Borrowed(&rest[..end]), &rest[end..])
            }
        };
        out.push(field);
        match behind.split_first() {
            None => return Ok(out),
            Some((_, after)) => rest = after,
        }
    }
}

/// A field up to its closing quote, and what is behind that: nothing, or a comma.
fn quoted(inside: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let (mut field, mut at) = (Vec::new(), 0);
    loop {
        let end = at + inside[at..].iter().position(|b| *b == b'"')?;
        field.extend_from_slice(&inside[at..end]);
        match inside.get(end + 1) {
            Some(b'"') => field.push(b'"'),
            None | Some(b',') => return Some((Cow::Owned(field), &inside[end + 1..])),
            Some(_) => return None,
        }
        at = end + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpKind;
    use proptest::prelude::*;

    /// The kinds, keys and values of the operations of a text, or the first refusal with its line.
    fn parsed(format: Format, text: &str) -> Result<Vec<(OpKind, String, Vec<u8>)>, String> {
        let mut parser = Parser::new(format);
        let mut out = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let op = parser.line(line.as_bytes(), number).map_err(|e| format!("{number}: {e}"))?;
            out.extend(op.map(|op| {
                let value = match &op.action {
                    Action::Insert(r) | Action::Update(r) => r.0[&0].clone(),
                    _ => Vec::new(),
                };
                (op.action.kind(), String::from_utf8_lossy(&op.key).into_owned(), value)
            }));
        }
        Ok(out)
    }

    #[test]
    fn twitter_rows() {
        let text =
            "0,a:b,c,5,100,7,get,0\n1,k,1,9,7,set,3600\n2,k,1,0,7,add,0\n3,k,1,0,7,delete,0\r\n";
        let ops = parsed(Format::Twitter, text).unwrap();
        let kinds: Vec<_> =
            ops.iter().map(|(kind, key, v)| (*kind, key.as_str(), v.len())).collect();
        assert_eq!(
            kinds,
            [
                (OpKind::Read, "a:b,c", 0),
                (OpKind::Insert, "k", 9),
                (OpKind::Insert, "k", 0),
                (OpKind::Delete, "k", 0)
            ]
        );
        assert!(ValueMaker.check(b"k", &ops[1].2).is_ok());
    }

    #[test]
    fn rows_of_csv_follow_their_first() {
        let text = "key,op,value,length\nk,put,v,\n\"a,\"\"b\",Insert,\"x,y\",\nk,scan,,17\nk,get,,\nk,update,,\nk,delete,,\n";
        let ops = parsed(Format::Csv, text).unwrap();
        let of: Vec<_> = ops.iter().map(|(k, key, v)| (*k, key.as_str(), v.as_slice())).collect();
        assert_eq!(of[0], (OpKind::Insert, "k", &b"v"[..]));
        assert_eq!(of[1], (OpKind::Insert, "a,\"b", &b"x,y"[..]));
        assert_eq!((of[2].0, of[3].0), (OpKind::Scan, OpKind::Read));
        assert_eq!((of[4], of[5].0), ((OpKind::Update, "k", &b""[..]), OpKind::Delete));
        let sized = parsed(Format::Csv, "op,key,size\nput,k,100\nget,k,\n").unwrap();
        assert_eq!((sized[0].2.len(), sized[1].0), (100, OpKind::Read));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_expected() {
        let long = format!("0,{},1,1,1,get,0", "k".repeat(1025));
        for (format, text, words) in [
            (Format::Twitter, "0,k,1,1,1,get", "1: a row is timestamp,key,key size"),
            (Format::Twitter, "\n", "1: a row is"),
            (Format::Twitter, "0,k,1,1,1,get,0\nx,k,1,1,1,get,0", "2: the timestamp \"x\""),
            (Format::Twitter, "0,k,1,-1,1,get,0", "the value size \"-1\" is no number"),
            (Format::Twitter, "0,k,1,99999999999,1,set,0", "is no number from 0"),
            (Format::Twitter, "0,k,1,1048577,1,set,0", "a value of 1048577 bytes"),
            (Format::Twitter, "0,k,1,1048576,1,set,0", "a record of 1048587 bytes"),
            (Format::Twitter, "0,k,1,1,1,frob,0", "\"frob\" is none of get, gets, set"),
            (Format::Twitter, "0,,1,1,1,get,0", "a key of 0 bytes"),
            (Format::Twitter, &long, "a key of 1025 bytes: an index takes"),
            (Format::Csv, "op,kee\nget,k", "1: unknown column \"kee\": the first row names"),
            (Format::Csv, "op,value", "no column key"),
            (Format::Csv, "op,key,op", "the column op stands twice"),
            (Format::Csv, "op,key,value,size", "a column value and a column size"),
            (Format::Csv, "op,key,value,length,x,y", "more than 5 fields"),
            (Format::Csv, "op,key\nget", "2: 1 fields where the first row names 2"),
            (Format::Csv, "op,key\nget,k,x", "2: more than 2 fields"),
            (Format::Csv, "op,key\nput,k", "\"put\" needs a column value, or size"),
            (Format::Csv, "op,key\nscan,k", "scan needs a column length"),
            (Format::Csv, "op,key,size\nput,k,many", "the size \"many\""),
            (Format::Csv, "op,key\nfrob,k", "none of read (get), insert"),
            (Format::Csv, "op,key\nget,\"k", "a quoted field without an end"),
            (Format::Csv, "op,key\nget,\"k\"x", "with text behind it"),
        ] {
            let e = parsed(format, text).unwrap_err();
            assert!(e.contains(words), "{text}: {e}");
        }
        let e = "twiter".parse::<Format>().unwrap_err().to_string();
        assert!(e.contains("ycsb, twitter, csv"), "{e}");
    }

    proptest! {
        #![proptest_config(crate::property_config())]
        #[test]
        fn any_bytes_parse_or_say_why(lines: Vec<Vec<u8>>) {
            for format in Format::ALL {
                let mut parser = Parser::new(format);
                for (line, number) in lines.iter().zip(1..) {
                    let _ = parser.line(line, number);
                }
            }
        }

        /// A row that a program quotes is read as it was.
        #[test]
        fn quoted_fields_come_back(key: Vec<u8>, value: Vec<u8>) {
            let quote = |bytes: &[u8]| {
                let doubled = bytes.iter().flat_map(|b| vec![*b; 1 + usize::from(*b == b'"')]);
                [b"\"".to_vec(), doubled.collect(), b"\"".to_vec()].concat()
            };
            let row = [quote(&key), quote(&value)].join(&b',');
            let found = fields(&row, 2).unwrap();
            prop_assert_eq!((found[0].as_ref(), found[1].as_ref()), (&key[..], &value[..]));
        }
    }
}
