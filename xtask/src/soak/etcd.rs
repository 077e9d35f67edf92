//! A server of etcd that keeps the membership of a soak.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::process::{Line, Process};

/// The number of the server among the sources of lines; what it says is not looked at.
const SOURCE: usize = usize::MAX;

/// Longest time until it has a leader.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);

/// A server, with its data in a folder that goes with it.
pub struct Etcd {
    pub process: Process,
    args: Vec<String>,
    pub at: String,
    _data: tempfile::TempDir,
}

impl Etcd {
    pub fn start(to: &Sender<Line>) -> Result<Self> {
        let data = tempfile::tempdir()?;
        let url = || -> Result<String> {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            Ok(format!("http://127.0.0.1:{port}"))
        };
        let (client, peer) = (url()?, url()?);
        let folder = data.path().to_string_lossy().into_owned();
        let args = [
            ["--data-dir", &folder],
            ["--log-level", "error"],
            ["--listen-client-urls", &client],
            ["--advertise-client-urls", &client],
            ["--listen-peer-urls", &peer],
            ["--initial-advertise-peer-urls", &peer],
            ["--initial-cluster", &format!("default={peer}")],
        ];
        let args: Vec<String> = args.concat().into_iter().map(str::to_owned).collect();
        let process = launch(&args, to)?;
        let at = client.trim_start_matches("http://").to_owned();
        let began = Instant::now();
        while !is_healthy(&at) {
            ensure!(began.elapsed() < BEGINS_WITHIN, "etcd is not healthy after {BEGINS_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { process, args, at, _data: data })
    }

    /// Kills it, and starts it again with its data.
    pub fn restart(&mut self, to: &Sender<Line>) -> Result<()> {
        self.process.signal("-KILL");
        while self.process.ended().is_none() {
            std::thread::yield_now();
        }
        self.process = launch(&self.args, to)?;
        Ok(())
    }
}

/// Whether a server has a leader.
fn is_healthy(at: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(at)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.contains("\"true\""))
}

fn launch(args: &[String], to: &Sender<Line>) -> Result<Process> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Process::start(("etcd", &args), (SOURCE, 0), to)
        .context("no etcd here (Debian: apt-get install etcd-server)")
}
