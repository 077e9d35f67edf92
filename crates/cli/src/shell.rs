//! `shell`: the operations by hand.

use std::io::{BufRead, IsTerminal};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use dmtree_command::{Failure, Result};
use dmtree_parts::{Outcome, ScanRequest, Write, behind_prefix};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::args::ShellArgs;
use crate::dumps::{read_dump, write_dump};
use crate::store::{self, Report, Store};
use crate::transfer::say_all;
use crate::words::{shown, split};
use crate::{log, output};

/// Pairs that a scan without a limit shows.
const LIMIT: usize = 100;

const HELP: &str = "put KEY VALUE             set, whether there or not
get KEY                   read
insert KEY VALUE          set if absent
update KEY VALUE          set if present
delete KEY                remove
cas KEY OLD NEW           set if the value is OLD
scan FROM TO [LIMIT]      pairs from FROM to TO, both included; * is an open end
rscan FROM TO [LIMIT]     the same downwards
prefix P [LIMIT]          pairs whose keys start with P
stats                     structure, cache, and what operations have cost
dump FILE                 write everything as a dump
load FILE                 put all pairs of a dump
checkpoint DIR            write the whole pool, if it is durable, as files of one instant
help                      this
quit                      leave; an embedded index without --durable is gone then
Keys and values: words, or \"in quotes\"; \\xNN is a byte.";

/// The shell.
struct Shell {
    store: Box<dyn Store>,
}

enum Next {
    Go,
    Quit,
}

/// `shell`.
pub fn run(a: &ShellArgs) -> Result<()> {
    log::begin(&a.log)?;
    let mut shell = Shell { store: store::open(a)? };
    let at = match (&a.tool.connect, &a.durable) {
        (Some(first), _) => format!("in memory of {first}"),
        (None, Some(directory)) => format!("with a journal in {}", directory.display()),
        (None, None) => "in memory of this process".to_owned(),
    };
    let system = &a.tool.system;
    if std::io::stdin().is_terminal() { shell.interactive(system, &at) } else { shell.plain() }
}

fn history() -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    Some(Path::new(&home).join(".dmtree_history"))
}

impl Shell {
    fn interactive(&mut self, system: &str, at: &str) -> Result<()> {
        let failed = |e: ReadlineError| Failure::input(format!("the terminal: {e}"));
        let mut editor = DefaultEditor::new().map_err(failed)?;
        let history = history();
        if let Some(path) = &history {
            // None yet is fine.
            let _ = editor.load_history(path);
        }
        output::line(&format!("{system}, {at}; `help` lists what can be done"));
        loop {
            match editor.readline("dmtree> ") {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    match self.line(&line) {
                        Ok(Next::Go) => {}
                        Ok(Next::Quit) => break,
                        Err(e) => output::error(&e),
                    }
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => break,
                Err(e) => return Err(failed(e)),
            }
        }
        if let Some(path) = &history {
            let _ = editor.save_history(path);
        }
        Ok(())
    }

    /// Lines from a pipe: errors are printed with their lines, and the status says at the end that
    /// there were some.
    fn plain(&mut self) -> Result<()> {
        let mut bad = 0;
        let mut from = std::io::stdin().lock();
        let mut bytes = Vec::new();
        for number in 1u64.. {
            bytes.clear();
            let got = from
                .read_until(b'\n', &mut bytes)
                .map_err(|e| Failure::input(format!("standard input, line {number}: {e}")))?;
            if got == 0 {
                break;
            }
            let done = match std::str::from_utf8(&bytes) {
                Ok(line) => self.line(line.trim_end_matches(['\n', '\r'])),
                Err(_) => Err("not UTF-8: write other bytes as \\xNN".to_owned()),
            };
            match done {
                Ok(Next::Go) => {}
                Ok(Next::Quit) => break,
                Err(e) => {
                    bad += 1;
                    output::error(&format!("line {number}: {e}"));
                }
            }
        }
        match bad {
            0 => Ok(()),
            1 => Err(Failure::input("1 line was bad")),
            n => Err(Failure::input(format!("{n} lines were bad"))),
        }
    }

