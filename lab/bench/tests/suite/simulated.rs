//! Small cells on the simulated fabric.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dmtree_bench::compare::{differing, resumable, traces};
use dmtree_bench::config::{Flags, Resolved, resolve};
use dmtree_bench::experiment::Experiment;
use dmtree_bench::instructions::Instructions;
use dmtree_bench::results::{Cell, Results};
use dmtree_bench::run::{self, Observer, Silent};
use dmtree_bench::series::Series;
use dmtree_bench::simulated::CpuSource;
use dmtree_bench::{Failure, Result, table};
use dmtree_workload::{Op, OpKind};

fn resolved(text: &str) -> Result<Resolved> {
    let small = "systems = [\"dmtree\"]\nfabric = \"sim\"\nkeys = 4000\nops = 3000\ncns = 2\nthreads = 4\ncoroutines = 2\ndistributions = [\"uniform\"]\nworkloads = [\"search\"]\n";
    let mut lines: Vec<&str> = small.lines().collect();
    lines.retain(|l| text.lines().all(|t| t.split(' ').next() != l.split(' ').next()));
    let e = Experiment::parse("small", "small", &format!("{}\n{text}", lines.join("\n")))?;
    resolve(&e, &Flags::of::<&str>(&[])?)
}

fn run_it(r: &Resolved, finished: &[Cell], observer: &mut dyn Observer) -> Results {
    let outcome = run::run(r, finished, &Arc::new(AtomicBool::new(false)), observer).unwrap();
    assert_eq!(outcome.failure, None);
    outcome.results
}

fn small(text: &str) -> Results {
    run_it(&resolved(text).unwrap(), &[], &mut Silent)
}

#[test]
fn a_seed_repeats_event_by_event_and_another_does_not() {
    let text = "workloads = [\"search\", \"update\", \"insert\", \"scan\"]\n";
    let (a, b) = (small(text), small(text));
    assert_eq!(a.errors(), 0, "{}", table::render(&a));
    assert_eq!(traces(&a).len(), 4);
    assert_eq!(differing(&traces(&a), &traces(&b)), Vec::<String>::new());
    let other = small(&format!("{text}seed = 43\n"));
    assert_eq!(differing(&traces(&a), &traces(&other)).len(), 4, "every cell differs");
    for (x, y) in a.cells.iter().zip(&b.cells) {
        assert_eq!(
            (x.mops, x.latency.p99_ns, &x.mn, &x.by_outcome),
            (y.mops, y.latency.p99_ns, &y.mn, &y.by_outcome)
        );
    }
}

#[test]
fn figures_do_not_depend_on_how_many_cells_run_at_a_time() {
    let text =
        "systems = [\"dmtree\", \"fptree\"]\nworkloads = [\"search\", \"update\", \"insert\"]\n";
    let run = |jobs| {
        let mut r = resolved(text).unwrap();
        r.config.jobs = Some(jobs);
        run_it(&r, &[], &mut Silent)
    };
    let (one, three) = (run(1), run(3));
    assert_eq!(traces(&one).len(), 6);
    assert_eq!(differing(&traces(&one), &traces(&three)), Vec::<String>::new());
    for (x, y) in one.cells.iter().zip(&three.cells) {
        assert_eq!((x.key(), x.mops, x.latency.p99_ns), (y.key(), y.mops, y.latency.p99_ns));
    }
    assert_eq!(one.config_hash, three.config_hash, "the results can be resumed and compared");
    let refused = |flags: &[&str]| {
        let e = Experiment::parse("small", "small", "keys = 1000\nops = 500\ncns = 2").unwrap();
        resolve(&e, &Flags::of(flags).unwrap()).unwrap_err().to_string()
    };
    assert!(refused(&["--jobs=2"]).contains("real time"));
    assert!(refused(&["--jobs=0"]).contains("--jobs is 0"));
}

