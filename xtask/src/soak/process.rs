//! The processes of a soak.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result};

/// A line of a process: its source, the incarnation, and the text; `None` at the end of the stream.
#[derive(Debug)]
pub struct Line {
    pub source: usize,
    pub incarnation: u32,
    pub line: Option<String>,
    /// On standard error.
    pub is_note: bool,
}

/// A process; killed when dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts the binary; its lines go to `to`, marked with `source` and `incarnation`.
    pub fn start(
        (binary, args): (&str, &[&str]),
        (source, incarnation): (usize, u32),
        to: &Sender<Line>,
    ) -> Result<Self> {
        let mut child = Command::new(binary)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| binary.to_owned())?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let streams: [(Option<Box<dyn Read + Send>>, bool); 2] =
            [(out.map(|s| Box::new(s) as _), false), (err.map(|s| Box::new(s) as _), true)];
        for (stream, is_note) in streams {
            let (to, stream) = (to.clone(), stream.context("a pipe")?);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = to.send(Line { source, incarnation, line: Some(line), is_note });
                }
                let _ = to.send(Line { source, incarnation, line: None, is_note });
            });
        }
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let _ = Command::new("kill").args([name, &self.id().to_string()]).status();
    }

    /// Writes a line to it. One that has ended does not read it.
    pub fn say(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            let _ = writeln!(input, "{line}");
        }
    }

    /// Its status, when it has ended.
    pub fn ended(&mut self) -> Option<Option<i32>> {
        self.child.try_wait().ok().flatten().map(|s| s.code())
    }
}
