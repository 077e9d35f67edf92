//! The README's example: `cargo run -p dmtree-index --example quickstart`.
#![allow(clippy::disallowed_macros, reason = "an example prints")]

use dmtree::{Options, Outcome, Pool};

fn main() -> dmtree::Result<()> {
    let pool = Pool::embedded().memory("64MiB").open()?; // in memory only
    let index = pool.open_or_create("users", Options::default())?;

    index.put("ada", "1815")?;
    index.put("alan", "1912")?;
    index.put("barbara", "1939")?;
    assert_eq!(index.get("ada")?.as_deref(), Some(&b"1815"[..]));
    assert_eq!(index.insert("ada", "?")?, Outcome::Exists);
    assert_eq!(index.compare_and_set("alan", "1912", "23 June 1912")?, Outcome::Done);
    assert_eq!(index.delete("nobody")?, Outcome::NotFound);

    for pair in index.scan("a".."b").rev().limit(10) {
        let (name, born) = pair?;
        println!("{} {}", String::from_utf8_lossy(&name), String::from_utf8_lossy(&born));
    }
    Ok(())
}
