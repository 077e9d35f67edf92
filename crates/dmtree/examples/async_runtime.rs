//! The async client on a runtime of your choice, here tokio: `cargo run -p dmtree-index --example
//! async_runtime`.
#![allow(clippy::disallowed_macros, reason = "an example prints")]

use dmtree::{Options, Pool};

#[tokio::main(flavor = "current_thread")]
async fn main() -> dmtree::Result<()> {
    let pool = Pool::embedded().memory("64MiB").open()?;
    let index = pool.create("users", Options::default())?;
    let client = index.async_client()?; // Clone + Send + Sync

    // Requests of many tasks are under way together.
    let tasks: Vec<_> = (0..100u32)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.put(n.to_be_bytes(), format!("user {n}")).await })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics")?;
    }

    let mut scan = client.scan(10u32.to_be_bytes()..).page_size(32);
    let (mut pages, mut users) = (0, 0);
    while let Some(page) = scan.next_page().await? {
        pages += 1;
        users += page.len();
    }
    println!("{users} users in {pages} pages");

    let (a, b) = tokio::join!(client.get(1u32.to_be_bytes()), client.get(1000u32.to_be_bytes()));
    println!("{:?} {:?}", a?.map(|v| String::from_utf8_lossy(&v).into_owned()), b?);
    Ok(())
}