#[test]
fn a_window_leaves_the_ramps_out_and_time_is_virtual() {
    let r = small("");
    let c = &r.cells[0];
    let sim = c.sim.as_ref().unwrap();
    assert_eq!((c.ops, sim.window_ops, c.clients), (3000, 3000, 16));
    let (from, to) = sim.window_ns;
    assert!(from >= 500_000, "clients start within half a millisecond: {from}");
    assert!((c.mops - 3000.0 / (to - from) as f64 * 1e3).abs() < 1e-9);
    // Sixteen clients, each with one round trip of 2.2 us and the CPU costs of the profile.
    assert!((1.0..8.0).contains(&c.mops), "{}", c.mops);
    assert!(c.latency.p50_ns > 2200, "{}", c.latency.p50_ns);
    assert!((1.0..1.2).contains(&c.mn.verbs()), "{}", c.mn.verbs());
    let (mn, cn) = (&sim.nodes[0], &sim.nodes[1]);
    assert_eq!((mn.node.as_str(), cn.node.as_str(), cn.cpu.len()), ("mn0", "cn0", 4));
    // The memory node's NIC was busy for 19.8 ns per READ.
    assert!((mn.responder - mn.mverbs * 1e6 * 19.8e-9).abs() < 1e-3, "{mn:?}");
    assert!((mn.mverbs / c.mops - c.mn.verbs()).abs() < 0.02);
    assert!(cn.cpu.iter().all(|share| *share > 0.1 && *share <= 1.0));
    assert!(sim.busiest.is_some() && r.note.contains("dmtree-artifact-100g"));
    assert!(r.config.profile.as_ref().unwrap().toml.contains("[responder_ns]"));
    assert!(Results::parse("x", &r.to_json()).unwrap() == r, "what is written reads back");
}

#[test]
fn a_profile_is_what_time_goes_by() {
    let fast = small("profile = \"ideal\"\n");
    let slow = small("profile = \"ideal\"\nprofile-set = [\"latency.propagation_ns=20000\"]\n");
    let ratio = slow.cells[0].latency.p50_ns as f64 / fast.cells[0].latency.p50_ns as f64;
    assert!(ratio > 10.0, "{ratio}");
    assert_ne!(fast.config_hash, slow.config_hash);
    let (f, s) = (fast.cells[0].mn.verbs(), slow.cells[0].mn.verbs());
    assert!((f / s - 1.0).abs() < 0.01, "counts do not depend on time: {f} {s}");
}

#[test]
fn counted_cpu_is_instructions_at_a_rate_and_repeats() {
    let text = "cpu = \"counted\"\nprofile-set = [\"cpu.instructions_per_ns=0.01\"]\n";
    let (a, b) = (small(text), small(text));
    assert_eq!(differing(&traces(&a), &traces(&b)), Vec::<String>::new());
    assert_eq!(a.cells[0].cpu, CpuSource::Counted);
    let op = Op { kind: OpKind::Read, record: 0, key: &[], version: 0, value: &[], len: 0 };
    let search = f64::from(Instructions::of("dmtree").unwrap().executes(&op));
    // Eight threads at 0.01 instructions a nanosecond; a verb takes next to nothing beside that.
    let mops = 8.0 * 0.01 * 1000.0 / search;
    assert!((a.cells[0].mops / mops - 1.0).abs() < 0.02, "{} {mops}", a.cells[0].mops);
    let e = resolved(&format!("{text}systems = [\"dmtree\", \"sherman\"]\n")).unwrap_err();
    assert!(e.to_string().contains("the instructions of sherman are not counted"), "{e}");
    let e = resolved("fabric = \"local\"\ncpu = \"counted\"\n").unwrap_err();
    assert!(e.to_string().contains("--fabric sim"), "{e}");
}

