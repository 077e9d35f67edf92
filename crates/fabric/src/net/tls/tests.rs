//! Certificates that are made, read and refused; sessions over sockets in memory.

use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::addr::Role;
use crate::error::ErrorKind as Kind;
use crate::net::identity::KeyRoles;
use rustls::pki_types::UnixTime;

const DAY: u64 = 86_400;

fn now() -> u64 {
    UnixTime::now().as_secs()
}

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// The keys that a pool begins with.
fn pool() -> Arc<Bundle> {
    Arc::new(Bundle::of(&Bundle::draw(30).expect("drawn")).expect("its own text"))
}

fn of_role(pool: &Bundle, role: KeyRole) -> Arc<Bundle> {
    Arc::new(Bundle::of(&pool.issue(role, 30).expect("issued")).expect("its own text"))
}

/// Keys that were valid when their process started, in a range of seconds from now.
fn valid_in(pool: &Bundle, from: i64, until: i64) -> Arc<Bundle> {
    let time = |by: i64| now().saturating_add_signed(by);
    Arc::new(pool.lasting(time(from)..time(until)))
}

/// One direction of a connection: bytes that were written and not read, of so many at most.
struct Pipe {
    bytes: VecDeque<u8>,
    room: usize,
}

/// The sockets of two sides, as one of them sees them.
struct Near<'a> {
    from: &'a mut Pipe,
    to: &'a mut Pipe,
}

impl Read for Near<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.from.bytes.is_empty() {
            true => Err(ErrorKind::WouldBlock.into()),
            false => self.from.bytes.read(into),
        }
    }
}

