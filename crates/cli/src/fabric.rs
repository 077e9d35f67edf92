//! The commands about profiles of the simulated fabric.

use dmtree_bench::Result;
use dmtree_bench::profile;
use dmtree_bench::simulated::Profile;
use dmtree_bench::table::Table;

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
    for f in Profile::fields() {
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
