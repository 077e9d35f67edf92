//! Starts processes, sends them lines, and waits for their output.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::common::{address, dmtree, fed, piped, said};

/// Longest wait for a line of a process.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The fabric: tcp, or verbs where there is an RDMA device.
pub fn fabric() -> String {
    std::env::var("DMTREE_TEST_FABRIC").unwrap_or_else(|_| "tcp".to_owned())
}

/// Leases; longer where everything takes longer.
pub fn lease_ms() -> u64 {
    if fabric() == "tcp" { 300 } else { 1_500 }
}

/// The duration of `n` leases.
pub fn leases(n: u64) -> Duration {
    Duration::from_millis(lease_ms() * n)
}

/// Excludes other tests that keep both cores busy, or that depend on idle cores.
pub fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks again and again until there is an answer; the last refusal is the failure.
pub fn within<T>(limit: Duration, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match ask() {
            Ok(out) => return out,
            Err(why) => assert!(began.elapsed() < limit, "for {limit:?}: {why}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs scenarios that mostly wait, all at once.
pub fn together(scenarios: &[(&str, fn())]) {
    let caught = std::thread::scope(|scope| {
        let started: Vec<_> =
            scenarios.iter().map(|(name, scenario)| (*name, scope.spawn(scenario))).collect();
        started.into_iter().map(|(name, t)| (name, t.join())).collect::<Vec<_>>()
    });
    let text = |e: Box<dyn std::any::Any + Send>| match e.downcast::<String>() {
        Ok(text) => *text,
        Err(e) => e.downcast_ref::<&str>().map_or("a panic".to_owned(), |s| (*s).to_owned()),
    };
    let bad: Vec<String> = { caught.into_iter() }
        .filter_map(|(name, r)| r.err().map(|e| format!("{name}: {}", text(e))))
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// A process whose lines can be waited for; killed when dropped.
pub struct Process {
    pub child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    /// All of its standard error.
    notes: Arc<Mutex<Vec<String>>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    pub fn start(args: &[&str]) -> Self {
        Self::of(dmtree(args))
    }

    pub fn of(mut command: Command) -> Self {
        let mut child = piped(&mut command).spawn().expect("the binary");
        let (to, answers) = channel();
        let notes = Arc::<Mutex<Vec<String>>>::default();
        let out = child.stdout.take().expect("piped");
        read(out, to.clone(), None);
        let err = child.stderr.take().expect("piped");
        read(err, to, Some(notes.clone()));
        let input = child.stdin.take();
        Self { child, input, answers, notes }
    }

    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("a pipe");
        writeln!(input, "{line}").unwrap_or_else(|e| panic!("{line}: {e}; {:?}", self.notes()));
    }

    /// Its pipe, for another thread to write to.
    pub fn take_input(&mut self) -> ChildStdin {
        self.input.take().expect("a pipe")
    }

    /// The next answer, unless the process has ended.
    pub fn heard(&self) -> Option<String> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => panic!("nothing said for {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// The next line on standard output, or the next error.
    pub fn line(&self) -> String {
        self.heard().unwrap_or_else(|| panic!("it has ended: {:?}", self.notes()))
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    /// The same, with how long the answer took.
    pub fn timed(&mut self, line: &str) -> (String, Duration) {
        let began = Instant::now();
        (self.ask(line), began.elapsed())
    }

    /// Asks again and again until the write is acknowledged.
    pub fn until_done(&mut self, line: &str) {
        within(PATIENCE, || {
            let answer = self.ask(line);
            (answer == "done").then_some(()).ok_or(answer)
        });
    }

    /// The unread output of a process that has ended, of both streams.
    pub fn everything(&self) -> Vec<String> {
        let mut all = self.notes();
        while let Some(line) = self.heard() {
            all.push(line);
        }
        all.dedup();
        all
    }

    /// All of its standard error so far.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets it leave in an orderly way.
    pub fn quit(mut self) {
        self.say("quit");
        within(PATIENCE, || {
            let ended = self.child.try_wait().expect("a child").is_some();
            ended.then_some(()).ok_or_else(|| "it does not end".to_owned())
        });
    }

    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill").success());
    }

    /// Stops the process for a while.
    pub fn pause(&self, time: Duration) {
        pause(&[self], time);
    }

    pub fn status(&self, field: &str) -> u64 {
        status(self.child.id(), field)
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).expect("Linux").count()
    }
}

/// A line of a process's status in /proc, such as `VmRSS` (KiB) or `Threads`.
pub fn status(id: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).expect("Linux");
    let line = text.lines().find(|l| l.starts_with(field)).expect("a field");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// Stops several processes for a while.
pub fn pause(all: &[&Process], time: Duration) {
    all.iter().for_each(|p| p.signal("-STOP"));
    std::thread::sleep(time);
    all.iter().for_each(|p| p.signal("-CONT"));
}

/// Passes lines on; of standard error, which is also kept, only errors.
fn read(
    stream: impl Read + Send + 'static,
    to: Sender<String>,
    notes: Option<Arc<Mutex<Vec<String>>>>,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let answers = notes.is_none() || line.starts_with("error");
            if let Some(notes) = &notes {
                notes.lock().unwrap_or_else(PoisonError::into_inner).push(line.clone());
            }
            if answers && to.send(line).is_err() {
                return;
            }
        }
    });
}

