//! Histories as files: JSON, one line per call and per return, in the order in which they happened.
//!
//! The first line names the format, its version, and what the keys are; the last says how many
//! lines there must be between. Every line between has a number, one more than that of the line
//! before, so that nothing can be lost or swapped unseen.

use std::collections::BTreeMap;

use dmtree_fabric::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::log::{Answer, Call, Log};

/// The name in the first line.
pub const FORMAT: &str = "dmtree-history";
/// The version in the first line.
pub const FORMAT_VERSION: u32 = 1;
/// Most keys of a history.
const MOST_KEYS: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: String,
    version: u32,
    /// Keys there can be.
    keys: u64,
    /// Keys that are no multiple of this are there from the beginning.
    stride: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// The line's number among the events, from 0.
    n: u64,
    /// Virtual time, ns.
    ns: u64,
    client: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<Call>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ret: Option<Answer>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    events: u64,
}

/// Refuses a line.
macro_rules! bad {
    ($line:expr, $($why:tt)*) => { return Err(bad($line, format!($($why)*))) };
}

fn json(what: &impl Serialize) -> String {
    serde_json::to_string(what).unwrap_or_default()
}

/// A history as text.
pub fn write(log: &Log) -> String {
    let head = Head {
        format: FORMAT.to_owned(),
        version: FORMAT_VERSION,
        keys: log.numbers,
        stride: log.stride,
    };
    let mut events: Vec<Line> = Vec::new();
    for r in log.records() {
        let (client, call) = (r.client, Some(r.call));
        events.push(Line { n: r.called, ns: r.called_ns, client, call, ret: None });
        if let Some(ret) = &r.ret {
            let answer = Some(ret.answer.clone());
            events.push(Line { n: ret.at, ns: ret.at_ns, client, call: None, ret: answer });
        }
    }
    events.sort_by_key(|e| e.n);
    let mut out = json(&head) + "\n";
    for event in &events {
        out.push_str(&json(event));
        out.push('\n');
    }
    out + &json(&End { events: events.len() as u64 }) + "\n"
}

/// Reads a history.
///
/// # Errors
/// `InvalidArgument` with the number of the line: another format or version, a line that is no
/// event, one that is missing or in the wrong place, a return without its call, an end that comes
/// too early.
pub fn read(text: &str) -> Result<Log> {
    let mut lines = (1..).zip(text.lines());
    let Some((_, first)) = lines.next() else { return Err(bad(1, "an empty file")) };
    let head = head(first)?;
    let mut log = Log::new(head.stride, head.keys);
    let mut open: BTreeMap<u32, usize> = BTreeMap::new();
    let mut next = 0;
    let mut last = 1;
    while let Some((at, line)) = lines.next() {
        last = at;
        let value: Value = serde_json::from_str(line)
            .map_err(|e| bad(at, format!("not JSON, or cut off: {e}")))?;
        if value.get("events").is_some() {
            let end: End = parsed(at, value)?;
            if end.events != next {
                bad!(at, "{} events before this line, and {next} are here", end.events);
            }
            return match lines.next() {
                None => Ok(log),
                Some((at, _)) => Err(bad(at, "lines behind the end")),
            };
        }
        let event: Line = parsed(at, value)?;
        if event.n != next {
            bad!(at, "event {} where event {next} must be: lost or out of order", event.n);
        }
        add(&mut log, &mut open, &head, event).map_err(|why| bad(at, why))?;
        next += 1;
    }
    Err(bad(last + 1, "the file ends without its last line: it is truncated"))
}

fn bad(line: u64, why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("line {line}: {why}"))
}

fn parsed<T: serde::de::DeserializeOwned>(at: u64, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| bad(at, e))
}

fn head(line: &str) -> Result<Head> {
    let value: Value =
        serde_json::from_str(line).map_err(|e| bad(1, format!("no head of a history: {e}")))?;
    if value["format"] != FORMAT {
        bad!(1, "no head of a history: format is {}", value["format"]);
    }
    if value["version"] != FORMAT_VERSION {
        bad!(1, "version {}; this program reads version {FORMAT_VERSION}", value["version"]);
    }
    let head: Head = parsed(1, value)?;
    if head.keys > MOST_KEYS || head.stride == 0 {
        bad!(1, "{} keys, stride {}", head.keys, head.stride);
    }
    Ok(head)
}

fn add(
    log: &mut Log,
    open: &mut BTreeMap<u32, usize>,
    head: &Head,
    event: Line,
) -> std::result::Result<(), String> {
    let client = event.client;
    match (event.call, event.ret) {
        (Some(call), None) => {
            if open.contains_key(&client) {
                return Err(format!("client {client} calls before its last call has returned"));
            }
            let (low, high) = call.range();
            if low > high || high >= head.keys {
                return Err(format!("{call}: there are {} keys", head.keys));
            }
            open.insert(client, log.call(client, event.ns, call));
        }
        (None, Some(answer)) => match open.remove(&client) {
            Some(record) => log.ret(record, event.ns, answer),
            None => return Err(format!("client {client} returns without a call")),
        },
        _ => return Err("an event is a call or a return".to_owned()),
    }
    Ok(())
}