#[test]
fn inserts_are_all_counted_and_both_distributions_are_one_run() {
    let text = "workloads = [\"insert\"]\ndistributions = [\"uniform\", \"zipfian\"]\nwhere = [{ workload = \"insert\", keys = 5000, ops-of-keys = 0.2, measure = \"all\" }]\n";
    let r = small(text);
    assert_eq!(r.errors(), 0, "{}", table::render(&r));
    assert_eq!(r.cells.len(), 2);
    let c = &r.cells[0];
    assert_eq!((c.ops, c.loaded_keys), (1000, 5000));
    assert_eq!(c.memory.as_ref().unwrap().keys, 6000, "all were inserted");
    assert!(c.sim.as_ref().unwrap().window_ops < 1000, "the throughput is that of the window");
    assert_eq!(r.cells[1].mops, c.mops);
}

#[test]
fn an_open_load_is_met_or_the_system_is_called_saturated() {
    let calm = small("load = \"open:200k\"\n");
    let c = &calm.cells[0];
    let open = c.open.unwrap();
    assert!(!open.saturated && (c.mops - 0.2).abs() < 0.02, "{open:?} {}", c.mops);
    assert!(c.latency.p50_ns < 20_000, "{}", c.latency.p50_ns);
    let much = small("load = \"open:50M\"\n");
    let c = &much.cells[0];
    assert!(c.open.unwrap().saturated && c.mops < 20.0, "{:?}", c.open);
    let text = table::render(&much);
    assert!(text.contains("saturated") && text.contains("fell due"), "{text}");
    // Latency counts from the time an operation fell due, so a growing wait shows.
    let closed = small("");
    assert!(c.latency.p99_ns > 5 * closed.cells[0].latency.p99_ns);
    assert_eq!(traces(&much), traces(&small("load = \"open:50M\"\n")));
}

#[test]
fn published_figures_stand_beside_and_bounds_are_judged() {
    let text = "cns = 6\nthreads = 72\ncoroutines = 4\nops = 8000\npublished = \"fast26-micro\"\n";
    let r = small(text);
    let figure = r.cells[0].published_figure.as_ref().unwrap();
    assert_eq!((figure.mops, figure.outside), (49.69586, false));
    assert!((figure.ratio - r.cells[0].mops / 49.69586).abs() < 1e-12);
    assert!(r.published.as_ref().unwrap().without_counterpart.contains(&"sherman".to_owned()));
    let strict = small(&format!("{text}bounds = [{{ ratio = [2.0, 3.0] }}]\n"));
    assert_eq!(strict.outside().len(), 1);
    let shown = table::render(&strict);
    assert!(shown.contains("OUTSIDE 2.00..3.00") && shown.contains("1 of 1 cells"), "{shown}");
    let fewer = small("published = \"fast26-micro\"\n");
    assert!(fewer.cells[0].published_figure.is_none(), "published for other numbers of threads");
}

#[test]
fn finished_cells_are_taken_over_and_other_settings_refused() {
    struct Count(Vec<String>);
    impl Observer for Count {
        fn measured(&mut self, c: &Cell, so_far: &dyn Fn() -> Results) {
            assert!(
                so_far().interrupted && so_far().cells.iter().any(|have| have.key() == c.key())
            );
            self.0.push(c.workload.clone());
        }
    }
    let r = resolved("workloads = [\"search\", \"insert\", \"update\"]\nrounds = 2\n").unwrap();
    let whole = run_it(&r, &[], &mut Silent);
    let mut partial = whole.clone();
    partial.cells.remove(1);
    partial.cells[1].rounds.pop();
    let take = resumable(&partial, &r).unwrap();
    assert_eq!(take.len(), 1, "a cell without all its rounds is run again");
    let mut count = Count(Vec::new());
    let again = run_it(&r, &take, &mut count);
    assert_eq!(count.0.iter().filter(|w| *w == "search").count(), 0, "{:?}", count.0);
    assert_eq!(count.0.len(), 4);
    let names = |r: &Results| r.cells.iter().map(Cell::key).collect::<Vec<_>>();
    assert_eq!(names(&again), names(&whole), "in their order");
    assert_eq!(again.cells[0], whole.cells[0]);
    let other =
        resolved("workloads = [\"search\", \"insert\", \"update\"]\nrounds = 2\nkeys = 4001\n")
            .unwrap();
    let e = resumable(&whole, &other).unwrap_err();
    assert!(e.exit_code() == 2 && e.to_string().contains(&whole.config_hash), "{e}");
}

