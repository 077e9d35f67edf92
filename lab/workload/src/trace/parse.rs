//! One line of a trace.

use super::client_lines::{is_client_line, is_raw_header};
use super::record::Record;
use crate::mix::OpKind;

/// The fields that a read or scan asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fields {
    /// Every field.
    All,
    /// These field numbers, ascending, each once.
    Some(Vec<u32>),
}

/// The action on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Search.
    Read(Fields),
    /// Write of a whole record.
    Insert(Record),
    /// Write of some fields; the record's other fields stay.
    Update(Record),
    /// Entries in ascending order from the key on.
    Scan {
        /// Most entries.
        count: u32,
        /// The fields of each.
        fields: Fields,
    },
    /// Removal.
    Delete,
}

impl Action {
    /// Its kind.
    pub fn kind(&self) -> OpKind {
        match self {
            Action::Read(_) => OpKind::Read,
            Action::Insert(_) => OpKind::Insert,
            Action::Update(_) => OpKind::Update,
            Action::Scan { .. } => OpKind::Scan,
            Action::Delete => OpKind::Delete,
        }
    }

    /// The value of the key after this action, if it was `current` before; `None` for an absent
    /// key. An insert replaces the record. An update sets its fields, and creates the record if
    /// there is none, as a store without a prior check does.
    pub fn apply(&self, current: Option<Record>) -> Option<Record> {
        match self {
            Action::Read(_) | Action::Scan { .. } => current,
            Action::Insert(record) => Some(record.clone()),
            Action::Update(update) => {
                let mut record = current.unwrap_or_default();
                record.0.extend(update.0.clone());
                Some(record)
            }
            Action::Delete => None,
        }
    }
}

/// One operation of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceOp {
    /// The table.
    pub table: Vec<u8>,
    /// Its key; for a scan, the start key.
    pub key: Vec<u8>,
    /// The action.
    pub action: Action,
}

/// Parses one line, given without its newline. `None` for a line that the client prints about
/// itself.
///
/// # Errors
/// The reason why a line is neither that nor an operation.
pub(super) fn parse_line(line: &[u8]) -> Result<Option<TraceOp>, String> {
    // On Windows a line also ends with a carriage return.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (verb, rest) = word(line);
    let known = matches!(verb, b"READ" | b"INSERT" | b"UPDATE" | b"SCAN" | b"DELETE");
    // An operation is not tested for being a client's line, because its values may have any text.
    if !known || is_raw_header(line) {
        return if known || is_client_line(line) {
            Ok(None)
        } else {
            Err(format!(
                "neither an operation (READ, INSERT, UPDATE, SCAN, DELETE) nor a line of the YCSB client: {}",
                shown(line)
            ))
        };
    }
    let (table, rest) = word(rest);
    let (key, rest) = word(rest);
    if table.is_empty() || key.is_empty() {
        return Err(format!("no table and key after {}: {}", shown(verb), shown(line)));
    }
    let action = match verb {
        b"READ" => Action::Read(wanted(rest)?),
        b"INSERT" => Action::Insert(record(rest)?),
        b"UPDATE" => Action::Update(record(rest)?),
        b"SCAN" => {
            let (count, rest) = word(rest);
            let count = decimal(count)
                .ok_or_else(|| format!("{} is no number of records to scan", shown(count)))?;
            Action::Scan { count, fields: wanted(rest)? }
        }
        _ if line.len() == verb.len() + table.len() + key.len() + 2 => Action::Delete,
        _ => return Err(format!("more than a table and a key after DELETE: {}", shown(line))),
    };
    Ok(Some(TraceOp { table: table.to_vec(), key: key.to_vec(), action }))
}

/// Splits at the first space.
fn word(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|&b| b == b' ') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

/// The start of a line, for a message.
pub(super) fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 60;
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
    if bytes.len() > SHOWN { format!("{start:?}...") } else { format!("{start:?}") }
}

