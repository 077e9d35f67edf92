//! Handshakes between the two state machines.

use proptest::prelude::*;

use super::super::wire::{PoolId, VERSION};
use super::*;
use crate::error::ErrorKind;

fn host(has_keys: bool) -> Host {
    Host::new(has_keys, "peer".into())
}

fn client(has_keys: bool) -> Client {
    let hello = Hello::Ask { pool: Some(PoolId(7)), credential: None };
    Client::new(has_keys, &hello, "mn0".into()).expect("short")
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

/// The outcomes of the host and of the client, and whether each has asked for TLS.
fn meet(c: &mut Client, h: &mut Host, chunk: usize) -> (Result<Hello>, Result<Welcome>, [bool; 2]) {
    let cut = || Error::unreachable("cut");
    let mut tls = [false; 2];
    loop {
        let heard = feed(h, &c.out(), chunk);
        let out = h.out();
        tls[0] |= h.begins_tls();
        match heard {
            Ok(None) => {}
            Ok(Some(hello)) => {
                let welcome = h.welcome(&Welcome::Granted { clock: 5 }).expect("short");
                let said = feed(c, &welcome, chunk).map(|said| said.expect("all of it"));
                return (Ok(hello), said, tls);
            }
            Err(e) => {
                let said = feed(c, &out, chunk);
                return (Err(e), said.and_then(|_| Err(cut())), tls);
            }
        }
        if let Err(e) = feed(c, &out, chunk) {
            return (Err(cut()), Err(e), tls);
        }
        tls[1] |= c.begins_tls();
    }
}

#[test]
fn both_sides_with_keys_or_without_meet_however_the_bytes_come() {
    for has_keys in [true, false] {
        for chunk in [1, 7, 4096] {
            let (hello, welcome, tls) = meet(&mut client(has_keys), &mut host(has_keys), chunk);
            let hello = hello.expect("understood");
            assert!(matches!(hello, Hello::Ask { pool: Some(PoolId(7)), .. }), "{hello:?}");
            let welcome = welcome.expect("understood");
            assert!(matches!(welcome, Welcome::Granted { clock: 5 }), "{welcome:?}");
            assert_eq!(tls, [has_keys; 2], "both begin TLS where there are keys");
        }
    }
}

#[test]
fn nothing_follows_the_greeting_before_tls_where_there_are_keys() {
    let (mut c, mut h) = (client(true), host(true));
    let greeting = c.out();
    assert_eq!(greeting.len(), GREETING);
    feed(&mut h, &greeting, 99).expect("a greeting");
    assert_eq!(h.out().len(), GREETING);
    feed(&mut c, &greeting, 99).expect("a greeting");
    assert!(c.out().is_empty(), "the hello waits for TLS");
    assert!(c.begins_tls() && !c.begins_tls() && !c.out().is_empty());
}

#[test]
fn keys_on_one_side_alone_are_refused_in_words() {
    for (c, h, words) in [(false, true, "asks for keys"), (true, false, "has no keys")] {
        let (hello, welcome, tls) = meet(&mut client(c), &mut host(h), 9);
        let (hello, welcome) = (hello.expect_err("refused"), welcome.expect_err("refused"));
        assert_eq!(hello.kind(), ErrorKind::Incompatible, "{hello}");
        assert_eq!(welcome.kind(), ErrorKind::Incompatible, "{welcome}");
        assert!(welcome.to_string().contains(words), "{welcome}");
        assert!(!welcome.to_string().contains('\n'), "{welcome}");
        assert_eq!(tls, [false; 2]);
    }
}

#[test]
fn another_version_learns_both_versions_and_another_program_nothing() {
    let (mut h, mut old) = (host(true), prelude());
    let ours = format!("version {VERSION}");
    old[8] = 2;
    let e = feed(&mut h, &old, 99).expect_err("another version");
    assert!(e.to_string().contains("version 2") && e.to_string().contains(&ours), "{e}");
    assert_eq!(h.out(), prelude(), "its version, and nothing else");
    let e = feed(&mut client(true), &old, 99).expect_err("another version");
    assert!(e.to_string().contains("version 2") && e.to_string().contains(&ours), "{e}");
    let mut h = host(true);
    let e = feed(&mut h, b"GET / HTTP/1.1", 99).expect_err("a browser");
    assert_eq!((e.kind(), h.out().len()), (ErrorKind::Incompatible, 0), "{e}");
}

#[test]
fn refusals_arrive_and_one_that_is_too_long_is_cut() {
    for words in 0..300 {
        let (mut c, mut h) = (client(false), host(false));
        feed(&mut h, &c.out(), 99).expect("a greeting");
        feed(&mut c, &h.out(), 99).expect("a greeting");
        feed(&mut h, &c.out(), 99).expect("a hello");
        let text = "wörd ".repeat(words);
        let said = Welcome::Refused((&Error::revoked(&*text)).into());
        let said = feed(&mut c, &h.welcome(&said).expect("cut"), 99).expect("understood");
        let Some(Welcome::Refused(f)) = said else { panic!("{said:?}") };
        let e: Error = f.into();
        let heard = e.to_string();
        assert!(text.starts_with(&heard) && heard.len() >= text.len().min(900), "{heard}");
        assert_eq!(e.kind(), ErrorKind::Revoked);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_a_hello_and_little_is_kept(
        has_keys: bool,
        begin in 0usize..100,
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        chunk in 1usize..300,
    ) {
        let greeting = client(has_keys).out();
        let sent = [&greeting[..begin.min(greeting.len())], &bytes].concat();
        let mut h = host(has_keys);
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(h.wants().min(chunk).min(rest.len()));
            prop_assert!(!head.is_empty());
            match h.feed(head) {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
            rest = tail;
        }
        prop_assert!(h.out().len() <= GREETING && h.0.arrived.used <= h.0.arrived.room.len());
    }
}
