use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

const INDEX: IndexNumber = IndexNumber(3);

fn file(dir: &TempDir) -> PathBuf {
    dir.path().join("staged")
}

fn opened(dir: &TempDir, at: Place) -> Staging {
    let staging = Staging::open(&file(dir)).expect("opened");
    staging.begin(at);
    staging
}

fn put(staging: &Staging, key: u64, value: &[u8]) -> Staged {
    staging.append(INDEX, &[Record::Put { key: &key.to_be_bytes(), value }])
}

/// The keys that are moved next, and the place behind them.
fn moved(staging: &Staging) -> Option<(Vec<u64>, Place)> {
    let moving = staging.next()?;
    let key =
        |(_, record): &(_, Record<'_>)| u64::from_be_bytes(record.key().try_into().expect("8"));
    let keys = moving.records().expect("whole").iter().map(key).collect();
    staging.is_moved(moving.end);
    Some((keys, moving.end))
}

fn place(generation: u64, position: u64) -> Place {
    Place { generation, position }
}

#[test]
fn frames_come_out_in_batches_over_many_laps() {
    let dir = TempDir::new().expect("a directory");
    let staging = opened(&dir, place(1, 0));
    let (mut appended, mut taken) = (0u64, 0u64);
    while staging.end() < 5 * BYTES {
        let value = vec![appended as u8; (appended % 5000) as usize];
        match put(&staging, appended, &value) {
            Staged::Done { .. } => appended += 1,
            Staged::NoRoom => {
                let (keys, _) = moved(&staging).expect("frames");
                assert_eq!(keys, (taken..taken + keys.len() as u64).collect::<Vec<_>>());
                taken += keys.len() as u64;
            }
            Staged::TooLong => panic!("short"),
        }
    }
    while let Some((keys, _)) = moved(&staging) {
        taken += keys.len() as u64;
    }
    assert_eq!((taken, staging.moved()), (appended, staging.end()));
    assert_eq!(put(&staging, 0, &vec![0; LONGEST as usize]), Staged::TooLong);
    assert_eq!(put(&staging, 0, &[]), Staged::Done { calls: false });
}

#[test]
fn of_a_key_the_last_record_counts() {
    let dir = TempDir::new().expect("a directory");
    let staging = opened(&dir, place(1, 0));
    let (a, b) = (b"a", b"b");
    staging
        .append(INDEX, &[Record::Put { key: b, value: b"1" }, Record::Put { key: a, value: b"1" }]);
    staging.append(IndexNumber(1), &[Record::Put { key: b, value: b"other" }]);
    staging.append(INDEX, &[Record::Delete { key: b }, Record::Put { key: a, value: b"2" }]);
    let moving = staging.next().expect("frames");
    let wanted = [
        (IndexNumber(1), Record::Put { key: &b[..], value: &b"other"[..] }),
        (INDEX, Record::Put { key: a, value: b"2" }),
        (INDEX, Record::Delete { key: b }),
    ];
    assert_eq!(moving.records().expect("whole"), wanted);
}

#[test]
fn the_committer_is_called_when_many_wait() {
    let dir = TempDir::new().expect("a directory");
    let staging = opened(&dir, place(1, 0));
    let mut calls = 0;
    for key in 0.. {
        calls += u64::from(put(&staging, key, &[0; 1000]) == Staged::Done { calls: true });
        if staging.end() > 2 * MANY {
            break;
        }
    }
    assert_eq!(calls, 1, "once until it has moved something");
    while staging.has_many() {
        moved(&staging);
    }
    assert_eq!(put(&staging, 0, &vec![0; MANY as usize]), Staged::Done { calls: true });
}

/// What a process has staged is there for the next one, whatever byte of it was the last.
#[test]
fn frames_survive_their_process_and_torn_ones_do_not_count() {
    let dir = TempDir::new().expect("a directory");
    let former = opened(&dir, place(7, 40));
    let mut ends = vec![40];
    for key in 0..20 {
        put(&former, key, &vec![key as u8; key as usize]);
        ends.push(former.end());
    }
    let last = *ends.last().expect("an end");
    let bytes = OpenOptions::new().read(true).write(true).open(file(&dir)).expect("opened");
    for torn in 40..last {
        let mut byte = [0];
        bytes.read_exact_at(&mut byte, torn).expect("read");
        bytes.write_all_at(&[byte[0] ^ 1], torn).expect("written");
        let keys = moved(&opened(&dir, place(7, 40))).map_or(0, |(keys, _)| keys.len());
        bytes.write_all_at(&byte, torn).expect("written");
        let intact = ends.iter().filter(|end| **end <= torn).count() - 1;
        // A byte that only fills a frame up does not count.
        let filling = 7 - (11 + 8 + intact + 7) % 8;
        let is_filling = ends[intact + 1] - torn <= filling as u64;
        assert_eq!(keys, if is_filling { 20 } else { intact }, "byte {torn}");
    }
}

/// A loss of power: the engine has more or less than the pages of the file say.
#[test]
fn frames_of_another_lap_or_generation_do_not_count() {
    let dir = TempDir::new().expect("a directory");
    let staging = opened(&dir, place(1, 0));
    let mut key = 0;
    while staging.end() < BYTES + BYTES / 2 {
        if put(&staging, key, &[1; 992]) == Staged::NoRoom {
            moved(&staging).expect("frames");
        }
        key += 1;
    }
    let (end, moved_to) = (staging.end(), staging.moved());
    drop(staging);
    // The engine has lost what it had: the next frames have been overwritten.
    assert!(moved(&opened(&dir, place(1, 0))).is_none());
    // It has more than the pages: nothing is behind it.
    assert!(moved(&opened(&dir, place(1, end + 1024))).is_none());
    // Another generation.
    assert!(moved(&opened(&dir, place(2, moved_to))).is_none());
    let same = opened(&dir, place(1, moved_to));
    assert_eq!(std::iter::from_fn(|| moved(&same)).last().expect("frames").1, place(1, end));
}
