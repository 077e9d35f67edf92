//! Handshakes between the two state machines, and attacks with recorded, reflected and forwarded
//! bytes.

use proptest::prelude::*;

use super::super::wire::{PoolId, VERSION};
use super::*;
use crate::error::ErrorKind;

fn key(text: &str) -> Key {
    Key::of(&text.repeat(32)).expect("long enough")
}

fn host(key: &Key, nonce: u8) -> Host {
    Host::new(key.clone(), &[nonce; 32], "peer".into())
}

fn client(key: &Key, nonce: u8) -> Client {
    let hello = Hello::Ask { pool: Some(PoolId(7)), credential: None };
    Client::new(key.clone(), &[nonce; 32], &hello, "mn0".into()).expect("short")
}

/// Feeds a state machine, `chunk` bytes at a time and never more than it wants.
fn feed<S: Side>(side: &mut S, mut bytes: &[u8], chunk: usize) -> Result<Option<S::Outcome>> {
    while !bytes.is_empty() {
        let n = side.wants().min(chunk).min(bytes.len());
        assert!(n > 0, "it wants more");
        let (head, tail) = bytes.split_at(n);
        if let Some(said) = side.feed(head)? {
            assert!(tail.is_empty(), "nothing follows the last message");
            return Ok(Some(said));
        }
        bytes = tail;
    }
    Ok(None)
}

/// The outcomes of the host and of the client.
fn meet(c: &mut Client, h: &mut Host, chunk: usize) -> (Result<Hello>, Result<Welcome>) {
    let cut = || Error::unreachable("cut");
    loop {
        let heard = feed(h, &c.out(), chunk);
        let out = h.out();
        match heard {
            Ok(None) => {}
            Ok(Some(hello)) => {
                let welcome = h.welcome(&Welcome::Granted { clock: 5 }).expect("short");
                let said = feed(c, &welcome, chunk).map(|said| said.expect("all of it"));
                return (Ok(hello), said);
            }
            Err(e) => {
                let said = feed(c, &out, chunk);
                return (Err(e), said.and_then(|_| Err(cut())));
            }
        }
        if let Err(e) = feed(c, &out, chunk) {
            return (Err(cut()), Err(e));
        }
    }
}

#[test]
fn both_sides_of_one_key_meet_however_the_bytes_come() {
    for key in [key("k"), Key::NONE] {
        for chunk in [1, 7, 4096] {
            let (hello, welcome) = meet(&mut client(&key, 1), &mut host(&key, 2), chunk);
            let hello = hello.expect("proven");
            assert!(matches!(hello, Hello::Ask { pool: Some(PoolId(7)), .. }), "{hello:?}");
            let welcome = welcome.expect("proven");
            assert!(matches!(welcome, Welcome::Granted { clock: 5 }), "{welcome:?}");
        }
    }
}

#[test]
fn another_key_or_none_is_refused_in_words_to_both() {
    for (c, h, words) in [
        (key("a"), key("b"), "another key"),
        (Key::NONE, key("b"), "asks for a key"),
        (key("a"), Key::NONE, "has no key"),
    ] {
        let (hello, welcome) = meet(&mut client(&c, 1), &mut host(&h, 2), 9);
        let (hello, welcome) = (hello.expect_err("refused"), welcome.expect_err("refused"));
        assert_eq!(hello.kind(), ErrorKind::Incompatible, "{hello}");
        assert_eq!(welcome.kind(), ErrorKind::Incompatible, "{welcome}");
        assert!(welcome.to_string().contains(words), "{welcome}");
        assert!(!welcome.to_string().contains('\n'), "{welcome}");
    }
}

#[test]
fn another_version_learns_both_versions_and_another_program_nothing() {
    let (mut h, mut old) = (host(&key("k"), 2), prelude());
    let ours = format!("version {VERSION}");
    old[8] = 2;
    let e = feed(&mut h, &old, 99).expect_err("another version");
    assert!(e.to_string().contains("version 2") && e.to_string().contains(&ours), "{e}");
    assert_eq!(h.out(), prelude(), "its version, and nothing else");
    let e = feed(&mut client(&key("k"), 1), &old, 99).expect_err("another version");
    assert!(e.to_string().contains("version 2") && e.to_string().contains(&ours), "{e}");
    let mut h = host(&key("k"), 2);
    let e = feed(&mut h, b"GET / HTTP/1.1", 99).expect_err("a browser");
    assert_eq!((e.kind(), h.out().len()), (ErrorKind::Incompatible, 0), "{e}");
}

