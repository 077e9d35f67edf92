//! Pairs as lines of JSON.
//!
//! ```text
//! {"dmtree_export":1,"index":"users","options":{...}}
//! {"key":"YWRh","value":"MTgxNQ=="}
//! {"pairs":1}
//! ```
//!
//! Bytes are in base64 of the standard alphabet, padded. The first line is what the index was; a
//! file that begins with it must end with the number of pairs, so that a truncated one is found.
//! Other programs may write pairs alone.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dmtree_fabric::{Error, Result};
use dmtree_parts::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use serde::{Deserialize, Serialize};

use super::{Head, Pair, PairReader, PairWriter, wrong};

/// Version of the form.
const VERSION: u32 = 1;
/// Bytes of the longest line: both parts in base64, and room for spaces and other members.
const MAX_LINE_BYTES: usize = (MAX_KEY_BYTES + MAX_VALUE_BYTES) / 3 * 4 + 4096;

#[derive(Serialize, Deserialize)]
struct FirstLine {
    dmtree_export: u32,
    #[serde(flatten)]
    head: Head,
}

/// A line after the first.
#[derive(Deserialize)]
#[serde(untagged, expecting = "neither {\"key\":\"...\",\"value\":\"...\"} nor {\"pairs\":N}")]
enum Line<'l> {
    Pair {
        #[serde(borrow)]
        key: Cow<'l, str>,
        #[serde(borrow)]
        value: Cow<'l, str>,
    },
    Last {
        pairs: u64,
    },
}

/// Writes them.
pub(super) struct Writer<W: Write> {
    to: W,
    line: String,
    pairs: u64,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(to: W, head: &Head) -> Result<Self> {
        let mut writer = Self { to, line: String::new(), pairs: 0 };
        let first = FirstLine { dmtree_export: VERSION, head: head.clone() };
        writer.line = serde_json::to_string(&first).expect("plain fields have a text");
        writer.end_line()?;
        Ok(writer)
    }

    fn end_line(&mut self) -> Result<()> {
        self.line.push('\n');
        let written = self.to.write_all(self.line.as_bytes());
        self.line.clear();
        written.map_err(|e| Error::file("write it", &e))
    }
}

impl<W: Write> PairWriter for Writer<W> {
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.line.push_str("{\"key\":\"");
        STANDARD.encode_string(key, &mut self.line);
        self.line.push_str("\",\"value\":\"");
        STANDARD.encode_string(value, &mut self.line);
        self.line.push_str("\"}");
        self.pairs += 1;
        self.end_line()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.line = format!("{{\"pairs\":{}}}", self.pairs);
        self.end_line()?;
        self.to.flush().map_err(|e| Error::file("write it", &e))
    }
}

/// Reads them.
pub(super) struct Reader {
    from: BufReader<File>,
    line: Vec<u8>,
    number: u64,
    pairs: u64,
    /// The file has a first line, and must have a last one.
    is_ours: bool,
}

impl Reader {
    pub(super) fn open(path: &Path) -> Result<(Self, Option<Head>)> {
        let file = File::open(path).map_err(|e| Error::file("open it", &e))?;
        let mut reader = Self {
            from: BufReader::new(file),
            line: Vec::new(),
            number: 0,
            pairs: 0,
            is_ours: false,
        };
        let head = reader.read_head()?;
        Ok((reader, head))
    }

    fn read_head(&mut self) -> Result<Option<Head>> {
        #[derive(Deserialize)]
        struct Version {
            dmtree_export: u32,
        }
        let start = self.from.fill_buf().map_err(|e| Error::file("read it", &e))?;
        if !start.trim_ascii_start().starts_with(b"{\"dmtree_export\"") {
            return Ok(None);
        }
        self.read_line()?;
        match serde_json::from_slice::<Version>(&self.line) {
            Ok(Version { dmtree_export: VERSION }) => {}
            Ok(Version { dmtree_export: other }) => {
                return Err(Error::incompatible(format!(
                    "it has version {other} of the form, and this release reads version {VERSION}"
                )));
            }
            Err(e) => return Err(wrong("line 1", e)),
        }
        let first: FirstLine =
            serde_json::from_slice(&self.line).map_err(|e| wrong("line 1", e))?;
        self.is_ours = true;
        Ok(Some(first.head))
    }

    /// Reads a line that has something; false at the end.
    fn read_line(&mut self) -> Result<bool> {
        loop {
            self.line.clear();
            self.number += 1;
            let mut limited = self.from.by_ref().take(MAX_LINE_BYTES as u64);
            let bytes = limited
                .read_until(b'\n', &mut self.line)
                .map_err(|e| Error::file("read it", &e))?;
            if bytes == MAX_LINE_BYTES && !self.line.ends_with(b"\n") {
                return Err(wrong(
                    self.place(),
                    format_args!("it has over {MAX_LINE_BYTES} bytes, more than any pair takes"),
                ));
            }
            if bytes == 0 || !self.line.trim_ascii().is_empty() {
                return Ok(bytes > 0);
            }
        }
    }

    fn end(&mut self, pairs: Option<u64>) -> Result<bool> {
        match pairs {
            Some(pairs) if pairs != self.pairs => Err(wrong(
                self.place(),
                format_args!("there are {} pairs before it, and it says {pairs}", self.pairs),
            )),
            Some(_) if self.read_line()? => Err(wrong(self.place(), "it is behind the last line")),
            None if self.is_ours => Err(Error::invalid(format!(
                "it ends after {} pairs without its last line: it was cut off, export it again",
                self.pairs
            ))),
            _ => Ok(false),
        }
    }
}

impl PairReader for Reader {
    fn next(&mut self, pair: &mut Pair) -> Result<bool> {
        if !self.read_line()? {
            return self.end(None);
        }
        let place = format!("line {}", self.number);
        let decode = |what: &str, text: &str, to: &mut Vec<u8>| {
            to.clear();
            STANDARD
                .decode_vec(text, to)
                .map_err(|e| wrong(&place, format_args!("the {what} is no base64: {e}")))
        };
        let line = std::str::from_utf8(&self.line).map_err(|e| wrong(&place, e))?;
        match serde_json::from_str(line).map_err(|e| wrong(&place, e))? {
            Line::Pair { key, value } => {
                decode("key", &key, &mut pair.key)?;
                decode("value", &value, &mut pair.value)?;
                self.pairs += 1;
                Ok(true)
            }
            Line::Last { pairs } => self.end(Some(pairs)),
        }
    }

    fn place(&self) -> String {
        format!("line {}", self.number)
    }
}
