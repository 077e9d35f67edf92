//! `check`: seeds of the adversarial simulator, and what went wrong in as few words as possible.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dmtree_bench::clock;
use dmtree_bench::registry::{self, find, select};
use dmtree_check::NodeFaultSet;
use dmtree_check::campaign::{Campaign, Tally, smallest};
use dmtree_check::case::Case;
use dmtree_check::checked::{granted, grants};
use dmtree_check::file;
use dmtree_check::trace::trace;
use dmtree_check::verdict::keep_panics;
use dmtree_command::{Failure, Result};
use dmtree_parts::peer::Setting;

use super::args::CheckArgs;
use super::{exhaustive, network};
use crate::output;

/// Seeds when neither seeds nor minutes are given.
const USUAL_SEEDS: u64 = 200;
/// A line of progress at most this often.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// Violations that are named one by one.
const MOST_NAMED: usize = 10;
/// Time for making a case small when none is given, s.
const SHRINK_SECONDS: f64 = 30.0;

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<()> {
    if let Some(path) = &args.check_history {
        return check_history(args, path);
    }
    keep_panics();
    let stop = crate::stop_flag(crate::Hangup::Ends)?;
    if args.network {
        return network::run(args, &stop);
    }
    if args.exhaustive {
        return exhaustive::run(args, &stop);
    }
    match &args.replay {
        Some(what) => replay(args, what, &stop),
        None => seeds(args, &stop),
    }
}

fn seeds(args: &CheckArgs, stop: &Arc<AtomicBool>) -> Result<()> {
    let campaign = Campaign {
        systems: select(&args.systems())?,
        seeds: args.seeds(USUAL_SEEDS),
        setting: setting(args)?,
        twice: args.verify_determinism,
        until: args.until()?,
        threads: args.threads(),
        stop: stop.clone(),
    };
    let spared: Vec<&str> =
        campaign.systems.iter().filter(|s| !s.recovers).map(|s| s.name).collect();
    if campaign.setting.node_faults != NodeFaultSet::None && !spared.is_empty() {
        output::note(&format!(
            "{}: run without faults; published without recovery from crashes",
            spared.join(", ")
        ));
    }
    let mut told = Told { at: clock::now(), violations: 0, stopping: false };
    let tally = campaign.run(&mut |t| {
        waits(t, stop, &mut told);
        progress(args, t, &mut told);
    })?;
    let found = match tally.violations.first() {
        Some(first) => {
            let system = find(&first.system)?;
            let case = system.case(first.seed, &system.spared(&campaign.setting));
            Some(smaller(args, &case, SHRINK_SECONDS, stop)?)
        }
        None => None,
    };
    if args.json {
        let mut value = serde_json::to_value(&tally).unwrap_or_default();
        value["seeds_per_second"] = tally.rate().into();
        value["grants"] = granted(&campaign.setting.grants).into();
        value["minimal"] = found.as_ref().map_or(serde_json::Value::Null, Found::json);
        output::line(&serde_json::to_string_pretty(&value).unwrap_or_default());
        output::note(&tally.line());
    } else {
        output::out(&text(&tally));
        if let Some(found) = &found {
            output::line(&found.text());
        }
        output::line(&tally.line());
    }
    ended(tally.violations.len(), stop)
}

/// What surrounds the seeds.
fn setting(args: &CheckArgs) -> Result<Setting> {
    let (grants, node_faults) = (grants(&args.grant)?, args.node_faults);
    Ok(Setting { grants, node_faults, ..Setting::default() })
}

/// The verdict on seeds, unless the user has ended them.
pub fn ended(violations: usize, stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    verdict(violations)
}

fn verdict(violations: usize) -> Result<()> {
    match violations {
        0 => Ok(()),
        1 => Err(Failure::violation("1 violation")),
        n => Err(Failure::violation(format!("{n} violations"))),
    }
}

/// What has been said of a campaign: when, and how many violations.
struct Told {
    at: Instant,
    violations: usize,
    /// That it stops, and what it waits for.
    stopping: bool,
}

/// Says which seeds a campaign waits for that is to stop.
fn waits(t: &Tally, stop: &AtomicBool, told: &mut Told) {
    if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut told.stopping, true) {
        let running: Vec<_> =
            t.running.iter().map(|(seed, of)| format!("{seed} of {of}")).collect();
        output::note(&format!("waits for the end of seed {}", running.join(", ")));
    }
}

fn progress(args: &CheckArgs, t: &Tally, told: &mut Told) {
    if args.quiet {
        return;
    }
    // The replay comes at the end, which may be hours away.
    for v in &t.violations[told.violations.min(t.violations.len())..] {
        output::note(&format!("violation: {} seed {}: {}", v.system, v.seed, v.what));
    }
    told.violations = t.violations.len();
    if clock::now() - told.at < TELL_EVERY {
        return;
    }
    told.at = clock::now();
    output::note(&format!("{}, {:.1} seeds per second", t.line(), t.rate()));
}