/// An attacker without the key forwards the challenge of one connection to another, or sends a
/// proof back.
#[test]
fn a_challenge_that_is_sent_back_proves_nothing() {
    let key = key("k");
    let mut h = host(&key, 2);
    assert!(feed(&mut h, &client(&key, 9).out(), 99).expect("a greeting").is_none());
    let challenge = h.out();
    // A client of the same process connects to the attacker, which greets it with the host's
    // challenge.
    let mut c = client(&key, 3);
    let _ = c.out();
    assert!(feed(&mut c, &challenge, 99).expect("a greeting").is_none());
    let answer = c.out();
    // The proof is over that client's own nonce, not over the one with which the attacker has
    // greeted the host.
    assert!(feed(&mut h, &answer, 99).is_err());
    assert_eq!(h.out(), [0]);
    // And a client does not accept a client's proof as a host's.
    let mut c = client(&key, 1);
    let greeting = c.out();
    assert!(feed(&mut c, &greeting, 99).expect("its own greeting").is_none());
    let mine = c.out();
    assert!(feed(&mut c, &[&[1], &mine[..]].concat(), 99).is_err(), "its own proof");
}

#[test]
fn a_recorded_handshake_does_not_replay() {
    let key = key("k");
    let (mut c, mut h) = (client(&key, 1), host(&key, 2));
    let mut sent = c.out();
    feed(&mut h, &sent, 99).expect("a greeting");
    let mut heard = h.out();
    feed(&mut c, &heard, 99).expect("a greeting");
    let proven = c.out();
    assert!(feed(&mut h, &proven, 99).expect("proven").is_some());
    sent.extend(proven);
    heard.extend(h.welcome(&Welcome::Granted { clock: 5 }).expect("short"));
    let e = feed(&mut host(&key, 3), &sent, 99).expect_err("another nonce");
    assert_eq!(e.kind(), ErrorKind::Incompatible);
    let e = feed(&mut client(&key, 4), &heard, 99).map(|_| ()).expect_err("another nonce");
    assert_eq!(e.kind(), ErrorKind::Incompatible);
}

/// With any one byte of the conversation changed in flight, no side accepts a message that was not
/// sent.
#[test]
fn a_byte_that_changes_is_noticed() {
    let key = key("k");
    let (mut c, mut h) = (client(&key, 1), host(&key, 2));
    let first = c.out();
    feed(&mut h, &first, 99).expect("a greeting");
    feed(&mut c, &h.out(), 99).expect("a greeting");
    let sent = [first, c.out()].concat();
    for at in 0..sent.len() {
        let mut sent = sent.clone();
        sent[at] ^= 4;
        // A changed length may leave the host waiting for more.
        let heard = feed(&mut host(&key, 2), &sent, 99);
        assert!(!matches!(heard, Ok(Some(_))), "byte {at}");
    }
}

#[test]
fn refusals_arrive_and_one_that_is_too_long_is_cut() {
    for words in 0..300 {
        for key in [key("k"), Key::NONE] {
            let (mut c, mut h) = (client(&key, 1), host(&key, 2));
            feed(&mut h, &c.out(), 99).expect("a greeting");
            feed(&mut c, &h.out(), 99).expect("a greeting");
            feed(&mut h, &c.out(), 99).expect("proven");
            let text = "wörd ".repeat(words);
            let said = Welcome::Refused((&Error::revoked(&*text)).into());
            let said = feed(&mut c, &h.welcome(&said).expect("cut"), 99).expect("proven");
            let Some(Welcome::Refused(f)) = said else { panic!("{said:?}") };
            let e: Error = f.into();
            let heard = e.to_string();
            assert!(text.starts_with(&heard) && heard.len() >= text.len().min(900), "{heard}");
            assert_eq!(e.kind(), ErrorKind::Revoked);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_and_little_is_kept(
        begin in 0usize..100,
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        chunk in 1usize..300,
    ) {
        let key = key("k");
        let greeting = client(&key, 1).out();
        let sent = [&greeting[..begin.min(greeting.len())], &bytes].concat();
        let mut h = host(&key, 2);
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(h.wants().min(chunk).min(rest.len()));
            prop_assert!(!head.is_empty());
            match h.feed(head) {
                Ok(said) => prop_assert!(said.is_none()),
                Err(_) => break,
            }
            rest = tail;
        }
        prop_assert!(h.out().len() <= GREETING && h.0.arrived.used <= h.0.arrived.room.len());
    }
}
