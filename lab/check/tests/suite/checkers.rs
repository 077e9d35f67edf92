//! Two checkers that share no code agree on random histories, sound ones and corrupted ones; and
//! histories that no index may produce are rejected, each for its own reason. Files of histories.

use dmtree_check::brute::explainable;
use dmtree_check::file::{read, write};
use dmtree_check::history::{Event, Op, Swap, ValueId, check_key};
use dmtree_check::log::{Answer, Call, Log, Wrong, loaded};
use dmtree_check::rng::Rng;

/// The effect of an operation on a value, as the pretended index executes it.
fn does(rng: &mut Rng, now: Option<ValueId>, v: ValueId) -> (Event, Option<ValueId>) {
    match rng.below(6) {
        0 | 1 => (Event::Get(now), now),
        2 if rng.below(4) == 0 => (Event::Tried(v), rng.of(&[now, Some(v)])),
        2 => (Event::Put(v), Some(v)),
        3 => (Event::Insert(v, now.is_none()), now.or(Some(v))),
        4 if rng.below(2) == 0 => (Event::Delete(now.is_some()), None),
        4 => (Event::Update(v, now.is_some()), now.map(|_| v)),
        _ => {
            let e = if rng.below(3) == 0 { 1000 } else { now.unwrap_or(7) };
            match now {
                None => (Event::CompareAndSet(e, v, Swap::NotFound), None),
                Some(there) if there == e => (Event::CompareAndSet(e, v, Swap::Done), Some(v)),
                Some(there) => (Event::CompareAndSet(e, v, Swap::Mismatch), Some(there)),
            }
        }
    }
}

/// Operations that take effect one after the other, each somewhere between its call and its return.
/// Some never return; of those some have no effect.
fn sound(rng: &mut Rng) -> Vec<Op> {
    let mut now = None;
    let mut ops = Vec::new();
    for i in 0..2 + rng.below(7) {
        let at = 1000 + i * 10;
        let (event, next) = does(rng, now, 1 + i);
        let returns = rng.below(8) > 0;
        // Without a return its effect is open, if it would have changed anything.
        if returns || rng.below(2) == 0 {
            now = next;
        }
        let call = at - rng.below(40);
        let ret = returns.then(|| at + rng.below(40));
        ops.push(Op { call, ret, event });
    }
    ops
}

/// One answer or time of a history changed at random.
fn corrupt(rng: &mut Rng, ops: &mut [Op]) {
    let i = rng.below(ops.len() as u64) as usize;
    let other = 1 + rng.below(9);
    let op = &mut ops[i];
    match rng.below(3) {
        0 => {
            op.event = match op.event {
                Event::Get(None) => Event::Get(Some(other)),
                Event::Get(Some(_)) if rng.below(2) == 0 => Event::Get(None),
                Event::Get(Some(_)) => Event::Get(Some(other)),
                Event::Insert(v, done) => Event::Insert(v, !done),
                Event::Update(v, done) => Event::Update(v, !done),
                Event::Delete(done) => Event::Delete(!done),
                Event::CompareAndSet(e, v, Swap::Done) => {
                    Event::CompareAndSet(e, v, Swap::NotFound)
                }
                Event::CompareAndSet(e, v, _) => Event::CompareAndSet(e, v, Swap::Done),
                Event::Put(_) | Event::Tried(_) => Event::Put(other),
            }
        }
        // It ends before the others that it overlapped, or begins after them.
        1 => op.ret = Some(op.call),
        _ => op.call = op.ret.unwrap_or(op.call),
    }
}

/// A few operations with any times and answers.
fn any(rng: &mut Rng) -> Vec<Op> {
    let one = |rng: &mut Rng| {
        let (v, other, yes) = (rng.below(3), rng.below(3), rng.below(2) == 0);
        let event = match rng.below(7) {
            0 => Event::Get(yes.then_some(v)),
            1 => Event::Put(v),
            2 => Event::Insert(v, yes),
            3 => Event::Update(v, yes),
            4 => Event::Delete(yes),
            5 => {
                let swap = rng.of(&[Swap::Done, Swap::Mismatch, Swap::NotFound]);
                Event::CompareAndSet(other, v, swap)
            }
            _ => Event::Tried(v),
        };
        let call = rng.below(12);
        let ret = (rng.below(4) > 0).then_some(call + 1 + rng.below(5));
        Op { call, ret, event }
    };
    (0..1 + rng.below(5)).map(|_| one(rng)).collect()
}

/// The number of histories, of 20 000, that both checkers accept; they agree on the others.
fn accepted(seed: u64, history: impl Fn(&mut Rng) -> Vec<Op>) -> u32 {
    let mut rng = Rng::new(seed);
    let mut accepted = 0;
    for n in 0..20_000 {
        let ops = history(&mut rng);
        let right = explainable(&ops, None);
        assert_eq!(check_key(&ops, None).is_ok(), right, "history {n}: {ops:?}");
        accepted += u32::from(right);
    }
    accepted
}

