//! The binary as users run it.
#![allow(clippy::disallowed_methods, reason = "a test waits for processes")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{dmtree, fed, has, ok, refused, run, text, words};
use serde_json::Value;

fn file(dir: &Path, name: &str, content: &[u8]) -> String {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

/// The results in a directory.
fn results(dir: &Path) -> Value {
    parsed(&std::fs::read_to_string(dir.join("results.json")).unwrap())
}

/// What other tools take their lists from.
#[test]
fn the_list_is_one_json_document() {
    let list = parsed(&ok(&["bench", "list", "--json"]));
    let of = |what: &str| list[what].as_array().unwrap_or_else(|| panic!("{what}")).clone();
    let systems = of("systems");
    let dmtree = systems.iter().find(|s| s["name"] == "dmtree").unwrap();
    assert_eq!((&dmtree["family"], &dmtree["recovers"]), (&"dmtree".into(), &true.into()));
    assert!(dmtree["options"].is_object() && dmtree["ops"]["delete"] == true, "{dmtree}");
    for s in &systems {
        assert!(s["published"].is_boolean() && s["sound"].is_boolean(), "{s}");
        assert!(s["recovers"] == false || s["sound"] == true, "{s}");
    }
    assert!(of("experiments").iter().any(|e| e["name"] == "quick" && e["systems"].is_array()));
    assert!(of("workloads").iter().any(|w| w == "ycsb-a"));
    assert!(of("fabrics").iter().any(|f| f == "sim"));
}

#[test]
fn bad_input_is_status_2() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let o = out.to_str().unwrap();
    refused(&["bench", "quick", "--nope"], &["--nope"]);
    refused(&["bench", "nope"], &["unknown experiment", "quick, ycsb, ablation, cache, scan"]);
    refused(&["bench", "quikc"], &["unknown experiment", "do you mean quick?"]);
    refused(&["bench", "quick", "--systems", "smrt"], &["do you mean smart?"]);
    refused(&["fabric", "show", "cx6-10g"], &["do you mean cx6-100g?"]);
    refused(&["bench", "quick", "--workloads", "serach"], &["do you mean search?"]);
    refused(&["bench", "quick", "--distributions", "unifrom"], &["do you mean uniform?"]);
    let option = ["bench", "quick", "--option", "dmtree.fanuot=3"];
    refused(&option, &["do you mean fanout?"]);
    refused(&["bench", "quick", "--systems", "btree"], &["unknown system", "dmtree-no-mirrors"]);
    refused(&["bench", "quick", "--workloads", "ycsb-z"], &["unknown workload", "ycsb-a"]);
    refused(&["bench", "quick", "--distributions", "normal"], &["unknown distribution", "uniform"]);
    refused(&["bench", "quick", "--fabric", "ether"], &["unknown fabric", "local"]);
    refused(&["bench", "quick", "--cns", "0", "--out", o], &["--cns is 0"]);
    refused(&["bench", "quick", "--mns", "0", "--out", o], &["--mns is 0"]);
    let own = ["bench", "quick", "--affinity", "own", "--out", o];
    refused(&[&own[..], &["--cns", "1"]].concat(), &["affinity own", "--cns"]);
    let keys = format!("file({})", file(dir.path(), "keys", b"a\nb\nc\n"));
    let of_file = ["--key-form", &keys, "--keys", "2"];
    refused(&[&own[..], &of_file].concat(), &["affinity own", "keys of a file"]);
    refused(&["bench", "quick", "--affinity", "other"], &["other", "own"]);
    let owned = ["bench", "quick", "--systems", "dlsm-published", "--fabric", "local"];
    refused(&owned, &["dlsm-published has an owner of each key", "all 6 compute nodes", "--cns 1"]);
    refused(&["bench", "quick", "--keys", "x"], &["x", "1_000_000, 1e6 or 1M"]);
    let cache = words("bench quick --cache-bytes 100 --keys 1000 --out");
    refused(&[&cache[..], &[o]].concat(), &["cache of 100 bytes"]);
    let memory = words("bench quick --keys 1000000 --memory-bytes 16MiB --out");
    refused(&[&memory[..], &[o]].concat(), &["do not fit", "--memory-bytes"]);
    refused(&["bench", "quick", "--keys", "1000000000000", "--out", o], &["need about"]);
    refused(&["bench", "quick", "--value-size", "2000000"], &["value size"]);
    refused(&["bench", "quick", "--key-form", "random(0..=8)"], &["key lengths 0..=8"]);
    refused(&["bench", "quick", "--key-form", "random(8..=2000)"], &["1024"]);
    refused(&["bench", "quick", "--key-form", "file(/nowhere/keys)"], &["/nowhere/keys"]);
    refused(&["bench", "quick", "--scan-length", "0"], &["scan"]);
    refused(&["bench", "quick", "--duration=-1"], &["duration"]);
    refused(&["bench", "quick", "--ops", "0"], &["--ops is 0"]);
    let lacking = ["bench", "quick", "--systems", "fptree", "--workloads"];
    refused(&[&lacking[..], &["delete"]].concat(), &["fptree has no delete"]);
    let lengths = ["search", "--value-size", "16..=64"];
    refused(&[&lacking[..], &lengths].concat(), &["values of different lengths"]);
    refused(&["bench", "/nowhere/x.toml"], &["/nowhere/x.toml"]);
    let bad = file(dir.path(), "bad.toml", b"description = \"x\"\nkeyz = 5\n");
    refused(&["bench", &bad], &["line 2", "keyz"]);
    let plain = file(dir.path(), "plain", b"");
    refused(&["bench", "quick", "--keys", "1000", "--out", &plain], &["plain"]);
    refused(&["bench", "trace"], &["FILE"]);
    refused(&["bench", "trace", "/nowhere/t"], &["/nowhere/t"]);
    refused(&["report", "/nowhere"], &["/nowhere"]);
    refused(&["compare", "/nowhere", "/nowhere"], &["/nowhere"]);
    let other = file(dir.path(), "results.json", b"{\"schema_version\": 99}");
    refused(&["compare", &other, &other], &["schema_version 99"]);
    refused(&["load", "/nowhere/d"], &["/nowhere/d"]);
    refused(&["dump", "/tmp/never"], &["--keys"]);
    refused(&["frob"], &["frob"]);
    assert!(!out.exists(), "nothing half-written");
}