    fn line(&mut self, line: &str) -> Result<Next, String> {
        let words = split(line)?;
        let Some((command, rest)) = words.split_first() else { return Ok(Next::Go) };
        let command = String::from_utf8_lossy(command).into_owned();
        let rest: Vec<&[u8]> = rest.iter().map(Vec::as_slice).collect();
        match (command.as_str(), rest.as_slice()) {
            ("put", [k, v]) => self.write(k, Write::Put(v))?,
            ("insert", [k, v]) => self.write(k, Write::Insert(v))?,
            ("update", [k, v]) => self.write(k, Write::Update(v))?,
            ("delete", [k]) => self.write(k, Write::Delete)?,
            ("cas", [k, old, new]) => {
                self.write(k, Write::CompareAndSet { expected: old, new: Some(new) })?;
            }
            ("get", [k]) => match self.store.get(k).map_err(|e| e.to_string())? {
                Some(v) => output::line(&shown(&v)),
                None => output::line("not found"),
            },
            ("scan" | "rscan", [from, to]) => self.range(&command, from, to, LIMIT)?,
            ("scan" | "rscan", [from, to, limit]) => {
                self.range(&command, from, to, count(limit)?)?;
            }
            ("prefix", [p]) => self.prefix(p, LIMIT)?,
            ("prefix", [p, limit]) => self.prefix(p, count(limit)?)?,
            ("stats", []) => self.stats()?,
            ("dump", [file]) => {
                let n = write_dump(|r, each| self.store.for_each(r, each), &path(file)?)
                    .map_err(|e| e.to_string())?;
                output::line(&format!("{n} pairs written"));
            }
            ("load", [file]) => self.load(&path(file)?)?,
            ("checkpoint", [to]) => {
                let to = path(to)?;
                let size = self.store.checkpoint(&to).map_err(|e| e.to_string())?;
                say_all(size, "written to", &to);
            }
            ("help" | "?", []) => output::line(HELP),
            ("quit" | "exit", []) => return Ok(Next::Quit),
            (known, _) => {
                return Err(match HELP.lines().find(|l| l.split(' ').next() == Some(known)) {
                    Some(usage) => {
                        let form = usage.split("  ").next().unwrap_or(usage);
                        format!("use it as: {form}")
                    }
                    None => format!("unknown command {known:?}: `help` lists what can be done"),
                });
            }
        }
        Ok(Next::Go)
    }

    fn write(&mut self, key: &[u8], w: Write<'_>) -> Result<(), String> {
        let outcome = self.store.write(key, w).map_err(|e| e.to_string())?;
        output::line(match outcome {
            Outcome::Done => "done",
            Outcome::Exists => "exists already",
            Outcome::NotFound => "not found",
            Outcome::Mismatch => "the value is another",
        });
        Ok(())
    }

    fn range(&mut self, command: &str, from: &[u8], to: &[u8], limit: usize) -> Result<(), String> {
        let end = |word| if word == b"*" { Bound::Unbounded } else { Bound::Included(word) };
        let reverse = command == "rscan";
        self.show(ScanRequest { low: end(from), high: end(to), reverse, limit })
    }

    fn prefix(&mut self, p: &[u8], limit: usize) -> Result<(), String> {
        let next = behind_prefix(p);
        let high = next.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let low = if p.is_empty() { Bound::Unbounded } else { Bound::Included(p) };
        self.show(ScanRequest { low, high, reverse: false, limit })
    }

    fn show(&mut self, r: ScanRequest<'_>) -> Result<(), String> {
        let mut pairs = 0;
        let one_more = ScanRequest { limit: r.limit.saturating_add(1), ..r };
        self.store
            .for_each(one_more, &mut |k, v| {
                pairs += 1;
                if pairs <= r.limit {
                    output::line(&format!("{} {}", shown(k), shown(v)));
                }
                pairs <= r.limit
            })
            .map_err(|e| e.to_string())?;
        let more = if pairs > r.limit { ", and more" } else { "" };
        output::line(&format!("({}{more})", pairs.min(r.limit)));
        Ok(())
    }

    fn load(&mut self, file: &Path) -> Result<(), String> {
        let pairs = read_dump(file).map_err(|e| e.to_string())?;
        for (n, (k, v)) in pairs.iter().enumerate() {
            self.store
                .write(k, Write::Put(v))
                .map_err(|e| format!("{n} of {} pairs were put, then: {e}", pairs.len()))?;
        }
        output::line(&format!("{} pairs put", pairs.len()));
        Ok(())
    }

    fn stats(&mut self) -> Result<(), String> {
        let Report { shape, cache, total } = self.store.report().map_err(|e| e.to_string())?;
        let leaves: Vec<String> =
            shape.leaves.iter().map(|(slots, n)| format!("{n} of {slots} slots")).collect();
        output::line(&format!("keys              {}", shape.keys));
        output::line(&format!("leaves            {}", leaves.join(", ")));
        output::line(&format!(
            "inner nodes       {} on {} levels",
            shape.inner_nodes, shape.levels
        ));
        output::line(&format!(
            "bytes             {} structure, {} blocks, {} tables",
            shape.structure_bytes, shape.block_bytes, shape.table_bytes
        ));
        if shape.unbuilt_tables > 0 {
            output::line(&format!("unbuilt tables    {}", shape.unbuilt_tables));
        }
        output::line(&format!(
            "cache             {} bytes and {} of images, budget {}; {} nodes, {} hits, {} misses",
            cache.used_bytes,
            cache.image_bytes,
            cache.budget_bytes,
            cache.nodes,
            cache.hits,
            cache.misses
        ));
        output::line(&format!(
            "operations        {}; {} round trips, {} verbs to memory nodes, {} to compute nodes",
            total.ops,
            total.counts.round_trips,
            total.counts.mn.verbs(),
            total.counts.cn.verbs()
        ));
        Ok(())
    }
}

fn count(word: &[u8]) -> Result<usize, String> {
    let text = String::from_utf8_lossy(word);
    match text.parse::<usize>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(format!("{text:?} is no number of pairs: give 1 or more")),
    }
}

fn path(word: &[u8]) -> Result<PathBuf, String> {
    std::str::from_utf8(word).map(PathBuf::from).map_err(|_| "a file name must be UTF-8".to_owned())
}