#[test]
fn both_checkers_agree_on_random_histories() {
    assert_eq!(accepted(1, sound), 20_000, "every sound history is accepted");
    let of_any = accepted(3, any);
    assert!((1_000..19_000).contains(&of_any), "{of_any} of 20000 are right");
    let of_corrupted = accepted(2, |rng| {
        let mut ops = sound(rng);
        for _ in 0..1 + rng.below(2) {
            corrupt(rng, &mut ops);
        }
        ops
    });
    assert!((2_001..15_001).contains(&of_corrupted), "{of_corrupted} corruptions do not show");
}

/// Operations one after the other.
fn log(does: &[(u32, Call, Answer)]) -> Log {
    let mut log = Log::new(2, 10);
    for (client, call, answer) in does {
        let record = log.call(*client, 0, *call);
        log.ret(record, 0, answer.clone());
    }
    log
}

/// The key without a valid order of its operations; both checkers say so.
fn order(log: &Log) -> u64 {
    match log.check() {
        Err(Wrong::Order { key, violation }) => {
            let ops = &log.per_key().unwrap()[&key];
            assert!(!explainable(ops, log.initial(key)), "the second checker says so, too");
            assert!(ops.contains(&violation.op));
            key
        }
        other => panic!("accepted, or rejected for another reason: {other:?}"),
    }
}

fn answer(log: &Log) -> String {
    match log.check() {
        Err(Wrong::Answer { why, .. }) => why,
        other => panic!("accepted, or rejected for another reason: {other:?}"),
    }
}

#[test]
fn histories_without_an_order_are_rejected() {
    let put = |v| (0, Call::Put(0, v), Answer::Done);
    let set = |client, v| (client, Call::CompareAndSet(0, 1, v), Answer::Done);
    let get = |client, v| (client, Call::Get(0), Answer::Found(v));
    let failed = (0, Call::Put(0, 1), Answer::Failed("no answer".to_owned()));
    let tried = (0, Call::Put(0, 2), Answer::Tried("no answer".to_owned()));
    for (what, ops) in [
        ("a lost update", vec![put(1), set(1, 2), set(0, 3)]),
        ("a lost update", vec![put(1), (1, Call::Update(0, 2), Answer::Done), get(0, Some(1))]),
        ("a stale read", vec![put(1), put(2), get(1, Some(1))]),
        ("a lost write", vec![put(1), get(1, None)]),
        (
            "a resurrected delete",
            vec![put(1), (1, Call::Delete(0), Answer::Done), get(0, None), get(1, Some(1))],
        ),
        ("a value without a write", vec![get(0, Some(99))]),
        ("a failed write, seen and then not", vec![failed.clone(), get(1, Some(1)), get(1, None)]),
        ("a failed write, seen too late", vec![put(1), tried, get(1, Some(1)), get(1, Some(2))]),
    ] {
        assert_eq!(order(&log(&ops)), 0, "{what}");
    }
    for found in [None, Some(1)] {
        let h = log(&[failed.clone(), get(1, found)]);
        assert_eq!(h.check(), Ok(()), "a failed write may have taken effect, or not");
    }
    let torn = log(&[(0, Call::Get(4), Answer::Torn("0102".to_owned()))]);
    assert!(answer(&torn).contains("no write stored"), "{}", answer(&torn));
}

#[test]
fn two_inserts_that_both_succeed_are_rejected() {
    let mut log = Log::new(1, 10);
    let both = [0, 1].map(|client| log.call(client, 0, Call::Insert(3, 1 + u64::from(client))));
    both.into_iter().for_each(|record| log.ret(record, 0, Answer::Done));
    assert_eq!(order(&log), 3);
}

fn scanned(down: bool, pairs: &[(u64, ValueId)]) -> Log {
    let call = if down { Call::ScanDown(0, 3) } else { Call::Scan(0, 3) };
    log(&[
        (0, Call::Put(0, 5), Answer::Done),
        (0, Call::Put(2, 6), Answer::Done),
        (1, call, Answer::Pairs(pairs.to_vec())),
    ])
}

#[test]
fn a_whole_scan_is_accepted() {
    let mut pairs = vec![(0, 5), (1, loaded(1)), (2, 6), (3, loaded(3))];
    assert_eq!(scanned(false, &pairs).check(), Ok(()));
    pairs.reverse();
    assert_eq!(scanned(true, &pairs).check(), Ok(()));
}