#[test]
fn quick_writes_valid_files_and_reports_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("r");
    let o = out.to_str().unwrap();
    let small = words("bench quick --systems dmtree --budget 2 --keys 20000 --out");
    let table = ok(&[&small[..], &[o]].concat());
    assert!(table.contains("in-process memory, no statement about a NIC"), "{table}");
    // The simulated table comes first, and a line says what the times of the other one mean.
    has(&table, &["quick-sim: ", "published"]);
    let at = |words: &str| table.find(words).unwrap_or_else(|| panic!("{words}: {table}"));
    assert!(at("quick-sim: ") < at("its times are those of this machine's CPU"), "{table}");
    assert!(at("its times are those of this machine's CPU") < at("\nquick: "), "{table}");
    let simulated = out.join("quick-sim");
    assert!(simulated.join("results.json").exists() && simulated.join("report.html").exists());
    has(&table, &["search", "insert", "update", "scan", "uniform", "zipfian", "B/key on MN"]);
    assert!(!table.contains('\x1b'), "no colours");
    let r = results(&out);
    assert_eq!(r["commit"].as_str().unwrap_or_default(), dmtree_commit::COMMIT);
    let cells = r["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 8, "four workloads, two distributions");
    for c in cells {
        assert_eq!(c["errors"], 0);
        assert!(c["ops"].as_u64().unwrap() >= 10_000, "{}: {}", c["workload"], c["ops"]);
    }
    for name in ["simple_results_uniform.csv", "simple_results_zipfian.csv"] {
        let csv = std::fs::read_to_string(out.join(name)).unwrap();
        assert!(csv.starts_with("Index,Workload,Total,Node1,Node2,Node3,Node4,Node5,Node6\n"));
    }
    let report = out.join("report.html");
    std::fs::remove_file(&report).unwrap();
    ok(&["report", o]);
    assert!(report.exists());
    assert!(ok(&["compare", o, o]).contains("1.000"));
    let mut changed = r.clone();
    changed["cells"][0]["round_trips"] = 9.into();
    let changed = file(dir.path(), "changed.json", changed.to_string().as_bytes());
    assert_eq!(run(&["compare", o, &changed]).status.code(), Some(1));
    assert_eq!(run(&["compare", o, &changed, "--tolerance", "1000"]).status.code(), Some(0));
}