impl Write for Near<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.to.room - self.to.bytes.len());
        match n {
            0 => Err(ErrorKind::WouldBlock.into()),
            n => self.to.bytes.write(&bytes[..n]),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Pair {
    client: Session,
    host: Session,
    up: Pipe,
    down: Pipe,
}

impl Pair {
    fn of(client: &Arc<Bundle>, host: &Arc<Bundle>, role: Option<Role>) -> Self {
        let client = Session::new(client, Party::Connects(role)).expect("a client");
        let host = Session::new(host, Party::Accepts).expect("a host");
        let pipe = |room| Pipe { bytes: VecDeque::new(), room };
        Self { client, host, up: pipe(1 << 20), down: pipe(1 << 20) }
    }

    fn client(&mut self) -> (&mut Session, Near<'_>) {
        (&mut self.client, Near { from: &mut self.down, to: &mut self.up })
    }

    fn host(&mut self) -> (&mut Session, Near<'_>) {
        (&mut self.host, Near { from: &mut self.up, to: &mut self.down })
    }

    /// Lets both sides go on until the peers are known, or one side fails: which, and why.
    fn meet(&mut self) -> std::result::Result<(), (Party, Error)> {
        let why = |e: &io::Error| e.get_ref().and_then(|e| e.downcast_ref::<Error>()).cloned();
        for _ in 0..10 {
            for party in [Party::Connects(None), Party::Accepts] {
                let (session, mut raw) = match party {
                    Party::Accepts => self.host(),
                    Party::Connects(_) => self.client(),
                };
                let _ = session.write(&mut raw, b"");
                match session.read(&mut raw, &mut [0; 8]) {
                    Err(e) if e.kind() != ErrorKind::WouldBlock => {
                        return Err((party, why(&e).expect("said in words")));
                    }
                    _ => {}
                }
            }
        }
        assert!(self.client.peer().is_some() && self.host.peer().is_some());
        Ok(())
    }

    /// What the client hears of a refusal by the host.
    fn heard(&mut self) -> Error {
        let (session, mut raw) = self.client();
        let e = session.read(&mut raw, &mut [0; 8]).expect_err("refused");
        e.get_ref().and_then(|e| e.downcast_ref::<Error>()).expect("in words").clone()
    }
}

fn refused(pair: &mut Pair, by: Party) -> Error {
    let (party, e) = pair.meet().expect_err("refused");
    assert_eq!(std::mem::discriminant(&party), std::mem::discriminant(&by), "{e}");
    assert!(!e.is_retryable() && !e.to_string().contains('\n'), "{e}");
    e
}

#[test]
fn keys_say_their_pool_and_roles() {
    let pool = pool();
    assert_eq!(pool.identity().roles, KeyRoles::ALL);
    for role in KeyRole::ALL {
        let one = of_role(&pool, role);
        assert_eq!(
            (one.identity().pool, one.identity().roles),
            (pool.identity().pool, role.into())
        );
        let e = one.issue(role, 30).expect_err("no authority");
        assert!(e.to_string().contains("dmtree keys new"), "{e}");
    }
    for days in [0, 36_501] {
        assert_eq!(Bundle::draw(days).expect_err("no days").kind(), Kind::InvalidArgument);
    }
}

#[test]
fn texts_that_are_no_keys_are_refused_in_a_line() {
    let (a, b) = (Bundle::draw(30).expect("drawn"), Bundle::draw(30).expect("drawn"));
    // The blocks of a text: authority, own, key of own, key of the authority.
    let whole = |text: &str| -> Vec<String> {
        let mut all = Vec::new();
        let mut rest = text;
        while let Some(begin) = rest.find("-----BEGIN ") {
            let end = rest[begin..].find("-----END ").expect("an end") + begin;
            let end = rest[end + 9..].find("-----").expect("dashes") + end + 14;
            all.push(format!("{}\n", &rest[begin..end]));
            rest = &rest[end..];
        }
        all
    };
    let (a_blocks, b_blocks) = (whole(&a), whole(&b));
    assert!(Bundle::of(&a_blocks.concat()).is_ok());
    let pick = |of: &[&String]| of.iter().map(|s| s.as_str()).collect::<String>();
    let [authority, own, key, _] = &a_blocks[..] else { panic!("four blocks") };
    let bad = [
        (String::new(), "0 certificates"),
        ("k".repeat(64), "0 certificates"),
        (pick(&[authority, own]), "0 private keys"),
        (pick(&[authority, key]), "1 certificates"),
        (pick(&[authority, own, key, key, key]), "3 private keys"),
        (pick(&[authority, own, &b_blocks[2]]), "these are no keys"),
        (pick(&[&b_blocks[0], own, key]), "not of this pool"),
        (pick(&[own, authority, key]), "says no pool"),
        (a.replace("BEGIN CERTIFICATE-----\nM", "BEGIN CERTIFICATE-----\n!"), "these are no keys"),
        (a_blocks[0].replacen("MII", "AAA", 1) + &pick(&[own, key]), "these are no keys"),
    ];
    for (text, words) in bad {
        let e = Bundle::of(&text).err().expect(words);
        assert!(e.to_string().contains(words), "{words}: {e}");
        assert!(!e.to_string().contains('\n'), "{e}");
    }
    // An authority's private key that is another's issues nothing.
    let mixed = Bundle::of(&pick(&[authority, own, key, &b_blocks[3]])).expect("not looked at yet");
    assert!(mixed.issue(KeyRole::Reader, 30).is_err());
}

#[test]
fn keys_are_valid_in_their_time_alone() {
    let pool = pool();
    let text = pool.issue_for(KeyRoles::ALL, now() - 9 * DAY..now() - DAY).expect("issued");
    let e = Bundle::of(&text).err().expect("expired");
    assert!(e.to_string().contains("the certificate expired on"), "{e}");
    assert_eq!(e.kind(), Kind::InvalidArgument);
    let text = pool.issue_for(KeyRoles::ALL, now() + DAY..now() + 9 * DAY).expect("issued");
    let e = Bundle::of(&text).err().expect("not yet");
    assert!(e.to_string().contains("begins on") && e.to_string().contains("clock"), "{e}");
    assert_eq!(bundle::date(at(0)), "1970-01-01");
    assert_eq!(bundle::date(at(u64::MAX)), "9999-12-31");
}

#[test]
fn peers_of_one_pool_know_each_other() {
    let pool = pool();
    let (compute, memory) = (of_role(&pool, KeyRole::Compute), of_role(&pool, KeyRole::Memory));
    let mut pair = Pair::of(&compute, &memory, Some(Role::Memory));
    pair.meet().expect("of one pool");
    assert_eq!(pair.host.peer().expect("known").roles, KeyRole::Compute.into());
    assert_eq!(pair.client.peer().expect("known").roles, KeyRole::Memory.into());
}

#[test]
fn peers_of_another_pool_or_time_or_kind_are_refused() {
    let (a, b) = (pool(), pool());
    let e = refused(&mut Pair::of(&a, &b, None), Party::Connects(None));
    assert!(e.to_string().contains("not of this pool"), "{e}");
    // The host judges a client of another pool that trusts the host's.
    let expired = valid_in(&a, -(9 * DAY as i64), -(DAY as i64));
    let mut pair = Pair::of(&expired, &a, None);
    let e = refused(&mut pair, Party::Accepts);
    assert!(e.to_string().contains("its certificate expired on"), "{e}");
    let e = pair.heard();
    assert!(e.to_string().contains("are the clocks"), "{e}");
    let e = refused(&mut Pair::of(&a, &expired, None), Party::Connects(None));
    assert!(e.to_string().contains("its certificate expired on"), "{e}");
    let early = valid_in(&a, DAY as i64, 9 * DAY as i64);
    let e = refused(&mut Pair::of(&early, &a, None), Party::Accepts);
    assert!(e.to_string().contains("set the clocks"), "{e}");
    for role in [KeyRole::Reader, KeyRole::Admin] {
        let e = refused(&mut Pair::of(&a, &of_role(&a, role), None), Party::Connects(None));
        assert!(e.to_string().contains("for no node"), "{role}: {e}");
    }
    let compute = of_role(&a, KeyRole::Compute);
    let e = refused(&mut Pair::of(&a, &compute, Some(Role::Memory)), Party::Connects(None));
    assert!(e.to_string().contains("no memory node"), "{e}");
}

#[test]
fn a_peer_that_is_not_known_says_little() {
    let pool = pool();
    let mut pair = Pair::of(&pool, &pool, None);
    // A record of the longest length, piece by piece.
    pair.up.bytes.extend([0x16, 3, 1, 0x40, 0]);
    pair.up.bytes.extend(vec![1; 16 << 10]);
    let (session, mut raw) = pair.host();
    let mut taken = 0;
    let e = loop {
        match session.read(&mut raw, &mut [0; 8]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => taken += 1,
            Err(e) => break e,
            Ok(n) => panic!("{n} bytes of an unknown peer"),
        }
        assert!(taken < 100);
    };
    assert!(raw.from.bytes.len() >= (16 << 10) + 5 - MAX_UNKNOWN_BYTES, "{e}");
    let mut pair = Pair::of(&pool, &pool, None);
    pair.up.bytes.extend(b"GET / HTTP/1.1\r\n\r\n");
    let (session, mut raw) = pair.host();
    let e = session.read(&mut raw, &mut [0; 8]).expect_err("no TLS");
    assert!(e.to_string().contains("speaks no TLS"), "{e}");
}

/// Bytes arrive as they were written, through pipes of any size and reads of any length, and a
/// read that is short leaves nothing.
#[test]
fn bytes_arrive_in_order_however_little_fits() {
    let pool = pool();
    for (room, read) in [(1 << 20, 100_000), (700, 1), (3000, 17), (40_000, 4096)] {
        let mut pair = Pair::of(&pool, &pool, None);
        pair.meet().expect("of one pool");
        (pair.up.room, pair.down.room) = (room, room);
        let sent: Vec<u8> = (0..200_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let (mut written, mut got) = (0, Vec::<u8>::new());
        while got.len() < sent.len() {
            let (session, mut raw) = pair.client();
            match session.write(&mut raw, &sent[written..]) {
                Ok(n) => written += n,
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
            let (session, mut raw) = pair.host();
            let mut into = vec![0; read];
            match session.read(&mut raw, &mut into) {
                Ok(n) => {
                    assert!(n > 0);
                    got.extend(&into[..n]);
                    assert!(n == read || !session.has_buffered(), "{n} of {read}");
                }
                Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
        assert!(got == sent, "room {room}, reads of {read}");
    }
}

/// A byte that is changed on the way ends the connection, and none of it arrives.
#[test]
fn a_byte_that_changes_is_noticed() {
    let pool = pool();
    let mut pair = Pair::of(&pool, &pool, None);
    pair.meet().expect("of one pool");
    let (session, mut raw) = pair.client();
    session.write(&mut raw, b"a frame").expect("room");
    let last = pair.up.bytes.len() - 1;
    pair.up.bytes[last] ^= 1;
    let (session, mut raw) = pair.host();
    let e = session.read(&mut raw, &mut [0; 64]).expect_err("changed");
    assert!(e.to_string().contains("TLS fails"), "{e}");
}
