//! Ranges, prefixes, limits, and cursors that resume a scan later: `cargo run -p dmtree-index
//! --example scan`.
#![allow(clippy::disallowed_macros, reason = "an example prints")]

use dmtree::{LoadOrder, Options, Pool};

fn main() -> dmtree::Result<()> {
    let pool = Pool::embedded().memory("64MiB").open()?;
    let index = pool.create("readings", Options::default())?;
    let key = |room: &str, hour: u32| format!("{room}/{hour:04}").into_bytes();
    let rooms = ["attic", "cellar", "kitchen"];
    let pairs = rooms.iter().flat_map(|r| (0..1000).map(move |h| (key(r, h), vec![h as u8])));
    println!("{} pairs loaded", index.load(pairs, LoadOrder::Sorted)?.pairs);

    // A range, from its end.
    let latest = index.scan(key("cellar", 0)..key("cellar", 500)).rev().limit(2);
    for pair in latest {
        println!("{}", String::from_utf8_lossy(&pair?.0));
    }

    // A prefix, without an allocation per pair.
    let mut sum = 0u64;
    let mut pairs = index.scan_prefix("kitchen/").page_size(512).pairs();
    while let Some((_, value)) = pairs.next_ref()? {
        sum += u64::from(value[0]);
    }
    println!("sum over the kitchen: {sum}");

    // A scan in portions, as a server would do it: the cursor travels to the client and back.
    let mut cursor = index.scan(..).pairs().cursor();
    let mut portions = 0;
    loop {
        let mut portion = index.resume(&cursor)?.pairs();
        let seen = portion.by_ref().take(700).collect::<dmtree::Result<Vec<_>>>()?;
        if seen.is_empty() {
            break;
        }
        portions += 1;
        cursor = portion.cursor();
    }
    println!("all in {portions} portions of 700");
    Ok(())
}