#[test]
fn json_goes_to_standard_output_alone() {
    let line = "bench quick --workloads search --distributions uniform --keys 1000 --ops 1000 --json --quiet --seed 7";
    let r = parsed(&ok(&words(line)));
    assert_eq!((r["seed"].as_u64(), r["cells"][0]["ops"].as_u64()), (Some(7), Some(1000)));
}

#[test]
fn settings_have_origins() {
    for million in ["1e6", "1M", "1_000_000"] {
        let t = ok(&["config", "show", "--keys", million, "--ops", "2.5k"]);
        assert!(t.contains("1000000") && t.contains("2500"), "{t}");
    }
    let t = ok(&["config", "show", "--keys", "5"]);
    let row = |key: &str| t.lines().find(|l| l.starts_with(key)).unwrap_or_default().to_owned();
    assert!(row("keys ").contains('5') && row("keys ").ends_with("command line"), "{t}");
    assert!(row("budget").ends_with("experiment quick") && row("seed").ends_with("default"), "{t}");
    assert!(row("threads").ends_with("derived"), "{t}");
    let j = parsed(&ok(&["config", "show", "--json", "--experiment", "ycsb"]));
    assert_eq!(j["origins"]["duration"]["experiment"], "ycsb");
    assert!(ok(&["bench", "list"]).contains("ablation"));
}

#[test]
fn a_file_is_an_experiment() {
    let dir = tempfile::tempdir().unwrap();
    let e = file(
        dir.path(),
        "mine.toml",
        b"description = \"mine\"\nsystems = [\"dmtree\"]\ndistributions = [\"uniform\"]\nkeys = 500\nops = 500\ncns = 2\n\n[[workloads]]\nname = \"mostly-reads\"\nmix = { read = 9, delete = 1 }\n",
    );
    let text = ok(&["bench", &e, "--quiet"]);
    assert!(text.starts_with("mine: mine") && text.contains("mostly-reads"), "{text}");
}

fn trace_of(dir: &Path) -> (String, String) {
    let mut load = String::from("***************** properties *****************\n");
    for i in 0..500 {
        load += &format!("INSERT usertable user{i} [ field0=v{i} field1=w ]\n");
    }
    let mut run = String::new();
    for i in 0..500 {
        run += &format!("READ usertable user{i} [ <all fields>]\n");
        run += &format!("UPDATE usertable user{i} [ field1=x{i} ]\n");
        run += &format!("READ usertable user{i} [ field1 ]\n");
        run += &format!("SCAN usertable user{i} 10 [ <all fields>]\n");
        if i % 5 == 0 {
            run += &format!("DELETE usertable user{i}\nREAD usertable user{i} [ <all fields>]\n");
        }
    }
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(load.as_bytes()).unwrap();
    (file(dir, "load.gz", &zipped.finish().unwrap()), file(dir, "run.txt", run.as_bytes()))
}

#[test]
fn traces_are_replayed_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (load, run_file) = trace_of(dir.path());
    let out = dir.path().join("o");
    let text = ok(&["bench", "trace", &load, &run_file, "--json", "--out", out.to_str().unwrap()]);
    let r = parsed(&text);
    assert_eq!(r["mismatches"], 0, "{text}");
    assert_eq!((r["keys"].as_u64(), r["client_lines"].as_u64()), (Some(400), Some(1)));
    assert_eq!(r["by_kind"]["read"]["ops"], 1100);
    assert!(out.join("trace.json").exists());
    let bad = file(dir.path(), "bad.txt", b"INSERT usertable a [ field0=x ]\nFROB usertable a\n");
    refused(&["bench", "trace", &load, &bad], &["bad.txt, line 2"]);
    refused(&["bench", "trace", &load, "--system", "x"], &["unknown system"]);
    refused(&["bench", "trace", &load, "--threads", "0"], &["--threads"]);
    let line = format!("READ usertable {} [ <all fields>]\n", "k".repeat(1025));
    let long = file(dir.path(), "long.txt", line.as_bytes());
    refused(&["bench", "trace", &long], &["1025"]);

    let dump = dir.path().join("t.dump");
    ok(&["dump", "--from-trace", &load, "--from-trace", &run_file, dump.to_str().unwrap()]);
    assert!(std::fs::read_to_string(dump).unwrap().contains("\nend 400 "));
}

