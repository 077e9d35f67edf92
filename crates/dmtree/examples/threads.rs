//! One index shared by threads, over several compute nodes: `cargo run -p dmtree-index --example
//! threads`.
#![allow(clippy::disallowed_macros, reason = "an example prints")]

use dmtree::{Operation, Options, Outcome, Pool};

const THREADS: u64 = 4;
const KEYS: u64 = 2_000;

fn main() -> dmtree::Result<()> {
    // As if on two machines: each compute node has caches and locks of its own.
    let pool = Pool::embedded().memory("64MiB").memory_nodes(2).compute_nodes(2).open()?;
    let index = pool.create("counters", Options::default())?;

    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let index = index.clone();
                scope.spawn(move || {
                    // Each thread adds one to every counter; compare-and-set makes no addition
                    // lost.
                    for n in 0..KEYS {
                        add_one(&index, &n.to_be_bytes())?;
                    }
                    Ok::<(), dmtree::Error>(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|t| t.join().expect("no thread panics"))
    })?;

    for pair in index.scan(..) {
        assert_eq!(pair?.1, THREADS.to_le_bytes());
    }
    let stats = index.stats()?;
    let cas = stats.of_operation(Operation::CompareAndSet);
    println!("{} additions took effect, {} were tried again", cas.done, cas.mismatch);
    Ok(())
}

fn add_one(index: &dmtree::Index, key: &[u8]) -> dmtree::Result<()> {
    loop {
        let outcome = match index.get(key)? {
            None => index.insert(key, 1u64.to_le_bytes())?,
            Some(old) => {
                let n = u64::from_le_bytes(old[..].try_into().expect("a counter has 8 bytes"));
                index.compare_and_set(key, &old, (n + 1).to_le_bytes())?
            }
        };
        if outcome == Outcome::Done {
            return Ok(());
        }
    }
}
