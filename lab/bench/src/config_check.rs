//! Refuses impossible settings.

use dmtree_workload::{Distribution, Workload, WorkloadSpec};

use crate::config::{Config, FillBy};
use crate::fabrics::{FABRICS, VERBS, data_path};
use crate::failure::{Failure, Result};
use crate::instructions::Instructions;
use crate::offered::LoadShape;
use crate::published::Table;
use crate::registry::{find, select};
use crate::simulated::CpuSource;
use crate::sizing;
use crate::system::checked_options;

/// Most clients that one thread simulates.
const MAX_CLIENTS: u32 = 1 << 17;
/// The longest bucket of a series.
const MAX_SERIES_US: u64 = 1_000_000;

fn refuse<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure::input(message))
}

impl Config {
    /// Refuses contradictions; names the setting, and its possible values.
    pub fn check(&self) -> Result<()> {
        self.check_pool()?;
        let one_at_a_time = self.budget.is_some() || !self.simulated();
        if one_at_a_time && self.jobs.is_some_and(|n| n > 1) {
            return refuse(
                "several cells at a time disturb each other where real time counts: give --jobs on fabric sim only, without --budget",
            );
        }
        if self.workloads.is_empty() || self.distributions.is_empty() || self.systems.is_empty() {
            return refuse("nothing to run: name a system, a workload and a distribution");
        }
        self.check_names()?;
        let points = self.sweep.points(self)?;
        if points.is_empty() {
            return refuse(
                "nothing to run: no sweep of the experiment has these systems, workloads and distributions",
            );
        }
        for (_, point) in points {
            point.check_numbers().map_err(|e| e.context("a point of the sweep"))?;
            if point.clients() > MAX_CLIENTS {
                return refuse(format!(
                    "{} clients in all are more than {MAX_CLIENTS}: give fewer --cns, --threads or --coroutines",
                    point.clients()
                ));
            }
            for law in &point.distributions {
                // A sweep over the exponent sets a number that no text was checked for.
                law.to_string().parse::<Distribution>().map_err(Failure::refused)?;
            }
            point.check_cells()?;
        }
        Ok(())
    }