#[test]
fn wrong_scans_are_rejected() {
    assert_eq!(order(&scanned(false, &[(0, 5), (1, loaded(1)), (3, loaded(3))])), 2);
    assert_eq!(order(&scanned(false, &[(0, 5), (1, loaded(1)), (2, 6)])), 3);
    let all = [(0, 5), (1, loaded(1)), (2, 6), (3, loaded(3))];
    for (down, numbers, why) in [
        (false, &[0, 1, 1, 2, 3][..], "k1 came twice"),
        (false, &[0, 2, 1, 3], "k2 came before k1"),
        (true, &[0, 1, 2, 3], "k0 came before k1"),
        (false, &[0, 1, 2, 3, 5], "k5 lies outside"),
    ] {
        let pair = |n: &u64| all.get(*n as usize).copied().unwrap_or((*n, 5));
        let wrong = answer(&scanned(down, &numbers.iter().map(pair).collect::<Vec<_>>()));
        assert!(wrong.contains(why), "{why}: {wrong}");
    }
}

fn op(call: u64, ret: u64, event: Event) -> Op {
    Op { call, ret: Some(ret), event }
}

#[test]
fn what_was_seen_is_not_unseen() {
    let back = [op(0, 9, Event::Put(1)), op(1, 2, Event::Get(Some(1))), op(3, 4, Event::Get(None))];
    assert!(check_key(&back, None).is_err(), "while its write runs");
}

#[test]
fn a_failed_write_does_not_take_effect_later() {
    let tried = op(3, 4, Event::Tried(2));
    let first = op(1, 2, Event::Put(1));
    let found = |at, v| op(at, at + 1, Event::Get(Some(v)));
    assert_eq!(check_key(&[first, tried, found(5, 1)], None), Ok(()), "it was not written");
    assert_eq!(check_key(&[first, tried, found(5, 2)], None), Ok(()), "it was written before");
    for (seen, then) in [(1, 2), (2, 1)] {
        let later = [first, tried, found(5, seen), found(7, then)];
        assert!(check_key(&later, None).is_err(), "{seen}, then {then}");
    }
}

/// Two dozen failed writes of one key made the check exponential.
#[test]
fn many_unknown_outcomes_are_checked_in_no_time() {
    let failed = |i: u64| match i % 4 {
        0 => Event::Delete(true),
        1 => Event::Insert(100 + i, true),
        2 => Event::Update(100 + i, true),
        _ => Event::Put(100 + i),
    };
    let mut h: Vec<Op> = (0..200).map(|i| Op { call: i, ret: None, event: failed(i) }).collect();
    h.extend((0..100).map(|i| op(300 + 2 * i, 301 + 2 * i, Event::Get(Some(101 + 2 * i)))));
    assert_eq!(check_key(&h, None), Ok(()));
    h.push(op(900, 901, Event::Get(Some(101))));
    assert!(check_key(&h, None).is_err(), "a value that had gone");
}

fn small() -> Log {
    let mut log = Log::new(2, 8);
    let a = log.call(0, 10, Call::Put(0, 5));
    let b = log.call(1, 20, Call::Scan(0, 1));
    log.ret(a, 30, Answer::Done);
    log.ret(b, 40, Answer::Pairs(vec![(0, 5), (1, loaded(1))]));
    let c = log.call(1, 50, Call::CompareAndSet(0, 5, 6));
    log.ret(c, 60, Answer::Failed("no answer".to_owned()));
    log.call(0, 70, Call::Get(4));
    log
}

#[test]
fn a_history_comes_back() {
    let text = write(&small());
    assert_eq!(text.lines().count(), 1 + 7 + 1);
    assert_eq!(read(&text).unwrap(), small());
    assert_eq!(read(&text).unwrap().check(), Ok(()));
    assert_eq!(read(&write(&Log::new(1, 1))).unwrap(), Log::new(1, 1));
}

fn refused(text: &str, line: u64, words: &str) {
    let e = read(text).expect_err(words).to_string();
    assert!(e.contains(words) && e.starts_with(&format!("line {line}:")), "{e}");
}

#[test]
fn truncated_files_are_refused_with_the_line() {
    let text = write(&small());
    let lines: Vec<&str> = text.lines().collect();
    refused("", 1, "empty");
    for n in 1..lines.len() {
        refused(&lines[..n].join("\n"), n as u64 + 1, "truncated");
    }
    let cut: String = text.chars().take(text.len() - 40).collect();
    refused(&cut, cut.lines().count() as u64, "cut off");
}

#[test]
fn reordered_and_lost_lines_are_refused_with_the_line() {
    let text = write(&small());
    let mut lines: Vec<&str> = text.lines().collect();
    lines.swap(3, 4);
    refused(&lines.join("\n"), 4, "out of order");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(5);
    refused(&lines.join("\n"), 6, "lost");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(7);
    refused(&lines.join("\n"), 8, "7 events before this line, and 6 are here");
    refused(&(text.clone() + "{}\n"), 10, "behind the end");
}

