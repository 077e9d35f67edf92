//! What this crate does with a system of the registry.

use dmtree_check::checked::System;
use dmtree_check::client::Client;
use dmtree_parts::AnyOptions;
use dmtree_parts::peer::{Fit, leaf_bytes_per_key};
use dmtree_parts::worker::Workers;
use dmtree_workload::{KeyForm, ValueSize, Workload};

use crate::config::Config;
use crate::experiment::meant;
use crate::failure::{Failure, Result};
use crate::opened::{Opened, PoolSpec};
use crate::sizing;

/// The options of a system for the settings of a cell: what the settings give counts more than what
/// fits the data.
pub fn options_for(system: &System, c: &Config) -> AnyOptions {
    let mut options = (system.fit)(&system.options, &fit_of(c));
    for (field, value) in c.options.get(system.name).into_iter().flatten() {
        options[field] = value.clone();
    }
    system.options.with(options)
}

/// The same, if they are options of this index.
///
/// # Errors
/// An unknown field, or a value of another type.
pub fn checked_options(system: &System, c: &Config) -> Result<AnyOptions> {
    checked(system, options_for(system, c))
}

/// Options of a system, if its index has them.
///
/// # Errors
/// As [`checked_options`].
pub fn checked(system: &System, options: AnyOptions) -> Result<AnyOptions> {
    let wrong = |e| Failure::Input(format!("options.{}: {}", system.name, meant(&format!("{e}"))));
    options.check().map_err(wrong).map(|()| options)
}

/// Bytes of memory nodes that one key may take under these settings.
pub fn bytes_per_key(system: &System, c: &Config) -> u64 {
    let fit = fit_of(c);
    let bytes = (system.bytes_per_key)(&options_for(system, c), &fit);
    bytes.max(leaf_bytes_per_key(&fit))
}

/// The feature that a system lacks for a workload over these keys and values, as text.
pub fn lacks(system: &System, c: &Config, w: &Workload) -> Option<String> {
    if c.cns > 1 && matches!(system.options.any_node(), Ok(false)) {
        if c.affinity.is_any() {
            return Some(format!(
                "{} has an owner of each key, and a client draws keys of all {} compute nodes: give --affinity own with as many owners in its options, or --cns 1, or leave it out",
                system.name, c.cns
            ));
        }
        if w.mix().scan > 0 {
            return Some(format!(
                "{} has an owner of each key, and its scans end with the slice of their compute node: give --cns 1, or leave out the workload {w}",
                system.name
            ));
        }
    }
    let one_key = match &c.key_form {
        KeyForm::Hashed24 | KeyForm::U64 | KeyForm::Sequential | KeyForm::Sequential24 => true,
        KeyForm::Shifting(_) | KeyForm::DbBench | KeyForm::Sosd(_) => true,
        KeyForm::Random { min, max } => min == max,
        _ => false,
    };
    let ops = system.options.ops();
    let what = if !ops.delete && w.mix().delete > 0 {
        "delete"
    } else if !ops.any_length && !one_key {
        "keys of different lengths"
    } else if !ops.any_length && !matches!(c.value_size, ValueSize::Fixed(_)) {
        "values of different lengths"
    } else {
        return None;
    };
    Some(format!("{} has no {what}: leave it out, or the workload {w}", system.name))
}

/// An open index for the shell and other tools, with its workers, which end first. Measured
/// operations do not use it.
pub struct Tool {
    _workers: Workers,
    /// The index.
    pub opened: Opened,
}

impl Tool {
    /// Opens an empty index on a fresh embedded pool. `key` and `value` are typical lengths.
    ///
    /// # Errors
    /// Impossible options or sizes.
    pub fn open(system: &System, spec: &PoolSpec, key: u64, value: u64) -> Result<Self> {
        let options = system.options.with((system.fit)(&system.options, &fit(key, value)));
        let opened = Opened::create(system.name, &options, spec)?;
        Ok(Self { _workers: opened.start_workers()?, opened })
    }

    /// A client for the present thread.
    pub fn client(&self, cn: usize) -> Result<Client> {
        Ok(self.opened.client(cn)?.into())
    }
}

/// What records of these lengths ask of options.
pub fn fit(key: u64, value: u64) -> Fit {
    let bytes = |n| u32::try_from(n).unwrap_or(u32::MAX);
    Fit { key_bytes: bytes(key), value_bytes: bytes(value), ..Fit::default() }
}

/// What the settings of a cell ask of options.
pub fn fit_of(c: &Config) -> Fit {
    let scaled = |at_billion| {
        sizing::scaled(at_billion, c.keys, sizing::LEAST_TABLE_CHUNK).next_multiple_of(64)
    };
    Fit {
        // There are ten decimal digits.
        ten_symbols: c.key_form == KeyForm::Hashed24,
        page_bytes: c.page_bytes.map(|page| u32::try_from(page.0).unwrap_or(u32::MAX)),
        table_chunk_bytes: c.table_chunk_at_billion.map(scaled),
        ..fit(sizing::longest_key(&c.key_form), u64::from(c.value_size.max()))
    }
}