    /// Refuses an impossible pool: its fabric, and numbers.
    pub(crate) fn check_pool(&self) -> Result<()> {
        self.check_numbers()?;
        if !FABRICS.contains(&self.fabric.as_str()) {
            return refuse(format!(
                "unknown fabric {:?}: give one of {}",
                self.fabric,
                FABRICS.join(", ")
            ));
        }
        if self.nodes.is_some() && data_path(&self.fabric).is_none() {
            return refuse(
                "a running pool is on fabric tcp or verbs: give --fabric tcp, or --fabric verbs, too",
            );
        }
        if (self.device.is_some() || self.gid_index.is_some()) && self.fabric != VERBS {
            return refuse("a device is used on fabric verbs only: give --fabric verbs");
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<()> {
        for (name, high, n) in [
            ("--keys", u64::MAX, self.keys),
            ("--ops", u64::MAX, self.ops.unwrap_or(1)),
            ("--threads", 1024, self.threads.into()),
            ("--coroutines", 1024, self.coroutines.into()),
            ("--cns", 1024, self.cns.into()),
            ("--mns", 1024, self.mns.into()),
            ("--mn-cores", 1024, self.mn_cores.unwrap_or(1).into()),
            ("--rounds", 1000, self.rounds.into()),
            ("maintain-every", u32::MAX.into(), self.maintain_every.into()),
            ("--jobs", 1024, self.jobs.unwrap_or(1) as u64),
        ] {
            if n == 0 {
                return refuse(format!("{name} is 0: give 1 at least"));
            }
            if n > high {
                return refuse(format!("{name} is {n}: give {high} at most"));
            }
        }
        for (name, least, s) in [
            ("--duration", if self.simulated() { 1e-6 } else { 1e-3 }, self.duration),
            ("--budget", 1e-3, self.budget),
            ("--warmup", 0.0, Some(self.warmup)),
        ] {
            if let Some(s) = s
                && !(s.is_finite() && s >= least && s <= 1e6)
            {
                return refuse(format!("{name} is {s} seconds: give {least} to 1000000"));
            }
        }
        self.check_series(self.series_us)?;
        if let FillBy::Share(share) = self.fill
            && !(share > 0.0 && share <= 1.0)
        {
            return refuse(format!(
                "--fill is {share}: give a share above 0, 1 at most, or random"
            ));
        }
        if let (LoadShape::Open { .. }, Some(_)) = (self.load, self.budget) {
            return refuse("an open load takes its own time: give --ops or --duration, no budget");
        }
        Ok(())
    }

    fn check_series(&self, us: Option<u64>) -> Result<()> {
        match us {
            Some(_) if !self.simulated() => {
                refuse("a series is of virtual time: give series-us on fabric sim only")
            }
            Some(us) if !(1..=MAX_SERIES_US).contains(&us) => {
                refuse(format!("series-us is {us}: give 1 to {MAX_SERIES_US} microseconds"))
            }
            _ => Ok(()),
        }
    }

    fn check_names(&self) -> Result<()> {
        for own in &self.cells {
            self.check_series(own.series_us).map_err(|e| e.context(&own.to_string()))?;
            let counts = [own.keys, own.ops, own.coroutines.map(u64::from)];
            if counts.contains(&Some(0)) || own.maintain_every == Some(0) {
                return refuse(format!(
                    "{own}: 0 keys, operations, coroutines or maintain-every: give 1 at least"
                ));
            }
            if own.ops_of_keys.is_some_and(|s| !(s > 0.0 && s <= 1.0)) {
                return refuse(format!("{own}: ops-of-keys: give a share above 0, 1 at most"));
            }
        }
        self.check_options()?;
        if let Some(name) = &self.published {
            Table::named(name)?;
        }
        if let Some(name) = &self.published_gains {
            crate::gains::Claims::named(name)?;
        }
        self.bounds.iter().try_for_each(crate::published::Bound::check)
    }

    /// Refuses settings of cells that do not exist. These are the settings of an experiment: a
    /// narrower choice on the command line leaves some without use.
    ///
    /// # Errors
    /// Names the first such settings.
    pub fn check_cells_exist(&self) -> Result<()> {
        let systems = select(&self.systems)?;
        let names: Vec<&str> = systems.iter().map(|s| s.name).collect();
        self.sweep.check_names(&names, self)?;
        for own in &self.cells {
            let covers = |w: &Workload| systems.iter().any(|s| own.covers(s.name, w.name()));
            if !self.workloads.iter().any(covers) {
                let workloads: Vec<&str> = self.workloads.iter().map(Workload::name).collect();
                return refuse(format!(
                    "{own}: no cell has it: the systems are {}, the workloads {}",
                    names.join(", "),
                    workloads.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// The systems check their options themselves.
    fn check_options(&self) -> Result<()> {
        for (_, point) in self.sweep.points(self)? {
            for name in point.options.keys() {
                let system = find(name).map_err(|e| e.context("options"))?;
                checked_options(&system, &point)?;
            }
        }
        for (sweep, c) in self.sweep.within(self) {
            let mut swept = sweep.systems_with_options();
            if let Some(name) = swept.find(|system| !c.systems.contains(system)) {
                return refuse(format!(
                    "a sweep over an option of {name}, which is not in the run: the systems are {}",
                    c.systems.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// The cells of one point of a sweep.
    fn check_cells(&self) -> Result<()> {
        for (system, w) in
            self.systems.iter().flat_map(|s| self.workloads.iter().map(move |w| (s, w)))
        {
            let c = self.for_cell(system, w);
            if let Some(source) = c.cpu {
                if source == CpuSource::Free {
                    return refuse(
                        "cpu free is what a run can turn out to be: charged, measured, or counted",
                    );
                }
                if source == CpuSource::Counted {
                    Instructions::of(system)?;
                }
                if !c.simulated() {
                    return refuse(
                        "cpu is of simulated hardware: give --fabric sim, or leave it out",
                    );
                }
            }
            if !c.affinity.is_any() && c.cns == 1 {
                return refuse(
                    "affinity own cuts the key space into a slice for each compute node, and there is 1: give more --cns, or --affinity any",
                );
            }
            for d in &c.distributions {
                let spec = c.workload(w, *d);
                // Checks whether the workload can be built; zipf tables are left for later.
                let whole = WorkloadSpec { nominal: None, slices: 1, ..spec.clone() };
                WorkloadSpec { distribution: Distribution::Uniform, ..whole }
                    .build()
                    .map_err(Failure::refused)?;
                spec.check_slices().map_err(|e| Failure::refused(e).context("affinity own"))?;
                if let (Some(n), false) = (spec.nominal, *d == Distribution::Uniform)
                    && n < spec.records
                {
                    return refuse(format!(
                        "--nominal is {n}, below the {} keys: give at least as many",
                        spec.records
                    ));
                }
            }
            sizing::check(&c)?;
        }
        Ok(())
    }
}
