//! The commands that measure, and those about results.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dmtree_bench::config::{Flags, Resolved, resolve};
use dmtree_bench::experiment::{BUILTIN, Experiment};
use dmtree_bench::replay::replay;
use dmtree_bench::results::{Cell, Machine};
use dmtree_bench::table::Table;
use dmtree_bench::{compare as comparison, files, registry, run, table};
use dmtree_command::fabrics::FABRICS;
use dmtree_command::{Failure, Result};
use dmtree_workload::Workload;

use super::args::{CompareArgs, Output, ReportArgs, TraceArgs};
use super::progress::Shown;
use super::verify;
use crate::output;

/// `bench NAME|FILE.toml`.
pub fn experiment(name: &str, flags: &Flags, o: &Output) -> Result<()> {
    let stop = crate::stop_flag(crate::Hangup::Ends)?;
    let resolved = resolve(&Experiment::find(name)?, flags)?;
    if o.verify_determinism {
        return verify::determinism(name, flags, &resolved, &stop);
    }
    if let Some(dir) = o.resume.as_deref().filter(|dir| !dir.is_dir()) {
        let why = "there is no such directory; --out starts a run and makes it";
        return Err(Failure::input(format!("--resume {}: {why}", dir.display())));
    }
    let place = o.resume.as_deref().or(o.out.as_deref());
    if let Some(seed) = o.first_seed {
        let mut other = resolved.clone();
        other.config.seed = seed;
        run::run(&other, &[], &stop, &mut run::Silent)?;
    }
    if let Some(first) = led_by(&resolved, flags, o)? {
        // What is impossible is refused before anything runs.
        run::preflight(&resolved)?;
        let dir = place.map(|dir| dir.join(&first.name));
        if let Some(dir) = place {
            files::prepare(dir)?;
        }
        one(&first, o, dir.as_deref(), &stop)?;
        output::out(&format!("\n{LOCAL_MEANS}\n\n"));
    }
    one(&resolved, o, place, &stop)
}

/// What the times of a table of the fabric local say.
const LOCAL_MEANS: &str = "Below: the same index code on memory of this process. Its counts hold anywhere; its times are those of this machine's CPU, without any network.";

/// The experiment that comes first, with what the command line says about systems, workloads,
/// distributions, keys and the seed. None when the command line asks for a fabric, or for JSON, of
/// which there is one text only.
fn led_by(r: &Resolved, flags: &Flags, o: &Output) -> Result<Option<Resolved>> {
    let Some(name) = &r.led_by else { return Ok(None) };
    if flags.has("fabric") || o.json || flags.has("sweep") {
        return Ok(None);
    }
    let e = Experiment::find(name)?;
    let same = ["systems", "workloads", "distributions", "seed"];
    let mut words = flags.words(|flag| same.contains(&flag));
    if flags.has("keys") {
        let most = if e.gives("keys") { e.config.keys } else { u64::MAX };
        words.push(format!("--keys={}", r.config.keys.min(most)).into());
    }
    resolve(&e, &Flags::of(&words)?).map(Some)
}

/// The finished cells of a directory to go on with; none when there are no results yet.
fn finished(dir: &Path, r: &Resolved) -> Result<Vec<Cell>> {
    if !dir.join("results.json").exists() {
        return Ok(Vec::new());
    }
    let have = files::read_results(dir)?;
    comparison::resumable(&have, r).map_err(|e| e.context(&dir.display().to_string()))
}

/// Runs an experiment and shows what came out.
fn one(
    resolved: &Resolved,
    o: &Output,
    place: Option<&Path>,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    run::preflight(resolved)?;
    let earlier = match &o.resume {
        Some(_) => finished(place.unwrap_or(Path::new(".")), resolved)?,
        None => Vec::new(),
    };
    let fresh = place.filter(|dir| !dir.exists());
    if let Some(dir) = place {
        files::prepare(dir)?;
    }
    let header = table::header(resolved, &Machine::here());
    if o.json {
        if !o.quiet {
            output::note(header.trim_end());
        }
    } else {
        output::out(&header);
    }
    if !earlier.is_empty() && !o.quiet {
        output::note(&format!("{} finished cells are taken over", earlier.len()));
    }
    let mut shown = Shown::new(o.quiet).keeping(place);
    let outcome = run::run(resolved, &earlier, stop, &mut shown);
    shown.finish();
    let outcome = outcome?;
    let r = &outcome.results;
    // Without a finished cell there is nothing to write, and nothing to show.
    if let (true, Some(failure)) = (r.cells.is_empty(), &outcome.failure)
        && *failure != Failure::Interrupted
    {
        if let Some(dir) = fresh {
            // It is empty, unless another process uses it.
            let _ = std::fs::remove_dir(dir);
        }
        return Err(failure.clone());
    }
    if o.json {
        output::out(&r.to_json());
    } else {
        output::out(&format!("\n{}", table::render(r)));
    }
    if let Some(dir) = place {
        say_written(&files::write_all(dir, r)?, o);
    }
    if let Some(failure) = outcome.failure {
        return Err(failure);
    }
    match (r.errors(), r.outside().len()) {
        (0, 0) => Ok(()),
        (0, _) if !o.check_bounds => Ok(()),
        (0, n) => Err(Failure::violation(format!(
            "{n} cells lie outside of the bounds of their ratio to the published figures, see above"
        ))),
        (n, _) => {
            Err(Failure::violation(format!("{n} wrong results or failed operations, see above")))
        }
    }
}