/// A decimal number below 2^32, without a sign or leading zeros.
fn decimal(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    digits.iter().try_fold(0u32, |number, &digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// The N of `fieldN`.
fn field_number(name: &[u8]) -> Option<u32> {
    decimal(name.strip_prefix(b"field")?)
}

/// `[ <all fields>]` or `[ field0 field3 ]`.
fn wanted(text: &[u8]) -> Result<Fields, String> {
    if text == b"[ <all fields>]" {
        return Ok(Fields::All);
    }
    let inner = text.strip_prefix(b"[ ").and_then(|t| t.strip_suffix(b"]")).ok_or_else(|| {
        format!("no \"[ <all fields>]\" or \"[ fieldN ... ]\" but {}", shown(text))
    })?;
    let mut numbers = Vec::new();
    if !inner.is_empty() {
        let names = inner.strip_suffix(b" ").ok_or_else(|| {
            format!("the list of fields does not end with \" ]\": {}", shown(text))
        })?;
        for name in names.split(|&b| b == b' ') {
            let number = field_number(name)
                .ok_or_else(|| format!("{} is no field: fieldN is", shown(name)))?;
            numbers.push(number);
        }
        numbers.sort_unstable();
        numbers.dedup();
    }
    Ok(Fields::Some(numbers))
}

/// `[ field0=... field1=... ]`.
fn record(text: &[u8]) -> Result<Record, String> {
    let inner = text
        .strip_prefix(b"[")
        .ok_or_else(|| format!("no \"[\" before the fields but {}", shown(text)))?;
    let inner = inner
        .strip_suffix(b" ]")
        .ok_or("the record does not end with \" ]\": is the line whole?")?;
    let mut record = Record::default();
    let mut start = field_start(inner, 0);
    if !inner.is_empty() && start.is_none_or(|s| s.at > 0) {
        return Err(format!("the record does not start with \" fieldN=\" but {}", shown(inner)));
    }
    while let Some(field) = start {
        let next = field_start(inner, field.value);
        let end = next.as_ref().map_or(inner.len(), |n| n.at);
        if record.0.insert(field.number, inner[field.value..end].to_vec()).is_some() {
            let n = field.number;
            return Err(format!("field{n} stands twice: a value holds the text \" field{n}=\""));
        }
        start = next;
    }
    Ok(record)
}

/// Where a field starts.
#[derive(Clone, Copy)]
struct FieldStart {
    /// The space before its name.
    at: usize,
    number: u32,
    /// The first byte of its value.
    value: usize,
}

/// The first ` fieldN=` at or after `from`.
fn field_start(bytes: &[u8], from: usize) -> Option<FieldStart> {
    const NAME: &[u8] = b" field";
    let mut at = from;
    loop {
        at += bytes.get(at..)?.iter().position(|&b| b == b' ')?;
        if bytes[at..].starts_with(NAME) {
            let digits = at + NAME.len();
            let equals = digits + bytes[digits..].iter().take_while(|b| b.is_ascii_digit()).count();
            if bytes.get(equals) == Some(&b'=')
                && let Some(number) = decimal(&bytes[digits..equals])
            {
                return Some(FieldStart { at, number, value: equals + 1 });
            }
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn op(line: &str) -> TraceOp {
        parse_line(line.as_bytes()).unwrap().unwrap()
    }

    fn fields(line: &str) -> Vec<(u32, String)> {
        match op(line).action {
            Action::Insert(r) | Action::Update(r) => {
                r.0.into_iter().map(|(n, v)| (n, String::from_utf8(v).unwrap())).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn pairs(pairs: &[(u32, &str)]) -> Vec<(u32, String)> {
        pairs.iter().map(|&(n, v)| (n, v.to_owned())).collect()
    }

    #[test]
    fn the_five_operations() {
        let all = op("READ usertable user1 [ <all fields>]");
        assert_eq!((all.table.as_slice(), all.key.as_slice()), (&b"usertable"[..], &b"user1"[..]));
        assert_eq!(all.action, Action::Read(Fields::All));
        assert_eq!(op("READ t k [ field3 field1 ]").action, Action::Read(Fields::Some(vec![1, 3])));
        assert_eq!(op("READ t k [ ]").action, Action::Read(Fields::Some(vec![])));
        assert_eq!(
            op("SCAN usertable user1 17 [ <all fields>]").action,
            Action::Scan { count: 17, fields: Fields::All }
        );
        assert_eq!(
            op("SCAN usertable user1 0 [ field0 ]").action,
            Action::Scan { count: 0, fields: Fields::Some(vec![0]) }
        );
        assert_eq!(op("DELETE usertable user1").action, Action::Delete);
        assert_eq!(op("DELETE usertable user1\r").key, b"user1");
        assert_eq!(fields("INSERT t k [ field1=a field0=b ]"), pairs(&[(0, "b"), (1, "a")]));
        assert_eq!(fields("UPDATE t k [ ]"), []);
        assert_eq!(op("UPDATE t k [ field12=x ]").action.kind(), OpKind::Update);
    }

    #[test]
    fn values_may_hold_nearly_anything() {
        for (line, due) in [
            ("INSERT t k [ field0= ]", pairs(&[(0, "")])),
            ("INSERT t k [ field0=  ]", pairs(&[(0, " ")])),
            ("INSERT t k [ field0= field1= ]", pairs(&[(0, ""), (1, "")])),
            ("INSERT t k [ field0=a  field1=b ]", pairs(&[(0, "a "), (1, "b")])),
            ("INSERT t k [ field0=x ] field1=y ] ]", pairs(&[(0, "x ]"), (1, "y ]")])),
            (
                "INSERT t k [ field0=[ field ]=field1= fieldx=1 field=2 ]",
                pairs(&[(0, "[ field ]=field1= fieldx=1 field=2")]),
            ),
            (
                "INSERT t k [ field0= field01=a field4294967296=b ]",
                pairs(&[(0, " field01=a field4294967296=b")]),
            ),
            (
                "INSERT t k [ field0=READ t k [ <all fields>] ]",
                pairs(&[(0, "READ t k [ <all fields>]")]),
            ),
            ("INSERT t k [ field4294967295=a field10=b ]", pairs(&[(10, "b"), (4294967295, "a")])),
            ("INSERT t k [ field0=\"=\" ]\r", pairs(&[(0, "\"=\"")])),
        ] {
            assert_eq!(fields(line), due, "{line}");
        }
        let raw = parse_line(b"INSERT t k\xff [ field0=\xfe\x00 ]").unwrap().unwrap();
        assert_eq!(raw.key, b"k\xff");
    }

    #[test]
    fn an_operation_may_quote_the_client() {
        for value in [
            "2026-01-31 12:00:00:000 10 sec: 123 operations; ",
            "/usr/bin/java -classpath x site.ycsb.Client -load",
            "[READ], Operations, 7",
        ] {
            assert_eq!(fields(&format!("INSERT t k [ field0={value} ]")), pairs(&[(0, value)]));
        }
    }

    #[test]
    fn other_lines_are_errors_or_the_clients() {
        for line in [
            "",
            "[READ], Operations, 7",
            "Starting test.",
            "READ latency raw data: op, timestamp(ms), latency(us)",
        ] {
            assert_eq!(parse_line(line.as_bytes()), Ok(None), "{line}");
        }
        for line in [
            "hello",
            "read usertable user1 [ <all fields>]",
            " READ usertable user1 [ <all fields>]",
            "READ",
            "READ usertable",
            "READ usertable  [ <all fields>]",
            "READ usertable user1",
            "READ usertable user1 [ <all fields> ]",
            "READ usertable user1 [ <all fields>] ",
            "READ usertable user1 [ name ]",
            "READ usertable user1 [ field1]",
            "READ usertable user1 [ field1  field2 ]",
            "SCAN usertable user1 [ <all fields>]",
            "SCAN usertable user1 -1 [ <all fields>]",
            "SCAN usertable user1 4294967296 [ <all fields>]",
            "INSERT usertable user1 [ field0=cut off",
            "INSERT usertable user1 [ field0=a ] ",
            "INSERT usertable user1 [ field0=a ]x",
            "INSERT usertable user1 [ name=a ]",
            "INSERT usertable user1 [field0=a ]",
            "INSERT usertable user1 field0=a ]",
            "INSERT usertable user1 [ field0=a field0=b ]",
            "INSERT usertable user1",
            "DELETE usertable",
            "DELETE usertable user1 ",
            "DELETE usertable user1 x",
            "REPLACE usertable user1 [ field0=a ]",
        ] {
            let why = parse_line(line.as_bytes()).expect_err(line);
            assert!(!why.contains('\n'), "{why}");
        }
        let long = parse_line(&[b'x'; 10_000]).unwrap_err();
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn actions_apply() {
        let one = op("INSERT t k [ field0=a field1=b field3=d ]").action;
        let two = op("UPDATE t k [ field1=c field2= ]").action;
        let after = two.apply(one.apply(None)).unwrap();
        let due = op("INSERT t k [ field0=a field1=c field2= field3=d ]").action;
        assert_eq!(due, Action::Insert(after.clone()));
        assert_eq!(two.apply(None).unwrap().0.len(), 2);
        assert_eq!(Action::Read(Fields::All).apply(Some(after.clone())), Some(after.clone()));
        assert_eq!(Action::Delete.apply(Some(after)), None);
    }

    /// Prints a record as the client does.
    fn printed(verb: &str, record: &Record) -> Vec<u8> {
        let mut line = format!("{verb} usertable user1 [ ").into_bytes();
        for (field, value) in &record.0 {
            line.extend_from_slice(format!("field{field}=").as_bytes());
            line.extend_from_slice(value);
            line.push(b' ');
        }
        line.push(b']');
        line
    }

    proptest! {
        #![proptest_config(crate::property_config())]
        /// Any values without a field start parse back, brackets and spaces included.
        #[test]
        fn client_output_parses_back(values in prop::collection::btree_map(any::<u32>(), "[ -~]{0,40}", 0..5)) {
            let record = Record(values.into_iter().map(|(n, v)| (n, v.replace("field", "Field").into_bytes())).collect());
            let got = parse_line(&printed("INSERT", &record)).unwrap().unwrap();
            prop_assert_eq!(got.action, Action::Insert(record));
        }

        #[test]
        fn any_line_parses_or_says_why(line: Vec<u8>) {
            let _ = parse_line(&line);
        }

        #[test]
        fn lines_of_the_right_words_never_panic(words in prop::collection::vec(prop::sample::select(vec![
            "READ", "INSERT", "UPDATE", "SCAN", "DELETE", "usertable", "user1", "[", "]", "field0=", "field1", "=", "17",
            "<all fields>]", "", "\r", "\"=\"", "[X],", "2026-01-31", "12:00:00:000", "sec:", "*****", "\u{ff}",
        ]), 0..12)) {
            let _ = parse_line(words.join(" ").as_bytes());
        }
    }
}