/// A memory node, and where it listens.
pub fn memnode() -> (Process, String) {
    memnode_at("127.0.0.1:0")
}

pub fn memnode_at(listen: &str) -> (Process, String) {
    serve(&["--listen", listen, "--memory-bytes", "64MiB"])
}

/// A first memory node with further arguments.
pub fn found(args: &[&str]) -> (Process, String) {
    serve(&[&["--listen", "127.0.0.1:0"], args].concat())
}

/// A pool of two memory nodes: both, and where the first listens.
pub fn two_memory_nodes() -> ([Process; 2], String) {
    let (first, at) = found(&["--memory-bytes", "64MiB", "--memory-nodes", "2"]);
    let join = ["memnode", "--join", &at, "--listen", "127.0.0.1:0", "--memory-bytes", "64MiB"];
    let second = Process::start(&join);
    assert!(second.line().starts_with("mn1 "));
    ([first, second], at)
}

/// The first compute node, without a program, that has joined.
pub fn first_node(at: &str, more: &[&str]) -> Process {
    let node = Process::start(&[&["node", "--connect", at], more].concat());
    let served = format!("cn0 serves the pool of {at}");
    while node.line() != served {}
    node
}

/// A first memory node with these arguments, and where it listens.
pub fn serve(args: &[&str]) -> (Process, String) {
    let (lease, fabric) = (lease_ms().to_string(), fabric());
    let p = Process::start(
        &[&["memnode", "--lease-ms", &lease, "--fabric", &fabric][..], args].concat(),
    );
    let at = address(&p.line());
    (p, at)
}

/// A compute process.
pub fn shell(at: &str) -> Process {
    Process::start(&["shell", "--connect", at])
}

/// A compute process that is known to work.
pub fn compute(at: &str) -> Process {
    let mut p = shell(at);
    assert_eq!(p.ask("put ready yes"), "done");
    p
}

/// A compute process as soon as the pool lets one in.
pub fn compute_within(at: &str, limit: Duration) -> Process {
    within(limit, || {
        let mut p = shell(at);
        match p.ask("put ready yes").as_str() {
            "done" => Ok(p),
            other => Err(other.to_owned()),
        }
    })
}

/// A compute process that is given these lines and leaves.
pub fn run_shell(at: &str, lines: &str) -> (Option<i32>, String) {
    let out = fed(dmtree(&["shell", "--connect", at]), &format!("{lines}\n"));
    (out.status.code(), said(&out))
}

/// Runs the binary to its end.
pub fn run(args: &[&str]) -> (Option<i32>, String) {
    let out = crate::common::run(args);
    (out.status.code(), said(&out))
}