/// How often each fabric fault was drawn, and what went wrong.
fn text(t: &Tally) -> String {
    let mut out = format!(
        "{:.1} seeds per second, {:.3} s of virtual time\nfabric faults drawn:\n",
        t.rate(),
        t.virtual_ns as f64 / 1e9
    );
    for (name, values) in &t.fabric_faults {
        let mut values: Vec<(&String, &u64)> = values.iter().collect();
        values.sort_by_key(|(value, _)| (value.parse::<u64>().unwrap_or(0), (*value).clone()));
        let list: Vec<String> = values.iter().map(|(v, n)| format!("{v}: {n}")).collect();
        out.push_str(&format!("  {name:16} {}\n", list.join(", ")));
    }
    out.push_str(&node_faults(t));
    out.push_str(&marks(t));
    for v in t.violations.iter().take(MOST_NAMED) {
        out.push_str(&format!(
            "violation: {} seed {} ({}): {}\n",
            v.system, v.seed, v.kind, v.what
        ));
    }
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    t.violations.iter().for_each(|v| *kinds.entry(&v.kind).or_default() += 1);
    if !kinds.is_empty() {
        let list: Vec<String> = kinds.iter().map(|(kind, n)| format!("{kind}: {n}")).collect();
        out.push_str(&format!("violations by kind: {}\n", list.join(", ")));
    }
    if t.violations.len() > MOST_NAMED {
        out.push_str(&format!("... and {} more\n", t.violations.len() - MOST_NAMED));
    }
    out
}

/// How often which fault was drawn, and happened.
fn node_faults(t: &Tally) -> String {
    if t.with_faults == 0 {
        return String::new();
    }
    let mut out = format!(
        "faults: inside an operation in {} of {} seeds; operations that they made fail: {}\n",
        t.inside, t.with_faults, t.excused
    );
    out.push_str(&format!(
        "operations beside a fault that did not touch their leaf: {} gets and {} writes, judged by their bound\n",
        t.available.gets, t.available.writes
    ));
    for (kind, n) in &t.node_faults {
        out.push_str(&format!(
            "  {kind:20} drawn {}, happened {}, inside an operation {}\n",
            n.drawn, n.happened, n.inside
        ));
    }
    out
}

/// The rare branches that were taken, and those that never were.
fn marks(t: &Tally) -> String {
    let reached: Vec<_> = t.marks.iter().filter(|(_, hits)| **hits > 0).collect();
    let never: Vec<&str> =
        t.marks.iter().filter(|(_, hits)| **hits == 0).map(|(name, _)| name.as_str()).collect();
    if t.marks.is_empty() {
        return String::new();
    }
    let mut out = format!("marks reached: {} of {}\n", reached.len(), t.marks.len());
    for (name, hits) in reached {
        out.push_str(&format!("  {hits:>9}  {name}\n"));
    }
    if !never.is_empty() {
        out.push_str(&format!("marks never reached: {}\n", never.join("; ")));
    }
    out
}

/// What went wrong, small.
struct Found {
    minimal: Case,
    trace: String,
    runs: u64,
    command: String,
}

impl Found {
    fn text(&self) -> String {
        let c = &self.minimal;
        format!(
            "\nsmallest case after {} runs: {} operations of {} clients on {} keys\n{}\n\nas a file of lab/bench/tests/suite/regressions:\n\n{}\n\nreplay: {}",
            self.runs,
            c.operations(),
            (0..c.total()).filter(|n| !c.numbers_of(*n).is_empty()).count(),
            c.keys,
            self.trace,
            c.to_json(),
            self.command
        )
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "case": self.minimal,
            "trace": self.trace,
            "replay": self.command,
        })
    }
}

/// Makes a case that goes wrong small, and writes it where the user wants it.
fn smaller(args: &CheckArgs, case: &Case, usual: f64, stop: &AtomicBool) -> Result<Found> {
    let seconds = args.shrink_seconds.unwrap_or(usual);
    if !(seconds.is_finite() && (0.0..=1e6).contains(&seconds)) {
        return Err(Failure::input(format!("--shrink-seconds {seconds}: give 0 to 1000000")));
    }
    if !args.quiet && seconds > 0.0 {
        output::note(&format!("making seed {} of {} small", case.seed, case.system));
    }
    let system = find(&case.system)?;
    let s =
        smallest((&system, args.verify_determinism), case, Duration::from_secs_f64(seconds), stop)?;
    if let Some(path) = &args.save {
        write(path, &(s.case.to_json() + "\n"))?;
    }
    Ok(Found {
        trace: trace(&s.case, &s.verdict),
        minimal: s.case,
        runs: s.runs,
        command: command(args, case),
    })
}

