//! The commands about profiles of the simulated fabric, and about measuring real ones.

use dmtree_bench::probe::{self, Bench, Plan, Verb};
use dmtree_bench::profile;
use dmtree_bench::simulated::Profile;
use dmtree_bench::table::Table;
use dmtree_command::{Failure, Result};

use super::args::ProbeArgs;
use crate::output;

/// `fabric list`.
pub fn list() -> Result<()> {
    let mut t = Table::new(&["profile", "what", "how far to trust it"], 3);
    for name in Profile::names() {
        let p = profile::read(name)?;
        t.row(vec![p.name, p.description, p.trust]);
    }
    output::line(&t.text());
    output::line(
        "`dmtree fabric show NAME` shows every field; `dmtree bench fast26 --profile NAME --set FIELD=VALUE` uses them",
    );
    Ok(())
}

/// `fabric show`.
pub fn show(name: &str, toml: bool) -> Result<()> {
    let p = profile::read(name)?;
    if toml {
        output::out(&p.to_toml());
        return Ok(());
    }
    output::line(&format!("{}: {}\ntrust: {}\n", p.name, p.description, p.trust));
    let mut t = Table::new(
        &["field", "value", "unit", "range", "conf.", "meaning", "source of the artifact's value"],
        7,
    );
    for f in dmtree_fabric::sim::FIELDS {
        let value = p.get(f.path).map_or_else(|| "-".to_owned(), |v| v.to_string());
        t.row(vec![
            f.path.to_owned(),
            value,
            f.unit.to_owned(),
            format!("{}..{}", f.low, f.high),
            format!("{:?}", f.confidence),
            f.doc.to_owned(),
            f.source.to_owned(),
        ]);
    }
    output::line(&t.text());
    output::line(
        "confidence: A measured, B measured and stated or fitted, C derived or general knowledge, D a guess",
    );
    Ok(())
}

/// `fabric probe`.
pub fn probe(args: &ProbeArgs) -> Result<()> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(Failure::input(format!("--seconds is {}: give 0.01 to 3600", args.seconds)));
    }
    let base = profile::read(&args.base)?;
    if let Some(file) = &args.out
        && file.extension().is_none_or(|e| e != "toml")
    {
        return Err(Failure::input(format!(
            "--out {}: a profile's name ends with .toml",
            file.display()
        )));
    }
    let for_ns = (args.seconds * 1e9) as u64;
    let (fabric, what) = probe::open(&args.fabric, args.device.as_deref())?;
    output::note(&format!("{}: {what}", args.fabric));
    if let Some(verb) = &args.verb {
        let verb = match verb.as_str() {
            "read" => Verb::Read,
            "write" => Verb::Write,
            "cas" => Verb::Cas,
            "same-word" => Verb::SameWord,
            other => {
                return Err(Failure::input(format!(
                    "unknown verb {other:?}: give read, write, cas or same-word"
                )));
            }
        };
        let plan = Plan { verb, bytes: args.bytes, clients: args.clients, list: args.list, for_ns };
        let m = Bench::new(&*fabric, probe::FROM, probe::TO)?.run(plan)?;
        output::line(&format!(
            "{} of {} bytes: {:.0} per second, median {} ns, p99 {} ns",
            verb.name(),
            plan.bytes,
            m.rate(),
            m.median_ns,
            m.p99_ns
        ));
        return Ok(());
    }
    let mut probed = probe::run(&*fabric, probe::FROM, probe::TO, for_ns)?;
    let host = probed.host.insert(probe::measure_host(probe::HOST_BYTES, for_ns)?).lines();
    output::line(&probed.table());
    output::line(&format!(
        "data services on this machine's cores, as lines of a profile\n\n{host}"
    ));
    if let Some(file) = &args.out {
        let name = file.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let description =
            format!("measured by `dmtree fabric probe --fabric {}`: {what}", args.fabric);
        let text = probed.profile(&base, &name, &description).to_toml();
        std::fs::write(file, text).map_err(|e| Failure::file("write", file, &e))?;
        output::note(&format!(
            "wrote {0}: `dmtree bench quick-sim --profile {0}` uses it",
            file.display()
        ));
    }
    Ok(())
}
