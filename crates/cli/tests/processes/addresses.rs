//! An address at which nothing answers. The test mostly waits: by its name it is among the first.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, compute, found, run, within};

/// A black hole: it listens, and never completes a connection.
struct BlackHole {
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

fn black_hole(at: &str) -> BlackHole {
    let listener = within(PATIENCE, || TcpListener::bind(at).map_err(|e| e.to_string()));
    let address = listener.local_addr().expect("it is bound");
    let mut queued = Vec::new();
    // Nothing is accepted: when the queue is full, the system does not answer any more.
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        queued.push(stream);
    }
    BlackHole { _listener: listener, _queued: queued }
}

/// A memory node is gone, and something that does not answer has its address: operations end within
/// their deadline.
#[test]
fn a_black_hole_costs_an_operation_its_deadline_at_most() {
    let (mut mn, at) = found(&["--memory-bytes", "64MiB"]);
    let mut a = compute(&at);
    mn.kill();
    let _hole = black_hole(&at);
    let in_time = |began: Instant| {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            let (status, said) = run(&["shell", "--connect", &at]);
            assert_eq!(status, Some(2), "a start: {said}");
            in_time(began);
        });
        for _ in 0..2 {
            let began = Instant::now();
            let answer = a.ask("get ready");
            assert!(answer.starts_with("error"), "{answer}");
            in_time(began);
        }
    });
}
