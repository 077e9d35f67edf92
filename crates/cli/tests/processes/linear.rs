//! Clients in processes of their own, with few keys, and a check that the history of all of them is
//! linearizable, whatever happens to the processes meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dmtree_check::log::{Answer, Call, Log};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use crate::harness::{Process, compute};

/// Pause of a client between two operations: a thousand a second from each find what fails, and
/// leave the machine to the tests beside.
pub const PAUSE: Duration = Duration::from_millis(1);
/// The keys that all clients share.
const KEYS: u64 = 12;

/// Runs clients of a pool, each in a process of its own, until `happens` returns. That gets the ids
/// of the processes. How many operations returned without an error, in all and after `happens`.
pub fn clients(pool: &str, count: u32, happens: impl FnOnce(&[u32])) -> (usize, usize) {
    in_processes((0..count).map(|_| compute(pool)).collect(), happens)
}

/// The same with the processes given.
pub fn in_processes(processes: Vec<Process>, happens: impl FnOnce(&[u32])) -> (usize, usize) {
    let log = Mutex::new(Log::new(1, KEYS));
    let (ends, calm) = (AtomicBool::new(false), AtomicBool::new(false));
    let late = Mutex::new(0);
    let ids: Vec<u32> = processes.iter().map(|p| p.child.id()).collect();
    std::thread::scope(|scope| {
        for (client, process) in (0..).zip(processes) {
            let (log, ends, calm, late) = (&log, &ends, &calm, &late);
            scope.spawn(move || {
                let after = work(process, client, log, (ends, calm));
                *late.lock().expect("no panic") += after;
            });
        }
        happens(&ids);
        calm.store(true, Ordering::SeqCst);
        std::thread::sleep(Duration::from_secs(3));
        ends.store(true, Ordering::SeqCst);
    });
    let log = log.into_inner().expect("no panic");
    if let Err(wrong) = log.check() {
        panic!("{wrong}");
    }
    let fine = |answer: &Answer| !matches!(answer, Answer::Failed(_));
    let returned = log.records().iter().filter(|r| r.ret.as_ref().is_some_and(|r| fine(&r.answer)));
    (returned.count(), late.into_inner().expect("no panic"))
}

/// One client; how many operations have succeeded since all is calm.
fn work(
    mut process: Process,
    client: u32,
    log: &Mutex<Log>,
    (ends, calm): (&AtomicBool, &AtomicBool),
) -> usize {
    let mut rng = SplitMix64::seed_from_u64(u64::from(client) + 1);
    let mut input = process.take_input();
    let mut after = 0;
    for number in 1.. {
        if ends.load(Ordering::SeqCst) {
            break;
        }
        let key = rng.next_u64() % KEYS;
        let value = (u64::from(client) + 1) << 32 | number;
        let (call, line) = match rng.next_u64() % 10 {
            0..5 => (Call::Get(key), format!("get {key}")),
            5..9 => (Call::Put(key, value), format!("put {key} {value}")),
            _ => (Call::Delete(key), format!("delete {key}")),
        };
        let is_calm = calm.load(Ordering::SeqCst);
        let record = log.lock().expect("no panic").call(client, 0, call);
        // A process that was killed neither reads nor answers: its last operation stays open.
        if std::io::Write::write_all(&mut input, format!("{line}\n").as_bytes()).is_err() {
            break;
        }
        let Some(said) = process.heard() else { break };
        let answer = match (call, said.as_str()) {
            (_, said) if said.starts_with("error") => Answer::Failed(said.to_owned()),
            (_, "done") => Answer::Done,
            (Call::Get(_), "not found") => Answer::Found(None),
            (_, "not found") => Answer::NotFound,
            (_, said) => match said.parse() {
                Ok(value) => Answer::Found(Some(value)),
                Err(_) => Answer::Torn(said.to_owned()),
            },
        };
        after += usize::from(is_calm && !matches!(answer, Answer::Failed(_)));
        log.lock().expect("no panic").ret(record, 0, answer);
        std::thread::sleep(PAUSE);
    }
    after
}