/// Traces of other programs, and their hostile forms, on every fabric that this machine has.
#[test]
fn traces_of_other_forms_are_replayed_on_every_fabric() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = String::from("op,key,size,length\n");
    let mut cache = String::new();
    for i in 0..300 {
        rows += &format!("put,k{i},{},\nget,k{i},,\nscan,k{i},,5\n", i * 7);
        cache += &format!("{i},k,{i},4,{i},9,set,0\n{i},k,{i},4,0,9,get,0\n");
    }
    rows += "put,long,1000000,\nget,long,,\ndelete,k7,,\n";
    let csv = file(dir.path(), "rows.csv", rows.as_bytes());
    let twitter = file(dir.path(), "cache.csv", cache.as_bytes());
    for fabric in ["local", "sim", "tcp"] {
        let replayed = |format: &str, file: &str| {
            let words = ["bench", "trace", file, "--format", format, "--fabric", fabric, "--json"];
            parsed(&ok(&words))
        };
        let r = replayed("csv", &csv);
        assert_eq!((&r["mismatches"], &r["keys"]), (&0.into(), &300.into()), "{fabric}: {r}");
        assert_eq!((&r["by_kind"]["scan"]["ops"], &r["ops"]), (&300.into(), &903.into()));
        assert!(r["note"].as_str().unwrap().starts_with(&format!("fabric {fabric}")), "{r}");
        let r = replayed("twitter", &twitter);
        assert_eq!((&r["mismatches"], &r["keys"]), (&0.into(), &300.into()), "{fabric}: {r}");
    }
    let simulated = ["bench", "trace", &csv, "--format", "csv", "--fabric", "sim", "--json"];
    assert_eq!(ok(&simulated), ok(&simulated), "virtual time repeats");
    let refused_as = |format, content: &str, due: &[&str]| {
        let bad = file(dir.path(), "bad", content.as_bytes());
        refused(&["bench", "trace", &bad, "--format", format], due);
    };
    refused_as("twitter", "1,k,1,4,9,set\n", &["bad, line 1", "timestamp,key,key size"]);
    refused_as("twitter", "1,k,1,4,9,frob,0\n", &["bad, line 1", "none of get, gets, set"]);
    refused_as("csv", "op,kee\n", &["bad, line 1", "unknown column", "op and key"]);
    refused_as("csv", "op,key\nget,a\nfrob,a\n", &["bad, line 3", "none of read (get)"]);
    refused_as("csv", "op,key\nget,a,b\n", &["bad, line 2", "more than 2 fields"]);
    refused(&["bench", "trace", &csv, "--format", "twiter"], &["twitter"]);
    refused(&["bench", "trace", &csv, "--fabric", "ether"], &["unknown fabric", "local, sim"]);
    refused(&["bench", "trace", &csv, "--profile", "ideal"], &["--fabric sim"]);
}

/// Integers as the benchmark SOSD has them.
#[test]
fn binary_key_files_are_keys() {
    let dir = tempfile::tempdir().unwrap();
    let of = |count: u64, width: usize| {
        let keys = (0..500u64).flat_map(|k| (k * k).to_le_bytes()[..width].to_vec());
        count.to_le_bytes().into_iter().chain(keys).collect::<Vec<u8>>()
    };
    let line = "bench quick --fabric local --systems dmtree,fptree --distributions uniform --keys 400 --ops 400 --workloads";
    let bench = |workloads: &str, name: &str, bytes: &[u8]| {
        let form = format!("sosd({})", file(dir.path(), name, bytes));
        let words = [&words(line)[..], &[workloads, "--key-form", &form]].concat();
        run(&words)
    };
    for width in [8, 4] {
        let o = bench("search,search-absent,insert,scan", "keys", &of(500, width));
        assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    }
    for (bytes, words) in [
        (of(501, 8), "its count is 501 keys, and 4000 bytes follow"),
        (of(u64::MAX, 8), "keep to"),
        (vec![1, 2], "has 2 bytes"),
    ] {
        let o = bench("search", "bad", &bytes);
        assert_eq!(o.status.code(), Some(2));
        has(&text(&o.stderr), &["bad", words]);
    }
}