#[test]
fn sweeps_share_the_loaded_index() {
    let r = small("sweep = { threads = [1, 4] }\n");
    let labels: Vec<String> = r.cells.iter().map(Cell::label).collect();
    assert_eq!(labels, ["dmtree [threads=1]", "dmtree [threads=4]"]);
    assert_eq!((r.cells[0].clients, r.cells[1].clients), (4, 16));
    assert!(r.cells[1].mops > 2.0 * r.cells[0].mops);
    let e = resolved("").unwrap();
    assert_eq!(run::groups(&e, &|_, _| false).unwrap().len(), 1);
    let both = resolved("workloads = [\"search\", \"update\"]\nsweep = { threads = [1, 4] }\ndistributions = [\"uniform\", \"zipfian\"]\n").unwrap();
    let groups = run::groups(&both, &|_, _| false).unwrap();
    assert_eq!((groups.len(), groups[0].cells.len()), (1, 8));
    assert!(groups[0].cells[..4].iter().all(|c| c.workload.name() == "search"), "reads first");
}

#[test]
fn impossible_simulations_are_refused() {
    let bad = |text: &str| resolved(text).unwrap_err();
    assert!(matches!(bad("profile = \"cx9\"\n"), Failure::Input(m) if m.contains("cx6-200g")));
    for (text, word) in [
        ("profile-set = [\"responder_ns.reed=2\"]\n", "responder_ns.read"),
        ("profile-set = [\"responder_ns.read=-2\"]\n", "from 0"),
        ("cns = 1000\nthreads = 1000\n", "clients in all"),
        ("published = \"nope\"\n", "fast26-micro"),
        ("bounds = [{ ratio = [2.0, 1.0] }]\n", "smaller end first"),
        ("where = [{ workload = \"nope\", keys = 5 }]\n", "no cell has it"),
        ("per-system = { nope = { cache-at-billion = \"8GB\" } }\n", "where"),
        ("options = { nope = { fanout = 8 } }\n", "unknown system"),
        ("options = { dmtree = { fanuot = 8 } }\n", "fanuot"),
        ("sweep = { \"fptree.fanout\" = [8, 16] }\n", "not in the run"),
        ("sweep = { fanout = [8, 16] }\n", "unknown setting"),
        ("fabric = \"local\"\nprofile = \"ideal\"\n", "--fabric sim"),
        ("load = \"open:fast\"\n", "open:1.5M"),
    ] {
        let e = bad(text);
        assert!(e.to_string().contains(word) && e.exit_code() == 2, "{text}: {e}");
    }
}

#[test]
fn steps_add_up_to_the_latency() {
    let r = small("workloads = [\"search\", \"update\"]\nsteps = true\n");
    for c in &r.cells {
        let (_, steps) = c.steps_ns.iter().next().unwrap();
        let sum: f64 = steps.values().sum();
        assert!(
            (sum / c.latency.p50_ns as f64 - 1.0).abs() < 0.2,
            "{} {sum} {steps:?}",
            c.latency.p50_ns
        );
        assert!(steps["cache lookup"] > 0.0 && steps["entry"] > 1000.0, "{steps:?}");
    }
    assert!(table::render(&r).contains("fingerprint scan"));
    assert!(small("").cells[0].steps_ns.is_empty(), "only when asked");
}

#[test]
fn a_cell_does_not_depend_on_the_cells_of_other_systems() {
    let text = "workloads = [\"search\", \"update\"]\n";
    let alone = small(&format!("systems = [\"fptree\"]\n{text}"));
    let second = small(&format!("systems = [\"dmtree\", \"fptree\"]\n{text}"));
    let of_fptree = traces(&second).into_iter().filter(|(key, _)| key.contains("fptree")).collect();
    assert_eq!(differing(&of_fptree, &traces(&alone)), Vec::<String>::new());
}