fn say_written(written: &[PathBuf], o: &Output) {
    if o.quiet {
        return;
    }
    let names: Vec<String> = written.iter().map(|p| p.display().to_string()).collect();
    output::note(&format!("written: {}", names.join(", ")));
}

/// `bench list`.
pub fn list(json: bool) -> Result<()> {
    if json {
        output::line(&serde_json::to_string_pretty(&registry::listing()?).unwrap_or_default());
        return Ok(());
    }
    let mut t = Table::new(&["experiment", "what for"], 2);
    for (name, _) in BUILTIN.iter().copied() {
        let e = Experiment::find(name)?;
        t.row(vec![name.to_owned(), e.config.description]);
    }
    output::line(&t.text());
    let mut t = Table::new(&["system", "family", "what"], 3);
    for s in registry::systems() {
        let mark = if s.published { " (as published)" } else { "" };
        t.row(vec![s.name.to_owned(), s.family.to_owned(), format!("{}{mark}", s.description)]);
    }
    output::line(&t.text());
    output::line(&format!("workloads      {}", Workload::names().collect::<Vec<_>>().join(", ")));
    output::line("distributions  uniform, zipfian-exact(THETA), zipfian-ycsb(THETA), latest");
    output::line(&format!("fabrics        {}", FABRICS.join(", ")));
    Ok(())
}

/// `bench trace`.
pub fn trace(a: &TraceArgs) -> Result<()> {
    let stop = crate::stop_flag(crate::Hangup::Ends)?;
    let mut shown = Shown::new(a.quiet);
    let report = replay(&a.replay, &stop, &mut |done, of| shown.simple(&a.replay.system, done, of));
    shown.finish();
    let report = report?;
    let json = serde_json::to_string_pretty(&report).unwrap_or_default() + "\n";
    output::out(if a.json { &json } else { "" });
    if !a.json {
        output::out(&report.text());
    }
    if let Some(dir) = &a.out {
        files::prepare(dir)?;
        files::write_atomically(&dir.join("trace.json"), json.as_bytes())?;
    }
    match (report.interrupted, report.mismatches) {
        (true, _) => Err(Failure::Interrupted),
        (_, 0) => Ok(()),
        (_, n) => Err(Failure::violation(format!("{n} mismatches with the trace"))),
    }
}

/// `compare A B`.
pub fn compare(a: &CompareArgs) -> Result<()> {
    if !(a.tolerance.is_finite() && a.tolerance >= 0.0) {
        return Err(Failure::input(format!("--tolerance is {}: give a percentage", a.tolerance)));
    }
    let (first, second) = (files::read_results(&a.a)?, files::read_results(&a.b)?);
    let c = comparison::compare(&first, &second, a.tolerance / 100.0);
    if first.config_hash != second.config_hash {
        output::note("note: the two were run with different settings");
    }
    output::out(&c.text());
    if c.rows.is_empty() {
        return Err(Failure::input("the two have no cell in common"));
    }
    if c.differs() {
        return Err(Failure::violation(format!("counters differ by more than {} %", a.tolerance)));
    }
    Ok(())
}

/// `report DIR`.
pub fn report(a: &ReportArgs) -> Result<()> {
    let r = files::read_results(&a.dir)?;
    let dir =
        if a.dir.is_dir() { a.dir.as_path() } else { a.dir.parent().unwrap_or(Path::new(".")) };
    if !a.quiet {
        output::out(&table::render(&r));
    }
    for path in files::render_all(dir, &r)? {
        if !a.quiet {
            output::note(&format!("written: {}", path.display()));
        }
    }
    Ok(())
}

/// `config show`.
pub fn show_config(name: &str, flags: &Flags, json: bool) -> Result<()> {
    let r = resolve(&Experiment::find(name)?, flags)?;
    if json {
        let value = serde_json::json!({ "experiment": r.name, "config": r.config, "origins": r.origins, "config_hash": r.config.hash() });
        output::line(&serde_json::to_string_pretty(&value).unwrap_or_default());
        return Ok(());
    }
    let mut t = Table::new(&["setting", "value", "from"], 3);
    for (key, value, origin) in r.rows() {
        t.row(vec![key, value, origin.to_string()]);
    }
    output::out(&t.text());
    Ok(())
}