/// Results of long values are checked as those of short ones; a system that cannot hold them says
/// so.
#[test]
fn values_have_a_mebibyte_at_most() {
    let line = "bench quick --distributions uniform --workloads insert,update,scan --keys 8 --ops 4 --threads 2 --coroutines 1 --value-size 1MiB --quiet --systems";
    for fabric in ["local", "sim", "tcp"] {
        let of = |system| [&words(line)[..], &[system, "--fabric", fabric]].concat();
        ok(&of("dmtree"));
        if fabric == "local" {
            ok(&of("sherman,smart,chime,rolex,rpc"));
            refused(&of("fptree"), &["fptree", "1048576", "0 to 1024"]);
        }
    }
    refused(&["bench", "quick", "--value-size", "2MiB"], &["value size", "0..=1048576"]);
}

/// Everything that varies has a column and a place in the page.
#[test]
fn sweeps_vary_fields_of_profiles_load_seed_theta_and_options() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("r");
    const TINY: &str = "bench quick-sim --systems dmtree --workloads search --keys 2e3 --ops 500 --threads 2 --quiet";
    fn with(more: &str) -> Vec<&str> {
        [words(TINY), words(more)].concat()
    }
    let sweeps = "--sweep load=open:100k,open:0.2M --sweep seed=1,2 --sweep theta=0.5 --sweep profile.responder_ns.read=20,40 --sweep dmtree.fanout=16";
    let o = out.to_str().unwrap();
    ok(&[with(sweeps), vec!["--out", o]].concat());
    let table = std::fs::read_to_string(out.join("cells.csv")).unwrap();
    let swept =
        "swept_seed,swept_theta,swept_load,swept_dmtree.fanout,swept_profile.responder_ns.read";
    assert!(table.lines().next().unwrap().ends_with(swept), "{table}");
    assert_eq!(table.lines().count(), 9, "a head, and two of each of three");
    assert!(table.lines().last().unwrap().ends_with("2,0.5,open:200000,16,40"), "{table}");
    let r = results(&out);
    let hashes: Vec<_> =
        r["cells"].as_array().unwrap().iter().map(|c| &c["sim"]["trace_hash"]).collect();
    assert!(hashes.iter().enumerate().all(|(i, hash)| !hashes[..i].contains(hash)), "{hashes:?}");
    for (sweep, due) in [
        ("thread=1", "do you mean threads?"),
        ("profile.responder_ns.reed=1", "do you mean responder_ns.read?"),
        ("dmtree.fanuot=1", "do you mean fanout?"),
        ("theta=2000", "theta"),
        ("load=fast", "open:1.5M"),
        ("theta=x", "theta"),
        ("seed=x", "seed"),
    ] {
        refused(&[with("--sweep"), vec![sweep]].concat(), &[due]);
    }
    let local = "bench quick --systems dmtree --sweep profile.responder_ns.read=1";
    refused(&words(local), &["--fabric sim"]);
}

#[test]
fn the_shell_reads_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let dump = dir.path().join("s.dump");
    let d = dump.display();
    let o = fed(
        dmtree(&["shell"]),
        &format!(
            "put a 1\nput \"b c\" \\x00\\xff\ninsert a 2\nupdate z 1\ncas a 1 one\nget a\nget nope\nget \"b c\"\nscan * *\nrscan * * 1\nprefix b\ndump {d}\ndelete a\nscan * *\nload {d}\nget a\nstats\nhelp\nquit\nget never\n"
        ),
    );
    let out = text(&o.stdout);
    assert_eq!(o.status.code(), Some(0), "{}", text(&o.stderr));
    let lines: Vec<&str> = out.lines().take(20).collect();
    assert_eq!(
        lines,
        [
            "done",
            "done",
            "exists already",
            "not found",
            "done",
            "one",
            "not found",
            "\"\\x00\\xff\"",
            "a one",
            "\"b c\" \"\\x00\\xff\"",
            "(2)",
            "\"b c\" \"\\x00\\xff\"",
            "(1, and more)",
            "\"b c\" \"\\x00\\xff\"",
            "(1)",
            "2 pairs written",
            "done",
            "\"b c\" \"\\x00\\xff\"",
            "(1)",
            "2 pairs put"
        ]
    );
    assert!(out.contains("keys              2") && out.contains("rscan FROM TO"));
    assert!(!out.contains("never"));
}

