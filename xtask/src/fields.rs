//! `fields`: the tables of `docs/experiments.md`, made of the structs that read experiment files,
//! and of the table of a profile's fields.
//!
//! The sources are read as text: a field is its documentation, its attributes and its declaration.
//! Structs that this reader does not understand give tables without fields, which it refuses.

use anyhow::{Context, Result, bail, ensure};

use crate::root;

/// The document with the tables.
const DOCUMENT: &str = "docs/experiments.md";

/// What a table is made of: its name in the document, the file, and the line that begins it.
const TABLES: [(&str, &str, &str); 6] = [
    ("settings", "lab/bench/src/config.rs", "pub struct Config {"),
    ("where", "lab/bench/src/settings.rs", "pub struct CellSettings {"),
    ("sweep", "lab/bench/src/sweep.rs", "pub struct Sweep {"),
    ("sweep", "lab/bench/src/sweep.rs", "swept! {"),
    ("bounds", "lab/bench/src/published.rs", "pub struct Bound {"),
    ("workload", "lab/workload/src/mix.rs", "struct Custom {"),
];

/// The fields of a profile.
const PROFILE: (&str, &str, &str) = ("profile", "crates/fabric/src/sim/fields.rs", "fields! {");

/// A field of a struct.
#[derive(Debug, Default, PartialEq)]
struct Field {
    name: String,
    flag: Option<String>,
    default: String,
    about: String,
}

/// The columns of the long table of a run.
const CSV: (&str, &str, &str) = ("csv", "lab/bench/src/csv.rs", "const COLUMNS: ");

/// Compares the tables with the sources; `--update` writes them.
pub fn compare(args: &[String]) -> Result<()> {
    let update = match args {
        [] => false,
        [flag] if flag == "--update" => true,
        _ => bail!("fields [--update]"),
    };
    let path = root().join(DOCUMENT);
    let before = std::fs::read_to_string(&path)?;
    let mut after = before.clone();
    let mut names: Vec<&str> = TABLES.iter().map(|(name, ..)| *name).collect();
    names.dedup();
    for name in names {
        let mut fields = Vec::new();
        for (_, file, begin) in TABLES.iter().filter(|(table, ..)| *table == name) {
            let source = std::fs::read_to_string(root().join(file))?;
            let more = fields_of(&source, begin).with_context(|| format!("{file}: {begin}"))?;
            fields.extend(more);
        }
        after = replaced(&after, name, &table(&fields))?;
    }
    let (name, file, begin) = PROFILE;
    let source = std::fs::read_to_string(root().join(file))?;
    after = replaced(&after, name, &profile_table(body(&source, begin).context(file)?)?)?;
    let (name, file, begin) = CSV;
    let source = std::fs::read_to_string(root().join(file))?;
    after = replaced(&after, name, &csv_table(&source, begin).context(file)?)?;
    if update {
        std::fs::write(path, after)?;
    } else {
        ensure!(after == before, "{DOCUMENT} differs from the code: cargo xtask fields --update");
    }
    Ok(())
}

/// The document with another table of this name.
fn replaced(document: &str, name: &str, table: &str) -> Result<String> {
    let mark = format!("<!-- fields: {name} -->\n");
    let (head, rest) = document.split_once(&mark).with_context(|| format!("no {mark}"))?;
    let (_, tail) = rest.split_once("<!-- end -->").context("a table does not end")?;
    Ok(format!("{head}{mark}{table}<!-- end -->{tail}"))
}

/// The lines between a line and the bracket that closes it.
fn body<'a>(source: &'a str, begin: &str) -> Option<&'a str> {
    let at = source.find(begin)?;
    let line = source[..at].rfind('\n').map_or(0, |i| i + 1);
    let indent = &source[line..at];
    let inside = &source[at + begin.len()..];
    let end = inside.find(&format!("\n{indent}}}"))?;
    Some(&inside[..=end])
}

/// The fields that a file may have.
fn fields_of(source: &str, begin: &str) -> Result<Vec<Field>> {
    let (mut out, mut about, mut attributes) = (Vec::new(), String::new(), String::new());
    let mut lines = body(source, begin).context("it is not there")?.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("///") {
            about += text;
        } else if line.starts_with("#[") {
            attributes += line;
        } else if let Some((name, rest)) = line.split_once(": ") {
            let name = name.trim_start_matches("pub ");
            if name.starts_with('$') || !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let mut rest = rest.to_owned();
            while !rest.ends_with(',') {
                rest += lines.next().context("a field that does not end")?.trim();
            }
            let is_read =
                !["serde(skip)", "skip_deserializing"].iter().any(|s| attributes.contains(s));
            if is_read {
                out.push(field(source, name, &rest, (about.trim(), &attributes)));
            }
            (about, attributes) = Default::default();
        }
    }
    ensure!(!out.is_empty(), "no field was understood");
    Ok(out)
}

fn field(source: &str, name: &str, rest: &str, (about, attributes): (&str, &str)) -> Field {
    let quoted = |word: &str| {
        let (_, behind) = attributes.split_once(word)?;
        behind.split('"').nth(1).map(str::to_owned)
    };
    let renamed = attributes.contains("rename").then(|| quoted("rename")).flatten();
    let name = renamed.unwrap_or_else(|| name.replace('_', "-"));
    let flag = match attributes.contains("arg(") && !attributes.contains("arg(skip)") {
        true if attributes.contains("long = ") => quoted("long = "),
        true => Some(name.clone()),
        false => None,
    };
    let default = rest.trim_end_matches(',').split_once(" = ").map(|(_, value)| value);
    let default = default.map(|value| value.split(" => ").next().unwrap_or(value));
    let default = default.map(|value| shown(source, value)).unwrap_or_default();
    Field { name, flag, default, about: about.to_owned() }
}

