//! Profiles of the simulated fabric in experiments: shipped ones, files, and single fields with
//! other values.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::simulated::Profile;

/// The default profile: the published artifact's hardware.
pub const DEFAULT_PROFILE: &str = "dmtree-artifact-100g";

/// A whole profile, so that results contain all that is needed to repeat them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProfileText {
    /// Its name.
    pub name: String,
    /// Fields with other values, as given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// XXH3-64 of the text, hexadecimal.
    pub hash: String,
    /// The whole profile, as the text of a file.
    pub toml: String,
}

impl ProfileText {
    /// A shipped profile by name, or a file that ends with .toml, with some fields set
    /// (`field=value`).
    ///
    /// # Errors
    /// An unknown name or field, a file that cannot be read, a value out of its range.
    pub fn find(name: Option<&str>, set: &[String]) -> Result<Self> {
        let mut profile = read(name.unwrap_or(DEFAULT_PROFILE))?;
        for one in set {
            let Some((field, value)) = one.split_once('=') else {
                return Err(Failure::input(format!(
                    "--set {one:?}: give a field and its value, such as responder_ns.read=22"
                )));
            };
            profile.set(field.trim(), value.trim())?;
        }
        Ok(Self::of(&profile, set.to_vec()))
    }

    /// The same profile with one more field set.
    ///
    /// # Errors
    /// An unknown field, or a value out of its range.
    pub fn with(&self, field: &str, value: &str) -> Result<Self> {
        let mut profile = self.profile()?;
        profile.set(field, value)?;
        let mut set = self.set.clone();
        set.push(format!("{field}={value}"));
        Ok(Self::of(&profile, set))
    }

    fn of(profile: &Profile, set: Vec<String>) -> Self {
        let toml = profile.to_toml();
        let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(toml.as_bytes()));
        Self { name: profile.name.clone(), set, hash, toml }
    }

    /// The parsed profile.
    ///
    /// # Errors
    /// A text that does not parse.
    pub fn profile(&self) -> Result<Profile> {
        Ok(Profile::parse(&format!("profile {}", self.name), &self.toml)?)
    }

    /// Name, fields with other values, hash.
    pub fn title(&self) -> String {
        let with = if self.set.is_empty() { "" } else { " with " };
        format!("{}{with}{} ({})", self.name, self.set.join(", "), self.hash)
    }
}

/// A shipped profile by name, or a file that ends with .toml.
///
/// # Errors
/// An unknown name, a file that cannot be read or is malformed.
pub fn read(name: &str) -> Result<Profile> {
    if !name.ends_with(".toml") {
        return Ok(Profile::named(name)?);
    }
    let path = Path::new(name);
    let text =
        std::fs::read_to_string(path).map_err(|e| Failure::file("read the profile", path, &e))?;
    Ok(Profile::parse(name, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_set_changes_the_hash_and_reads_back() {
        let plain = ProfileText::find(None, &[]).unwrap();
        assert_eq!(plain.name, DEFAULT_PROFILE);
        let set = ProfileText::find(None, &["responder_ns.read = 22".to_owned()]).unwrap();
        assert_ne!(plain.hash, set.hash);
        assert!(set.title().contains("responder_ns.read = 22"));
        assert_eq!(set.profile().unwrap().get("responder_ns.read"), Some(22.0));
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(file.path(), &set.toml).unwrap();
        let again = ProfileText::find(file.path().to_str(), &[]).unwrap();
        assert_eq!(again.hash, set.hash);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let bad = |name: Option<&str>, set: &[&str]| {
            let set: Vec<String> = set.iter().map(|s| (*s).to_owned()).collect();
            let e = ProfileText::find(name, &set).unwrap_err();
            assert_eq!(e.exit_code(), 2);
            e.to_string()
        };
        assert!(bad(Some("cx9"), &[]).contains("dmtree-artifact-100g"));
        assert!(bad(Some("/nowhere/p.toml"), &[]).contains("/nowhere/p.toml"));
        assert!(bad(None, &["responder_ns.read"]).contains("such as"));
        assert!(bad(None, &["responder_ns.reed=3"]).contains("responder_ns.read"));
        assert!(bad(None, &["responder_ns.read=-3"]).contains("responder_ns.read"));
    }
}