#[test]
fn the_shell_goes_on_after_bad_lines_and_says_so() {
    let key = "k".repeat(1025);
    let o = fed(
        dmtree(&["shell"]),
        &format!(
            "frob\nget\nput \"\" x\nput {key} x\nput a \"open\nscan a b 0\nload /nowhere\n# fine\n\nput a 1\nget a\n"
        ),
    );
    let err = text(&o.stderr);
    assert_eq!(o.status.code(), Some(2));
    let first = ["line 1: unknown command", "line 2: use it as: get KEY", "line 3: the empty key"];
    has(&err, &first);
    has(&err, &["line 4: a key of 1025", "line 5: the quote", "line 6: "]);
    has(&err, &["line 7: cannot open /nowhere", "7 lines were bad"]);
    assert_eq!(text(&o.stdout), "done\n1\n");
}

#[test]
fn dumps_round_trip_any_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let (a, b) = (one.to_str().unwrap(), two.to_str().unwrap());
    ok(&["dump", "--keys", "3000", "--key-form", "random(3..=300)", "--value-size", "0..=3000", a]);
    for by in ["bulk", "put"] {
        ok(&["load", a, "--then-dump", b, "--load-by", by]);
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());
    }
    let good = std::fs::read_to_string(&one).unwrap();
    let cut = file(dir.path(), "cut", &good.as_bytes()[..good.len() / 2]);
    refused(&["load", &cut, "--then-dump", "/nowhere/x"], &["cut, line "]);
    let flipped = file(dir.path(), "flipped", good.replace("end 3000", "end 2999").as_bytes());
    refused(&["load", &flipped], &["flipped, line 3002"]);
    refused(&["load", a, "--then-dump", "/nowhere/x"], &["/nowhere"]);
    refused(&["dump", "--keys", "5", "/nowhere/x"], &["/nowhere/x"]);
    let out = ok(&["dump", "--keys", "2", "-"]);
    assert!(out.starts_with("dmtree-dump 1\n") && out.contains("\nend 2 "), "{out}");
    let empty = file(dir.path(), "empty", ok(&["dump", "--keys", "0", "-"]).as_bytes());
    ok(&["load", &empty]);
}