/// A default as it stands in a file.
fn shown(source: &str, value: &str) -> String {
    let texts: Vec<&str> = value.split('"').skip(1).step_by(2).collect();
    if !texts.is_empty() {
        return texts.join(", ");
    }
    if ["None", "String::new()", "Vec::new()", "BTreeMap::new()"].contains(&value)
        || value.ends_with("::default()")
    {
        return String::new();
    }
    let constant = value.trim_end_matches(".to_owned()");
    let declared = source.split_once(&format!("const {constant}: "));
    if let Some(found) = declared.and_then(|(_, rest)| rest.split(['=', ';']).nth(1)) {
        return found.trim().to_owned();
    }
    let inside = value.split_once('(').map(|(_, rest)| rest.trim_end_matches(')'));
    let inside = inside.filter(|text| !text.is_empty());
    inside.unwrap_or_else(|| constant.rsplit("::").next().unwrap_or(value)).to_lowercase()
}

/// As Markdown: names, flags where there are any, defaults where there are any, meanings.
fn table(fields: &[Field]) -> String {
    let (flags, defaults) =
        (fields.iter().any(|f| f.flag.is_some()), fields.iter().any(|f| !f.default.is_empty()));
    let mut rows = vec![["key", "flag", "by default", "what"].map(str::to_owned)];
    rows.push(["---"; 4].map(str::to_owned));
    for f in fields {
        let code = |text: &str| match text {
            "" => String::new(),
            text => format!("`{text}`"),
        };
        let flag = f.flag.as_ref().map(|flag| format!("`--{flag}`")).unwrap_or_default();
        let about = f.about.replace('|', "\\|");
        rows.push([format!("`{}`", f.name), flag, code(&f.default), about]);
    }
    let line = |[name, flag, default, about]: &[String; 4]| {
        let mut cells = vec![name.as_str()];
        cells.extend(flags.then_some(flag.as_str()));
        cells.extend(defaults.then_some(default.as_str()));
        cells.push(about);
        format!("| {} |\n", cells.join(" | "))
    };
    rows.iter().map(line).collect()
}

/// The columns of a CSV table: name, meaning.
fn csv_table(source: &str, begin: &str) -> Result<String> {
    let (_, rest) = source.split_once(begin).context("no columns")?;
    let lines = rest.lines().map(str::trim).take_while(|line| *line != "];");
    let mut out = String::from("| column | what |\n|---|---|\n");
    for line in lines.filter(|line| line.starts_with('(')) {
        let texts: Vec<&str> = line.split('"').collect();
        let [_, name, _, about, ..] = &texts[..] else { bail!("{line}") };
        out += &format!("| `{name}` | {about} |\n");
    }
    ensure!(out.lines().count() > 2, "no column was understood");
    Ok(out)
}

/// The fields of a profile: name, unit, range, meaning, confidence.
fn profile_table(lines: &str) -> Result<String> {
    let mut out =
        String::from("| field | unit | range | what | confidence |\n|---|---|---|---|---|\n");
    let mut count = 0;
    for line in lines.lines().map(str::trim).filter(|line| line.starts_with('"')) {
        let texts: Vec<&str> = line.split('"').collect();
        let [_, name, _, unit, middle, ..] = &texts[..] else { bail!("{line}") };
        let about = texts[texts.len() - 2];
        let mut middle = middle.trim_matches([',', ' ']).split(", ");
        let (range, trust) = (middle.next().context("a range")?, middle.next().context("A to D")?);
        let range = range.replace(" ..= ", " to ");
        out += &format!("| `{name}` | {unit} | {range} | {about} | {trust} |\n");
        count += 1;
    }
    ensure!(count > 0, "no field of a profile was understood");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "const MANY: u32 = 64;\nstruct A {\n    /// What it is\n    /// for.\n    #[arg(long, value_name = \"N\")]\n    one_two: u32 = MANY,\n    /// Hidden.\n    #[serde(skip)]\n    none: u8,\n    /// Names.\n    #[arg(skip)]\n    #[serde(rename = \"where\", default)]\n    cells: Vec<C> = each(&[\"a\", \"b\"]),\n}\n";

    #[test]
    fn a_field_is_its_documentation_and_its_declaration() {
        let fields = fields_of(SOURCE, "struct A {").expect("fields");
        let shown: Vec<_> = fields
            .iter()
            .map(|f| (f.name.as_str(), f.flag.as_deref(), f.default.as_str()))
            .collect();
        assert_eq!(shown, [("one-two", Some("one-two"), "64"), ("where", None, "a, b")]);
        assert_eq!(fields[0].about, "What it is for.");
        assert!(fields_of("struct A {\n}\n", "struct A {").is_err());
        assert!(fields_of(SOURCE, "struct B {").is_err());
    }

    /// A field that is new, or that means something else, is in the document.
    #[test]
    fn the_document_has_the_fields_of_the_code() {
        compare(&[]).expect("the same");
    }
}
