//! Refusals of unknown names.

/// Edits between a name and one that it may be a misspelling of.
const NEAR: usize = 4;

/// The name among `names` that is most like a misspelt one, if any is near.
pub fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let distance = |known: &str| strsim::damerau_levenshtein(known, name);
    let near = names.into_iter().map(|known| (distance(known), known)).min()?;
    let most = NEAR.min(name.chars().count() / 2);
    (near.0 <= most).then_some(near.1)
}

/// Refuses a name of some kind: names the nearest one, and all.
pub fn unknown(kind: &str, name: &str, names: &[&str]) -> String {
    let meant = nearest(name, names.iter().copied());
    let meant = meant.map_or(String::new(), |near| format!("do you mean {near}? "));
    format!("unknown {kind} {name:?}: {meant}give one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_recognized_and_other_words_are_not() {
        let names = ["dmtree", "sherman", "smart", "fg"];
        for (given, meant) in [
            ("dmtre", Some("dmtree")),
            ("dtmree", Some("dmtree")),
            ("shermann", Some("sherman")),
            ("gf", Some("fg")),
            ("btree", Some("dmtree")),
            ("x", None),
            ("", None),
            ("rocksdb", None),
        ] {
            assert_eq!(nearest(given, names), meant, "{given}");
        }
        assert_eq!(nearest("x", []), None);
        let message = unknown("system", "smrt", &names);
        assert_eq!(
            message,
            "unknown system \"smrt\": do you mean smart? give one of dmtree, sherman, smart, fg"
        );
    }
}