#[test]
fn completions_demo_help() {
    for (shell, word) in [("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete -c")] {
        assert!(ok(&["completions", shell]).contains(word), "{shell}");
    }
    refused(&["completions", "tcsh"], &["bash"]);
    let demo = ok(&["demo"]);
    assert!(demo.contains("get nutmeg") && demo.contains("10008 keys"), "{demo}");
    let recovered = "the lease of 8.0 ms ended, and the lock was recovered";
    assert!(demo.contains(recovered) && demo.contains("get                     whole"), "{demo}");
    assert!(ok(&["--help"]).contains("bench quick"));
    assert!(ok(&["bench", "--help"]).contains("--cache-bytes"));
    assert!(ok(&["load", "--help"]).contains("lives in the memory of this process"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_writes_what_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("r");
    let child = dmtree(&words(
        "bench quick --fabric local --systems dmtree --keys 5000 --duration 2 --out",
    ))
    .arg(&out)
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    // The first cell takes two seconds, and each after it as well.
    std::thread::sleep(Duration::from_millis(3500));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let o = child.wait_with_output().unwrap();
    assert_eq!(o.status.code(), Some(130), "{}", text(&o.stderr));
    let r = results(&out);
    assert_eq!(r["interrupted"], true);
    let n = r["cells"].as_array().unwrap().len();
    assert!((1..8).contains(&n), "{n}");
    assert!(out.join("simple_results_uniform.csv").exists());
    assert!(text(&o.stdout).contains("interrupted: only finished cells are shown"));
}

#[test]
fn profiles_are_listed_shown_and_started_from() {
    let list = ok(&["fabric", "list"]);
    assert!(list.contains("dmtree-artifact-100g") && list.contains("cxl2-pool"), "{list}");
    let shown = ok(&["fabric", "show", "cx6-200g"]);
    has(&shown, &["responder_ns.read", "Gb/s", "Smart", "conf."]);
    let dir = tempfile::tempdir().unwrap();
    let toml = ok(&["fabric", "show", "ideal", "--toml"]);
    let mine = file(dir.path(), "mine.toml", toml.as_bytes());
    assert!(ok(&["fabric", "show", &mine]).starts_with("ideal: "));
    refused(&["fabric", "show", "cx9"], &["cx9", "cx6-200g"]);
    let misspelt = file(dir.path(), "bad.toml", toml.replace("gbps", "gbsp").as_bytes());
    refused(&["fabric", "show", &misspelt], &["bad.toml", "link.gbsp", "link.gbps"]);
    let sim = ["bench", "quick-sim", "--systems", "dmtree", "--keys", "1000"];
    let with = |more: &[&'static str]| [&sim[..], more].concat();
    refused(&with(&["--set", "responder_ns.read=-3"]), &["responder_ns.read", "from 0"]);
    refused(&with(&["--set", "responder_ns.read"]), &["such as"]);
    refused(&with(&["--profile", "/nowhere/x.toml"]), &["/nowhere/x.toml"]);
    refused(&with(&["--budget", "5"]), &["--ops or --duration"]);
    refused(&with(&["--load", "open:x"]), &["open:1.5M"]);
    refused(&with(&["--sweep", "size"]), &["value-size"]);
    refused(&["bench", "quick", "--profile", "ideal"], &["--fabric sim"]);
    refused(&["bench", "quick", "--verify-determinism"], &["--fabric sim"]);
    refused(&["bench", "fast26", "--systems", "dlms"], &["dmtree-published"]);
}

/// A small simulation.
const SMALL: &str = "bench quick-sim --systems dmtree --keys 3000 --ops 2000 --workloads search,update --quiet --seed=9";

#[test]
fn simulations_repeat_and_say_so() {
    let text = ok(&[&words(SMALL)[..], &["--verify-determinism"]].concat());
    assert!(text.starts_with("2 cells: the same trace in three processes"), "{text}");
    assert!(text.contains("dmtree search uniform sim"), "{text}");
}

#[test]
fn a_run_is_resumed_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("r");
    let o = out.to_str().unwrap();
    let call = |more: &[&str]| run(&[&words(SMALL), more].concat());
    refused(&[&words(SMALL)[..], &["--resume", o]].concat(), &["no such directory", "--out"]);
    assert_eq!(call(&["--out", o]).status.code(), Some(0));
    let mut r = results(&out);
    let whole = r["cells"].as_array().unwrap().clone();
    // A finished cell with an impossible result shows that it is taken over.
    r["cells"][0]["mops"] = 12345.0.into();
    r["cells"].as_array_mut().unwrap().pop();
    file(&out, "results.json", r.to_string().as_bytes());
    assert_eq!(call(&["--resume", o]).status.code(), Some(0));
    let again = results(&out);
    assert_eq!(again["cells"][0]["mops"], 12345.0);
    assert_eq!(again["cells"].as_array().unwrap().len(), 2);
    assert_eq!(again["cells"][1]["workload"], whole[1]["workload"]);
    let other = [&words(SMALL), &["--resume", o, "--rounds", "2"][..]].concat();
    refused(&other, &["resume with the same settings"]);
}

#[test]
fn bounds_decide_the_status_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let e = file(
        dir.path(),
        "b.toml",
        b"description = \"bounds\"\nsystems = [\"dmtree\"]\nworkloads = [\"search\"]\ndistributions = [\"uniform\"]\nfabric = \"sim\"\nkeys = 3000\nops = 4000\npublished = \"fast26-micro\"\n\n[[bounds]]\nratio = [5.0, 9.0]\n",
    );
    let shown = ok(&["bench", &e, "--quiet"]);
    assert!(shown.contains("OUTSIDE 5.00..9.00") && shown.contains("49.70"), "{shown}");
    let o = run(&["bench", &e, "--quiet", "--check-bounds"]);
    assert_eq!(o.status.code(), Some(1), "{}", text(&o.stderr));
    assert!(text(&o.stderr).contains("1 cells lie outside"), "{}", text(&o.stderr));
}
