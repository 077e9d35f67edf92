//! `book`: the pages of `docs/` as a book. Every page must be in its summary, and every link of a
//! document of the repository must lead to something: that is checked whether or not `mdbook` is
//! installed.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{root, run, succeeds, tracked};

const SUMMARY: &str = "docs/SUMMARY.md";

/// A link of a document, to a file of the repository or a heading.
#[derive(Debug, PartialEq)]
struct Link<'a> {
    target: &'a str,
    heading: Option<&'a str>,
}

/// Checks the links, and builds the book where `mdbook` is installed.
#[expect(clippy::disallowed_macros, reason = "a skip is loud")]
pub fn build(_: &[String]) -> Result<()> {
    let listed = tracked()?;
    let documents: Vec<&str> = listed.lines().filter(|file| file.ends_with(".md")).collect();
    let mut problems = not_in_the_summary(&documents, &read(SUMMARY)?);
    let mut links = 0;
    for document in &documents {
        let text = read(document)?;
        for link in links_of(&text) {
            links += 1;
            problems.extend(leads_nowhere(document, &text, &link));
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    println!("book: {} documents, {links} links", documents.len());
    if !succeeds("mdbook", ["--version"]) {
        println!("SKIPPED: the book was not built: cargo install --locked mdbook");
        return Ok(());
    }
    let place = root().join("target/book");
    copy(&documents, &place)?;
    run(Command::new("mdbook").arg("build").arg(&place))?;
    println!("book: {}", place.join("book/index.html").display());
    Ok(())
}

fn read(file: &str) -> Result<String> {
    std::fs::read_to_string(root().join(file)).with_context(|| file.to_owned())
}

/// Pages of `docs/` that the summary does not name.
fn not_in_the_summary(documents: &[&str], summary: &str) -> Vec<String> {
    let named: BTreeSet<&str> = links_of(summary).map(|link| link.target).collect();
    let pages = documents.iter().filter_map(|file| file.strip_prefix("docs/"));
    let missing = pages.filter(|page| *page != "SUMMARY.md" && !named.contains(page));
    missing.map(|page| format!("{SUMMARY} does not name {page}")).collect()
}

/// The links of a document: `[text](target)` outside of code. Links to other hosts are none of
/// them.
fn links_of(text: &str) -> impl Iterator<Item = Link<'_>> {
    let mut in_code = false;
    let lines = text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !fence && !in_code
    });
    let links = lines.flat_map(|line| line.split("](").skip(1));
    let targets = links.filter_map(|rest| rest.split([')', ' ']).next());
    let inside = targets.filter(|t| !t.is_empty() && !t.contains("://") && !t.contains("::"));
    inside.map(|target| match target.split_once('#') {
        Some((target, heading)) => Link { target, heading: Some(heading) },
        None => Link { target, heading: None },
    })
}

/// What is wrong with a link.
fn leads_nowhere(document: &str, text: &str, link: &Link<'_>) -> Option<String> {
    let path = inside(document, link.target);
    if !link.target.is_empty() && !root().join(&path).exists() {
        return Some(format!("{document}: there is no {}", path.display()));
    }
    let heading = link.heading?;
    let other = match link.target {
        "" => None,
        _ => std::fs::read_to_string(root().join(&path)).ok(),
    };
    let names = headings(other.as_deref().unwrap_or(text));
    let place = format!("{}#{heading}", link.target);
    (!names.contains(heading)).then(|| format!("{document}: {place}: there is no such heading"))
}

/// Where a link of a document leads, from the root of the repository.
fn inside(document: &str, target: &str) -> PathBuf {
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let mut path = PathBuf::new();
    for part in folder.join(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            other => path.push(other),
        }
    }
    path
}

/// The names by which links refer to the headings of a document.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| line.starts_with('#'));
    let names = lines.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let name = |heading: String| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    names.map(name).collect()
}

/// Copies the pages to where `mdbook` builds them. A link that leaves the book leads to the
/// repository then.
fn copy(documents: &[&str], place: &Path) -> Result<()> {
    if place.exists() {
        std::fs::remove_dir_all(place)?;
    }
    std::fs::create_dir_all(place.join("src"))?;
    std::fs::copy(root().join("docs/book.toml"), place.join("book.toml"))?;
    let manifest = read("Cargo.toml")?;
    let repository = manifest.lines().find_map(|line| line.strip_prefix("repository = "));
    let repository = repository.context("the root manifest names no repository")?.trim_matches('"');
    for document in documents {
        let Some(page) = document.strip_prefix("docs/") else { continue };
        let text = read(document)?.replace("](../", &format!("]({repository}/blob/main/"));
        std::fs::write(place.join("src").join(page), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# One page: `a-b`
[b](b.md) and [its part](../c/d.md#a-part), [host](https://x.org/a.md), [item](crate::A).
```sh
[no](link.md)
```
[here](#one-page-a-b)
";

    #[test]
    fn links_are_found_outside_of_code() {
        let found: Vec<_> = links_of(TEXT).collect();
        let link = |target, heading| Link { target, heading };
        let wanted =
            [link("b.md", None), link("../c/d.md", Some("a-part")), link("", Some("one-page-a-b"))];
        assert_eq!(found, wanted);
        assert_eq!(inside("docs/a.md", "../c/d.md"), Path::new("c/d.md"));
        assert_eq!(inside("README.md", "docs/a.md"), Path::new("docs/a.md"));
    }

    #[test]
    fn what_leads_nowhere_is_named() {
        let problem = |target, heading| leads_nowhere("docs/a.md", TEXT, &Link { target, heading });
        assert_eq!(problem("", Some("one-page-a-b")), None);
        assert_eq!(problem("../README.md", Some("in-a-program")), None);
        for (target, heading, says) in [
            ("none.md", None, "docs/a.md: there is no docs/none.md"),
            ("", Some("two"), "docs/a.md: #two: there is no such heading"),
            ("../README.md", Some("two"), "docs/a.md: ../README.md#two: there is no such heading"),
        ] {
            assert_eq!(problem(target, heading).as_deref(), Some(says));
        }
    }

    #[test]
    fn a_page_that_the_summary_does_not_name_is_missing() {
        let documents = ["README.md", "docs/SUMMARY.md", "docs/a.md", "docs/b.md"];
        let said = not_in_the_summary(&documents, "- [A](a.md)\n");
        assert_eq!(said, ["docs/SUMMARY.md does not name b.md"]);
    }
}