#[test]
fn options_of_a_system_are_given_and_swept() {
    let swept = small(
        "sweep = { \"dmtree.leaf_capacity\" = [32, 64] }\noptions = { dmtree = { fanout = 8 } }\n",
    );
    let variants: Vec<_> = swept.cells.iter().map(|c| c.variant.as_deref().unwrap()).collect();
    assert_eq!(variants, ["dmtree.leaf_capacity=32", "dmtree.leaf_capacity=64"]);
    let leaves = |i: usize| swept.cells[i].memory.as_ref().unwrap().leaves.clone();
    assert_ne!(leaves(0), leaves(1), "leaves of 32 and of 64 slots");
    let e = Experiment::parse("x", "x", "options = { dmtree = { fanout = 8 } }\n").unwrap();
    let given = |word: &str| resolve(&e, &Flags::of(&["--systems=dmtree", word]).unwrap());
    let options = given("--option=dmtree.fanout=16").unwrap().config.options;
    assert_eq!(options["dmtree"]["fanout"], 16, "the command line wins");
    for (word, what) in [
        ("--option=dmtree.fanuot=16", "fanuot"),
        ("--option=nope.fanout=16", "unknown system"),
        ("--option=dmtree.fanout=many", "options.dmtree"),
        ("--sweep=fptree.fanout=8,16", "not in the run"),
    ] {
        let refused = given(word).unwrap_err();
        assert!(refused.to_string().contains(what) && refused.exit_code() == 2, "{refused}");
    }
    assert!(Flags::of(&["--option=fanout=16"]).unwrap_err().to_string().contains("NAME.field"));
}

#[test]
fn settings_of_some_cells() {
    let r = small(
        "workloads = [\"search\", \"update\"]\nwhere = [{ workload = \"search\", coroutines = 1 }, { system = \"dmtree\", ops = 1500 }]\n",
    );
    let of = |w: &str| r.cells.iter().find(|c| c.workload == w).unwrap();
    assert_eq!((of("search").clients, of("update").clients), (8, 16));
    assert_eq!((of("search").ops, of("update").ops), (1500, 1500));
    assert_eq!(r.config.cells[0].described(), "where coroutines 1, workload search");
}

/// Clients of a compute node in its slice of the key space: every kind of operation finds what it
/// must.
#[test]
fn clients_keep_to_the_slice_of_their_compute_node() {
    let r = small(
        "affinity = \"own\"\nsystems = [\"dmtree\", \"sherman-published\"]\nworkloads = [\"search\", \"search-absent\", \"insert\", \"update\", \"scan\", \"ycsb-d\"]\n",
    );
    assert_eq!((r.errors(), r.cells.len()), (0, 12), "{}", table::render(&r));
}

/// A system with an owner of each key, over the keys of all compute nodes; where clients draw keys
/// of others, or read across slices, it is refused, in a line.
#[test]
fn a_system_with_owners_has_clients_that_keep_to_their_slice() {
    let text = "systems = [\"dlsm-published\"]\nworkloads = [\"search\", \"insert\", \"update\"]\n";
    let refused = run::preflight(&resolved(text).unwrap()).unwrap_err().to_string();
    assert!(refused.starts_with("dlsm-published has an owner of each key"), "{refused}");
    assert!(refused.contains("--affinity own") && !refused.contains('\n'), "{refused}");
    let cns = resolved(text).unwrap().config.cns;
    let own = format!("affinity = \"own\"\n{text}[options.dlsm-published]\nowners = {cns}\n");
    let scan = own.replace("\"update\"", "\"scan\"");
    let refused = run::preflight(&resolved(&scan).unwrap()).unwrap_err().to_string();
    assert!(refused.contains("its scans end with the slice"), "{refused}");
    for fabric in ["sim", "local"] {
        let r = small(&format!("fabric = \"{fabric}\"\n{own}"));
        assert_eq!((r.errors(), r.cells.len()), (0, 3), "{}", table::render(&r));
    }
}