/// The command that runs a seed or a file again.
fn command(args: &CheckArgs, case: &Case) -> String {
    if let (Some(file), Some(_)) = (&args.replay, &case.kept) {
        return format!("dmtree check --replay {file}");
    }
    let grants = granted(&case.grants);
    let grant =
        if grants.is_empty() { String::new() } else { format!(" --grant {}", grants.join(",")) };
    let node_faults = match args.node_faults {
        NodeFaultSet::None => String::new(),
        faults => format!(" --node-faults {}", faults.name()),
    };
    format!(
        "dmtree check --system {}{grant}{node_faults} --replay {}:{:08x}",
        case.system,
        case.seed,
        case.fingerprint()
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Failure::file("write", path, &e))
}

fn replay(args: &CheckArgs, what: &str, stop: &Arc<AtomicBool>) -> Result<()> {
    let (case, usual) = match what.split_once(':').unwrap_or((what, "")) {
        (seed, fingerprint) if !seed.is_empty() && seed.bytes().all(|b| b.is_ascii_digit()) => {
            (seed_case(args, seed, fingerprint)?, SHRINK_SECONDS)
        }
        _ => (file_case(args, Path::new(what))?, 0.0),
    };
    let v = registry::check(&case)?;
    if let Some(path) = &args.history {
        write(path, &file::write(&v.log))?;
    }
    let line = format!(
        "{} seed {}: {} operations, {:.3} ms of virtual time, trace {:016x}",
        case.system,
        case.seed,
        v.operations,
        v.virtual_ns as f64 / 1e6,
        v.trace_hash
    );
    let violations = usize::from(v.finding.is_some());
    let found = match &v.finding {
        Some(_) => Some(smaller(args, &case, usual, stop)?),
        None => None,
    };
    let end = format!("seeds 1 operations {} violations {violations}", v.operations);
    if args.json {
        let value = serde_json::json!({
            "case": case,
            "operations": v.operations,
            "virtual_ns": v.virtual_ns,
            "trace_hash": format!("{:016x}", v.trace_hash),
            "finding": v.finding.as_ref().map(|f| f.to_string()),
            "minimal": found.as_ref().map(Found::json),
        });
        output::line(&serde_json::to_string_pretty(&value).unwrap_or_default());
        output::note(&end);
    } else {
        output::line(&line);
        if let Some(finding) = &v.finding {
            output::line(&format!("violation ({}): {finding}", finding.kind()));
        }
        if let Some(found) = &found {
            output::line(&found.text());
        }
        output::line(&end);
    }
    verdict(violations)
}

/// Checks what a file says that clients saw.
fn check_history(args: &CheckArgs, path: &Path) -> Result<()> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    let at = path.display().to_string();
    let log = file::read(&text).map_err(|e| Failure::from(e).context(&at))?;
    let wrong = log.check().err();
    let operations = log.records().len();
    if args.json {
        let wrong = wrong.as_ref().map(ToString::to_string);
        let value = serde_json::json!({ "operations": operations, "violation": wrong });
        output::line(&value.to_string());
    } else {
        match &wrong {
            None => output::line(&format!("{operations} operations: linearizable key by key")),
            Some(wrong) => output::line(&format!("violation: {wrong}")),
        }
    }
    verdict(usize::from(wrong.is_some()))
}

/// The case of a seed. With a fingerprint it must be the one that was meant.
fn seed_case(args: &CheckArgs, seed: &str, fingerprint: &str) -> Result<Case> {
    let seed = seed.parse().map_err(|_| Failure::input(format!("--replay {seed}: no seed")))?;
    let systems = select(&args.systems())?;
    let [system] = &systems[..] else {
        return Err(Failure::input("--replay runs one seed of one system: name it with --system"));
    };
    let case = system.case(seed, &system.spared(&setting(args)?));
    let have = format!("{:08x}", case.fingerprint());
    if !fingerprint.is_empty() && fingerprint != have {
        return Err(Failure::input(format!(
            "seed {seed} of {} is another case here ({have}, not {fingerprint}): it was drawn by another version, or with another --grant or --node-faults",
            system.name
        )));
    }
    Ok(case)
}

/// A case from a file, which must not contradict what else is given.
fn file_case(args: &CheckArgs, path: &Path) -> Result<Case> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file("read", path, &e))?;
    let at = path.display().to_string();
    let case = Case::parse(&text).map_err(|e| Failure::from(e).context(&at))?;
    if let Some(systems) = &args.system
        && *systems != [case.system.clone()]
    {
        return Err(Failure::input(format!(
            "{at} is a case of {}, not of {}: leave --system out",
            case.system,
            systems.join(",")
        )));
    }
    if !args.grant.is_empty() && grants(&args.grant)? != case.grants {
        let have = granted(&case.grants);
        let have = if have.is_empty() { "nothing".to_owned() } else { have.join(",") };
        return Err(Failure::input(format!(
            "{at} is a case that grants {have}: leave --grant out"
        )));
    }
    Ok(case)
}