#[test]
fn other_versions_and_things_are_refused_with_the_line() {
    let text = write(&small());
    refused(&text.replace("\"version\":1", "\"version\":2"), 1, "version 2");
    refused(&text.replace("dmtree-history", "other"), 1, "format is");
    refused(&text.replace("\"keys\":8", "\"keys\":2"), 8, "there are 2 keys");
    refused(&text.replace("\"client\":0", "\"client\":1"), 3, "before its last call");
    refused(&text.replace("\"ret\":\"done\"", "\"tell\":1"), 4, "tell");
}

/// A history of calls, each with the times of its call and its return, and its answer.
fn history(ops: &[(u64, u64, Call, Answer)]) -> Log {
    let mut log = Log::new(1, 10);
    let mut ends = Vec::new();
    for tick in 0..100 {
        for (called, ret, call, answer) in ops {
            if *called == tick {
                ends.push((*ret, log.call(0, 0, *call), answer));
            }
        }
        for (_, record, answer) in ends.extract_if(.., |(ret, ..)| *ret == tick) {
            log.ret(record, 0, answer.clone());
        }
    }
    log
}

/// Snapshots show one instant, and batches whole, though every key for itself is in order.
#[test]
fn histories_of_several_keys() {
    let put = |called, ret, k, v| (called, ret, Call::Put(k, v), Answer::Done);
    let snapshot = |called, ret, pairs: &[(u64, ValueId)]| {
        (called, ret, Call::Snapshot(0, 9), Answer::Pairs(pairs.to_vec()))
    };
    let batch = |called, ret, v| (called, ret, Call::Batch(1, 3, 2, v), Answer::Done);
    let get = |called, ret, k, v| (called, ret, Call::Get(k), Answer::Found(v));
    let why = |ops: &[_]| history(ops).check().map_err(|wrong| wrong.to_string());
    // Key 1 is replaced before key 2 is written.
    let writes = [put(1, 3, 1, 11), put(4, 6, 1, 12), put(7, 9, 2, 21)];
    let with = |shown: &[(u64, ValueId)]| [&writes[..], &[snapshot(2, 10, shown)]].concat();
    for shown in [&[][..], &[(1, 11)], &[(1, 12)], &[(1, 12), (2, 21)]] {
        assert_eq!(why(&with(shown)), Ok(()), "{shown:?}");
    }
    let e = why(&with(&[(1, 11), (2, 21)])).unwrap_err();
    assert!(e.contains("no one instant: k1 = ") && e.contains("and k2 = "), "{e}");
    assert!(why(&with(&[(2, 21)])).unwrap_err().contains("k1 = absent was over"));
    // Two snapshots, one after the other, do not go back.
    let back = [snapshot(2, 30, &[(1, 12)]), snapshot(31, 40, &[(1, 11)])];
    assert!(why(&[&writes[..], &back].concat()).unwrap_err().contains("no one instant"));
    // A part of a batch, at a snapshot, and by gets.
    let torn = [put(1, 2, 3, 31), batch(3, 20, 5), snapshot(4, 8, &[(1, 5), (3, 31)])];
    assert!(why(&torn).unwrap_err().contains("shows a part of a batch: k1 = "));
    let absent = [batch(3, 20, 5), snapshot(4, 8, &[(3, 5)])];
    assert!(why(&absent).unwrap_err().contains("but k1 = absent"));
    let whole = [put(1, 2, 3, 31), batch(3, 20, 5), snapshot(4, 8, &[(1, 5), (3, 5)])];
    assert_eq!(why(&whole), Ok(()));
    let over = [put(1, 9, 3, 31), batch(3, 20, 5), snapshot(4, 10, &[(1, 5), (3, 31)])];
    assert_eq!(why(&over), Ok(()), "a put beside the batch");
    let gets = |second| [batch(3, 20, 5), get(4, 6, 1, Some(5)), get(8, 9, 3, second)];
    assert!(why(&gets(None)).unwrap_err().contains("key k3"));
    assert_eq!(why(&gets(Some(5))), Ok(()));
    // A batch of unknown effect that was seen took effect whole.
    let failed = (3, 5, Call::Batch(1, 3, 2, 5), Answer::Failed("gone".to_owned()));
    let seen = |second| [failed.clone(), get(6, 7, 1, Some(5)), get(8, 9, 3, second)];
    assert!(why(&seen(None)).is_err() && why(&seen(Some(5))).is_ok());
    let refused = (3, 5, Call::Batch(1, 3, 2, 5), Answer::Refused("full".to_owned()));
    assert!(why(&[refused.clone(), get(6, 7, 1, Some(5))]).is_err());
    assert_eq!(why(&[refused, get(6, 7, 1, None)]), Ok(()));
}
