//! The async face, on two runtimes.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use dmtree::{
    AsyncClient, AsyncOptions, Batch, ErrorKind, Index, LoadOrder, Options, Outcome, Pool, Reply,
};
use dmtree_fabric::net::{DataPath, NicConfig};
use dmtree_fabric::{LeaseParameters, OpKind};
use dmtree_pool::{MemoryNode, PoolOptions};

fn index() -> Index {
    let pool = Pool::embedded().memory("32MiB").compute_nodes(2).open().expect("a small pool");
    pool.create("t", Options::default()).expect("a new index")
}

/// All operations, with futures that are sure to be `Send`.
async fn everything(c: AsyncClient) {
    assert_eq!(c.insert("a", "1").await.expect("insert"), Outcome::Done);
    assert_eq!(c.insert("a", "1").await.expect("insert"), Outcome::Exists);
    assert_eq!(c.update("b", "1").await.expect("update"), Outcome::NotFound);
    assert_eq!(c.put("b", "2").await.expect("put"), Outcome::Done);
    assert_eq!(c.compare_and_set("b", "1", "3").await.expect("cas"), Outcome::Mismatch);
    assert_eq!(c.compare_and_set("b", "2", "3").await.expect("cas"), Outcome::Done);
    assert_eq!(c.compare_and_delete("b", "3").await.expect("cad"), Outcome::Done);
    assert_eq!(c.get("b").await.expect("get"), None);
    let mut batch = Batch::new();
    batch.put("c", "4").delete("a");
    let outcomes = c.write_batch(batch).await.expect("batch");
    assert!(outcomes.iter().all(|o| matches!(o, Ok(Outcome::Done))));
    let many = c.get_many(&["a", "c"]).await.expect("get_many");
    assert_eq!(many, [None, Some(b"4".to_vec())]);
    assert_eq!(c.delete("c").await.expect("delete"), Outcome::Done);
    assert_eq!(c.replace("d", "5").await.expect("replace"), None);
    assert_eq!(c.replace("d", vec![6; 700]).await.expect("replace"), Some(b"5".to_vec()));
    let swapped = c.compare_and_swap("d", "5", "7").await.expect("swap");
    assert_eq!(swapped, Some(vec![6; 700]), "another value: nothing changes");
    let swapped = c.compare_and_swap("d", vec![6; 700], "7").await.expect("swap");
    assert_eq!(swapped, Some(vec![6; 700]));
    assert_eq!(c.compare_and_swap("e", "5", "7").await.expect("swap"), None);
    assert_eq!(c.take("d").await.expect("take"), Some(b"7".to_vec()));
    assert_eq!(c.take("d").await.expect("take"), None);
    assert_eq!(c.len_estimate().await.expect("an estimate"), 0);
    assert_eq!(c.put("", "").await.expect_err("no key").kind(), ErrorKind::InvalidArgument);

    let pairs = (0..1000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8])).collect();
    assert_eq!(c.load(pairs, LoadOrder::Sorted).await.expect("load").pairs, 1000);
    let mut keys = Vec::new();
    let mut scan = c.scan(..900u32.to_be_bytes()).rev().limit(500).page_size(64);
    for _ in 0..3 {
        let page = scan.next_page().await.expect("scan").expect("more");
        keys.extend(page.iter().map(|(k, _)| k.to_vec()));
    }
    let mut rest = c.resume(scan.cursor()).expect("a cursor");
    while let Some(page) = rest.next_page().await.expect("scan") {
        keys.extend(page.iter().map(|(k, _)| k.to_vec()));
    }
    let expect: Vec<_> = (400..900u32).rev().map(|n| n.to_be_bytes().to_vec()).collect();
    assert_eq!(keys, expect);
}

fn must_be_send<F: Future + Send>(f: F) -> F {
    f
}

#[test]
fn on_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let client = index().async_client().expect("a client");
    runtime.block_on(must_be_send(everything(client)));
}

