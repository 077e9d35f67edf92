//! Keys made of several parts, in the order of the parts: `cargo run -p dmtree-index --example
//! tuple_keys`.
#![allow(clippy::disallowed_macros, reason = "an example prints")]

use dmtree::keys::{decode, encode};
use dmtree::{Batch, Options, Pool};

fn main() -> dmtree::Result<()> {
    let pool = Pool::embedded().memory("64MiB").open()?;
    let index = pool.create("temperatures", Options::default().key_inline_bytes(32))?;

    // (city, day, degrees): texts, signed integers and floats order as they should.
    let mut batch = Batch::new();
    for (city, day, degrees) in [
        ("Oslo", -2i32, -11.5f64),
        ("Oslo", 3, 2.0),
        ("Oslo", -2, 4.25),
        ("Osl", 9, 0.0),
        ("Rome", 1, 12.0),
    ] {
        batch.put(encode(&(city, day, degrees)), "");
    }
    for outcome in index.write_batch(&batch)? {
        outcome?;
    }

    // All of Oslo, and not of Osl.
    for pair in index.scan_prefix(encode(&("Oslo",))) {
        let (city, day, degrees): (String, i32, f64) = decode(&pair?.0)?;
        println!("{city}, day {day}: {degrees}");
    }

    // A range within a city.
    let winter = index.scan(encode(&("Oslo", i32::MIN))..encode(&("Oslo", 0i32)));
    println!("{} readings before day 0", winter.into_iter().count());
    Ok(())
}
