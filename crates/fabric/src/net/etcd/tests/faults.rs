//! A network between a process and etcd that delays requests and answers, loses answers, sends
//! requests twice, and cuts answers off.
#![expect(clippy::disallowed_methods, reason = "a network in real time")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::rng::Rng;

/// A proxy in front of a server; where it listens.
fn proxy(server: &str, seed: u64, counts: &Arc<[AtomicU64; 5]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("bound").to_string();
    let (server, counts) = (server.to_owned(), counts.clone());
    std::thread::spawn(move || {
        let mut rng = Rng::new(seed);
        for client in listener.incoming().map_while(std::result::Result::ok) {
            let fault = rng.below(10);
            let (server, counts) = (server.clone(), counts.clone());
            std::thread::spawn(move || carry(client, &server, fault, &counts));
        }
    });
    at
}

/// One request and its answer: connections are closed after each.
fn carry(mut client: TcpStream, server: &str, fault: u64, counts: &[AtomicU64; 5]) {
    let Some(request) = message(&mut client) else { return };
    let ask = || {
        let mut to = TcpStream::connect(server).ok()?;
        to.write_all(&request).ok()?;
        // The server closes the connection behind its answer.
        let mut answer = Vec::new();
        to.read_to_end(&mut answer).ok()?;
        Some(answer)
    };
    if let Some(count) = counts.get(fault as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    let answer = match fault {
        // The request is lost.
        0 => return,
        // The answer is.
        1 => return drop(ask()),
        // It is executed twice.
        2 => ask().and_then(|_| ask()),
        3 => {
            std::thread::sleep(Duration::from_millis(60));
            ask()
        }
        4 => ask().map(|mut answer| {
            answer.truncate(answer.len() / 2);
            answer
        }),
        _ => ask(),
    };
    if let Some(answer) = answer {
        let _ = client.write_all(&answer);
    }
}

/// The bytes of a request, with `Connection: close` in its head.
fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    from.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        from.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&bytes).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    let mut body = vec![0; length.trim().parse().ok()?];
    from.read_exact(&mut body).ok()?;
    let at = bytes.len() - 2;
    let closed = bytes[..at].iter().chain(b"Connection: close\r\n\r\n").chain(&body);
    Some(closed.copied().collect())
}

/// Numbers are given once, members stand, and every death is carried to its end.
#[test]
fn lost_doubled_and_cut_answers_change_nothing() {
    let Some(server) = etcd() else { return };
    let at = address(&server.at, "p");
    let first = founded(&at);
    let counts: Arc<[AtomicU64; 5]> = Arc::default();
    let open = |seed| {
        let faulty = address(&proxy(&server.at, seed, &counts), "p");
        eventually(20, &|| "the pool is found".into(), || {
            EtcdMembership::open(&net(), &faulty).ok()
        })
    };
    let mut incarnations: BTreeMap<NodeId, u32> = BTreeMap::new();
    for round in 0..4 {
        let all: Vec<(EtcdMembership, Member)> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..3)
                .map(|n| {
                    let open = &open;
                    scope.spawn(move || {
                        let of = open(100 * round + n);
                        let me = register(&of, 1 + 100 * round + n);
                        again(|| of.ask(&Ask::Join(me)));
                        (of, me)
                    })
                })
                .collect();
            started.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        for (_, me) in &all {
            let former = incarnations.insert(me.node, me.incarnation);
            assert!(former.is_none_or(|former| former < me.incarnation), "{me} was given twice");
        }
        for (of, me) in &all {
            lease(again(|| of.ask(&Ask::Renew(*me))));
            let state = state(of, *me);
            assert!(all.iter().all(|(_, m)| state.is_living(*m)), "{state:?}");
        }
        // Each leaves; the others and the memory node end the deaths.
        for (of, me) in &all {
            again(|| match of.ask(&Ask::Propose(*me, Change::Leave)) {
                // The answer was lost, and it has left.
                Err(e) if e.kind() == ErrorKind::Revoked => Ok(Answer::Done),
                done => done,
            });
        }
        for (_, dead) in &all {
            let done = Change::Acknowledge(*dead, MemberPhase::Revoking);
            again(|| first.ask(&Ask::Propose(mn0().member, done.clone())));
        }
        let state = state(&first, mn0().member);
        let at = |m: Member| state.phase(m).is_some_and(|p| p >= MemberPhase::Draining);
        assert!(all.iter().all(|(_, m)| at(*m)), "{state:?}");
        lease(again(|| first.ask(&Ask::Renew(mn0().member))));
    }
    for (n, count) in counts.iter().enumerate() {
        assert!(count.load(Ordering::Relaxed) > 0, "fault {n} never occurred");
    }
}