#[test]
fn on_pollster() {
    let client = index().async_client().expect("a client");
    pollster::block_on(must_be_send(everything(client)));
}

/// Of writes of one key at once each former value is found by one, also while writers of several
/// workers wait for its lock.
#[test]
fn every_former_value_of_requests_at_once_is_found_once() {
    let i = index();
    let client = i.async_client_with(AsyncOptions::new().workers(4)).expect("a client");
    let found: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let work = |thread: u32| {
            let client = client.clone();
            scope.spawn(move || {
                let mut found = Vec::new();
                for n in 0..2_000u32 {
                    let value = (n << 3 | thread).to_be_bytes();
                    found.extend(pollster::block_on(client.replace("key", value)).expect("set"));
                }
                found
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        threads.into_iter().flat_map(|t| t.join().expect("a thread")).collect()
    });
    let mut seen: Vec<_> = found.into_iter().chain(i.get("key").expect("get")).collect();
    seen.sort();
    let set = (0..2_000u32).flat_map(|n| (0..4).map(move |t| (n << 3 | t).to_be_bytes().to_vec()));
    assert_eq!(seen, set.collect::<Vec<_>>());
    let stats = i.stats().expect("stats");
    let puts = stats.operations.iter().find(|(o, _)| *o == dmtree::Operation::Put);
    assert_eq!(puts.expect("counted").1.done, 8_000);
}

/// Waits for requests that are all asked before any is waited for.
fn at_once<T>(mut replies: Vec<Reply<T>>) -> Vec<T> {
    let mut cx = Context::from_waker(Waker::noop());
    let polled: Vec<_> = replies.iter_mut().map(|r| Pin::new(r).poll(&mut cx)).collect();
    let answers = replies.into_iter().zip(polled).map(|(reply, polled)| match polled {
        Poll::Ready(answer) => answer,
        Poll::Pending => pollster::block_on(reply),
    });
    answers.map(|answer| answer.expect("done")).collect()
}

/// Verbs that take time let writers of one worker meet: puts of one key share a WRITE then. A write
/// that returns the former value shares none, and each value is found by one.
#[test]
fn every_former_value_of_writers_that_meet_is_found_once() {
    const AT_ONCE: u32 = 32;
    const ROUNDS: u32 = 20;
    let options = PoolOptions { memory_bytes_per_node: 32 << 20, ..PoolOptions::default() };
    let (leases, data_path) = (LeaseParameters::default(), DataPath::Frames);
    let nic = NicConfig::default();
    let memory = MemoryNode::found("127.0.0.1:0", &options, leases, data_path, &nic);
    let memory = memory.expect("a free port");
    let pool = Pool::connect(memory.listens()).open().expect("joins");
    let i = pool.create("t", Options::default()).expect("a new index");
    let options = AsyncOptions::new().workers(1).coroutines(AT_ONCE as usize);
    let client = i.async_client_with(options).expect("a client");
    let value = |round: u32, n: u32| (round * AT_ONCE + n).to_be_bytes();

    // A session publishes its costs when it ends: those of the writers that meet are another
    // client's.
    for round in 0..ROUNDS {
        let replies = (0..AT_ONCE).map(|n| client.put("shared", value(round, n)));
        at_once(replies.collect());
    }
    let mut found = Vec::new();
    for round in 0..ROUNDS {
        let replies = (0..AT_ONCE).map(|n| client.replace("key", value(round, n)));
        found.extend(at_once(replies.collect()).into_iter().flatten());
    }
    found.extend(i.get("key").expect("get"));
    found.sort();
    let set = (0..ROUNDS * AT_ONCE).map(|n| n.to_be_bytes().to_vec());
    assert_eq!(found, set.collect::<Vec<_>>());
    drop(client);
    wait_for(|| i.stats().expect("stats").sessions == 1, "the worker ends with its client");
    let writes = i.stats().expect("stats").costs.total(&[OpKind::Put]).counts.mn.write;
    let asked = 2 * u64::from(ROUNDS * AT_ONCE);
    assert!(writes < asked, "{writes} WRITEs of {asked}: no writers have met");
}

#[test]
fn tasks_of_several_threads_share_workers() {
    let i = index();
    let options = AsyncOptions::new().workers(2).coroutines(8);
    let client = i.async_client_with(options).expect("a client");
    std::thread::scope(|scope| {
        for t in 0..3u32 {
            let client = client.clone();
            scope.spawn(move || {
                pollster::block_on(async {
                    for n in 0..200u32 {
                        client.put((n * 3 + t).to_be_bytes(), b"v").await.expect("put");
                    }
                });
            });
        }
    });
    assert_eq!(i.shape().expect("walk").shape.keys, 600);
    assert_eq!(i.stats().expect("stats").sessions, 2 * 8 + 1);
    drop(client);
    wait_for(|| i.stats().expect("stats").sessions == 1, "the workers end with their clients");
}

#[expect(clippy::disallowed_methods, reason = "a test waits for threads to end")]
fn wait_for(done: impl Fn() -> bool, what: &str) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Default)]
struct CountWakes(AtomicU32);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_dropped_future_does_not_stop_its_request() {
    let i = index();
    let client = i.async_client().expect("a client");
    drop(client.put("never polled", "v"));
    {
        let mut put = pin!(client.put("polled", "v"));
        let _ = put.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    wait_for(|| i.get("polled").expect("get").is_some(), "it runs to its end");
    assert_eq!(i.get("never polled").expect("get"), None);
}

#[test]
fn the_callers_waker_is_woken() {
    let client = index().async_client().expect("a client");
    let wakes = Arc::new(CountWakes::default());
    let waker = Waker::from(wakes.clone());
    let mut get = pin!(client.get("k"));
    let first = get.as_mut().poll(&mut Context::from_waker(&waker));
    if first.is_pending() {
        wait_for(|| wakes.0.load(Ordering::SeqCst) == 1, "woken once");
        let second = get.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(matches!(second, Poll::Ready(Ok(None))));
    }
}

#[test]
fn a_removed_index_is_closed() {
    let pool = Pool::embedded().memory("32MiB").open().expect("a small pool");
    let i = pool.create("t", Options::default()).expect("a new index");
    let client = i.async_client().expect("a client");
    pollster::block_on(client.put("k", "v")).expect("put");
    pool.drop_index("t").expect("there");
    assert_eq!(pollster::block_on(client.get("k")).expect_err("gone").kind(), ErrorKind::Closed);
    assert_eq!(i.async_client().expect_err("gone").kind(), ErrorKind::Closed);
}

#[test]
fn options_out_of_range_are_named() {
    let i = index();
    for (name, options) in [
        ("workers", AsyncOptions::new().workers(0)),
        ("coroutines", AsyncOptions::new().coroutines(0)),
        ("queue", AsyncOptions::new().queue(0)),
    ] {
        let e = i.async_client_with(options).expect_err(name);
        assert!(e.to_string().contains(name), "{e}");
    }
}

/// The stream asks for pages as it needs them, and ends for good.
#[test]
fn a_scan_is_a_stream_of_pairs() {
    use futures_core::stream::{FusedStream, Stream};

    let index = index();
    let pairs = (0..1000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8]));
    index.load(pairs, LoadOrder::Sorted).expect("a load");
    let client = index.async_client().expect("a client");
    let scan = client.scan(100u32.to_be_bytes()..).rev().limit(700).page_size(64);
    let mut stream = pin!(scan.pairs());
    pollster::block_on(async {
        for n in (300..1000u32).rev() {
            let pair = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await;
            let (key, value) = pair.expect("a pair").expect("a page");
            assert_eq!((key, value), (n.to_be_bytes().to_vec(), vec![n as u8]));
        }
        for _ in 0..2 {
            let end = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await;
            assert!(end.is_none());
        }
        assert!(stream.is_terminated());
    });
}
