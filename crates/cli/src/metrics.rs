//! `--metrics`: what a node says of itself, over HTTP.
//!
//! It answers one request after the other, each within a second and of a few kilobytes: whatever
//! else connects costs neither memory nor threads. (HTTP servers at hand take requests of any size
//! and a thread for each connection.)

use std::io::{ErrorKind as Io, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dmtree_command::{Failure, Result};
use dmtree_fabric::net::NodeStatus;
use dmtree_pool::{NodeReport, metrics};
use serde_json::json;

use crate::args::MetricsArgs;
use crate::{clock, output};

/// Longest request, bytes.
const MOST_BYTES: usize = 8 << 10;
/// Longest time for a request and its answer.
const PATIENCE: Duration = Duration::from_secs(1);
const TEXT: &str = "text/plain; charset=utf-8";

/// What a node says of itself; `None` when it has ended.
pub type Source = Arc<dyn Fn() -> Option<NodeStatus> + Send + Sync>;

/// Where metrics are served, if they are.
pub struct Port(Option<TcpListener>);

impl Port {
    /// Takes the port, before the process has a place in a pool.
    ///
    /// # Errors
    /// An address that is none, or in use; a program that was built without metrics.
    pub fn open(a: &MetricsArgs) -> Result<Self> {
        let Some(at) = &a.metrics else { return Ok(Self(None)) };
        metrics::of_report(&NodeReport::default()).map_err(Failure::refused)?;
        let refused = |e: std::io::Error| Failure::input(format!("--metrics {at}: {e}"));
        let listener = TcpListener::bind(at).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        output::note(&format!("metrics at http://{address}/metrics"));
        Ok(Self(Some(listener)))
    }

    /// Serves to the end of the process.
    ///
    /// # Errors
    /// No thread.
    pub fn serve(self, source: Source) -> Result<()> {
        let Some(listener) = self.0 else { return Ok(()) };
        std::thread::Builder::new()
            .name("dmtree metrics".into())
            .spawn(move || serve(&listener, &source))
            .map(drop)
            .map_err(|e| Failure::input(format!("no thread for metrics: {e}")))
    }
}

fn serve(listener: &TcpListener, source: &Source) {
    for stream in listener.incoming() {
        match stream {
            // What a peer breaks off concerns nothing else.
            Ok(mut stream) => drop(answer(&mut stream, source)),
            Err(_) => std::thread::park_timeout(Duration::from_millis(100)),
        }
    }
}

/// An answer: status line, content type, body.
type Answer = (&'static str, &'static str, String);

fn answer(stream: &mut TcpStream, source: &Source) -> std::io::Result<()> {
    let until = clock::now() + PATIENCE;
    let (status, content, body) = match request(stream, until)? {
        Some(path) => to(&path, source),
        None => ("405 Method Not Allowed", TEXT, "GET is all that is answered here\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// The path of a GET; `None` for other methods. The whole head is read, so that the peer sees the
/// answer and not a reset connection.
fn request(stream: &mut TcpStream, until: Instant) -> std::io::Result<Option<String>> {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(clock::now());
        if left.is_zero() || head.len() > MOST_BYTES {
            return Err(Io::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(Io::UnexpectedEof.into()),
            read => head.extend_from_slice(&buffer[..read]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.split_ascii_whitespace();
    let path = words.next().filter(|method| *method == "GET").and_then(|_| words.next());
    Ok(path.map(|path| path.split('?').next().unwrap_or(path).to_owned()))
}

fn to(path: &str, source: &Source) -> Answer {
    const GONE: &str = "503 Service Unavailable";
    if !["/metrics", "/health", "/status.json"].contains(&path) {
        let body = "here are /metrics, /health and /status.json\n";
        return ("404 Not Found", TEXT, body.to_owned());
    }
    let Some(status) = source() else {
        return (GONE, TEXT, "the node has ended, or has lost its membership\n".to_owned());
    };
    match path {
        "/metrics" => match metrics::of_status(&status) {
            Ok(text) => ("200 OK", metrics::CONTENT_TYPE, text),
            Err(e) => ("500 Internal Server Error", TEXT, format!("{e}\n")),
        },
        "/health" => ("200 OK", TEXT, format!("{} serves\n", status.member.node)),
        _ => ("200 OK", "application/json", json(&status)),
    }
}

fn json(status: &NodeStatus) -> String {
    let report: Option<NodeReport> = NodeReport::of(status);
    let said = json!({
        "node": status.member.node.to_string(),
        "incarnation": status.member.incarnation,
        "pool": format!("{:016x}", status.pool.0),
        "fabric": status.data_path,
        "region_bytes": status.region_bytes,
        "links": status.links,
        "report": report,
        "epoch": status.membership.as_ref().map(|m| m.state.epoch),
    });
    format!("{said:#}\n")
}