/// Keys come that no model has seen, into an ever smaller part of the key space.
#[test]
fn a_series_shows_what_trainings_do() {
    let text = "systems = [\"rolex\", \"rolex-no-retraining\"]\n\
        workloads = [{ name = \"mixed\", mix = { read = 50, insert = 50 } }]\n\
        key-form = \"shifting(5000:1, 2000:0.1, ascending)\"\n\
        keys = 3000\nops = 12_000\nmeasure = \"all\"\nmaintain-every = 8\nseries-us = 500\n";
    let r = small(text);
    assert_eq!(r.errors(), 0, "{}", table::render(&r));
    let all: Vec<_> = r.cells.iter().map(|c| (c, c.series.as_ref().expect("a series"))).collect();
    let [(trained, with), (untrained, without)] = all[..] else { panic!("two cells") };
    let trainings = |s: &Series| s.buckets.iter().map(|b| b.trainings).sum::<u64>();
    assert!(trainings(with) > 3 && trainings(without) == 0);
    assert!(with.training_p99_ns.is_some() && without.training_p99_ns.is_none());
    let published = |c: &Cell| c.by_background.get("train other").map_or(0, |cost| cost.ops);
    assert!(published(trained) >= trainings(with) && published(untrained) == 0);
    let ends = |s: &Series| s.buckets.iter().rev().take(5).map(|b| b.reads_of_read).sum::<f64>();
    assert!(ends(with) < ends(without), "{with:?}, {without:?}");
    let ops: f64 = with.buckets.iter().map(|b| b.mops * 500.0).sum();
    assert!((10_000.0..=12_000.0).contains(&ops.round()), "{ops} operations in whole buckets");
    assert!(with.buckets.iter().all(|b| b.read_p99_ns > 0 && b.cache_bytes > 0));
    assert!(table::render(&r).contains("in the"), "the ratio of the two percentiles");

    let refused = |text: &str| resolved(text).unwrap_err().to_string();
    assert!(refused("fabric = \"local\"\nseries-us = 5").contains("fabric sim only"));
    assert!(refused("series-us = 0").contains("give 1 to 1000000 microseconds"));
    assert!(refused("maintain-every = 0").contains("maintain-every is 0"));
    let own = refused("[[where]]\nseries-us = 2_000_000");
    assert!(own.contains("[[where]]") && own.contains("series-us is 2000000"), "{own}");
}

/// The benchmarks of db_bench in a row over one index, on systems of three kinds.
#[test]
fn phases_run_on_every_kind_of_system() {
    let text = "systems = [\"dmtree\", \"sherman-published\", \"rpc\"]\n\
        workloads = [\"readrandom\", \"fillrandom\", \"readseq\", \"readrandomrange\", \"readrandomwriterandom(25)\"]\n\
        key-form = \"db-bench\"\nvalue-size = 40\nops = 4000\n";
    let r = small(text);
    assert_eq!((r.errors(), r.cells.len()), (0, 15), "{}", table::render(&r));
    for c in &r.cells {
        let keys = c.memory.as_ref().unwrap().keys;
        let writes = c.workload == "fillrandom" || c.workload.contains("write");
        assert_eq!(c.drain.is_some(), writes, "{}", c.key());
        let mixed = c.workload.contains("write");
        assert!(c.mops > 0.0 && (mixed || (2300..2800).contains(&keys)), "{}: {keys}", c.key());
        if c.workload == "readrandom" {
            // Of as many draws as numbers, 1 - 1 / e were drawn: gets of others find nothing.
            let [hit, absent] = ["hit", "absent"].map(|of| c.by_outcome[of].ops as f64);
            let share = hit / (hit + absent);
            assert!((share - 0.632).abs() < 0.03, "{}: {share}", c.key());
        }
    }
    assert!(table::render(&r).contains("to drain"));
}
