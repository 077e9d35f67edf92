//! The events that hit the processes of a soak.

use std::time::{Duration, Instant};

use anyhow::Result;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use super::cluster::{Cluster, LEASE, ProcessId, SLOTS};

/// The events so far.
#[derive(Debug)]
pub struct Events {
    draws: SplitMix64,
    pub kills: u32,
    pub leaves: u32,
    pub pauses: u32,
    /// Of etcd.
    pub restarts: u32,
}

impl Events {
    pub fn new(seed: u64) -> Self {
        Self { draws: SplitMix64::seed_from_u64(seed), kills: 0, leaves: 0, pauses: 0, restarts: 0 }
    }

    fn draw(&mut self, n: u64) -> u64 {
        self.draws.next_u64() % n
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.draw(to - from))
    }

    /// One event after the other for a time.
    pub fn storm(&mut self, cluster: &mut Cluster, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until && cluster.is_fine() {
            self.one(cluster)?;
            let next = Instant::now() + self.millis(300, 2_500);
            cluster.work(next)?;
        }
        Ok(())
    }

    fn one(&mut self, cluster: &mut Cluster) -> Result<()> {
        if cluster.has_etcd() && self.draw(5) == 0 {
            return self.hit_etcd(cluster);
        }
        let slot = 1 + self.draw(SLOTS as u64 - 1) as usize;
        let away = self.millis(0, 1_500);
        match self.draw(100) {
            0..45 => self.kill(cluster, slot, away),
            45..58 => {
                if cluster.ask_to_leave(slot, away) {
                    self.leaves += 1;
                }
            }
            58..84 => {
                let any = self.draw(SLOTS as u64) as usize;
                self.pause(cluster, &[ProcessId::Driver(any)]);
            }
            84..89 => self.pause(cluster, &[ProcessId::Memory(0)]),
            89..92 => self.pause(cluster, &[ProcessId::Memory(1)]),
            92..94 => self.pause(cluster, &(0..SLOTS).map(ProcessId::Driver).collect::<Vec<_>>()),
            94..96 => {
                let everything = (0..SLOTS)
                    .map(ProcessId::Driver)
                    .chain([ProcessId::Memory(0), ProcessId::Memory(1)]);
                self.pause(cluster, &everything.collect::<Vec<_>>());
            }
            // No driver runs for a while.
            _ => (0..SLOTS).for_each(|slot| self.kill(cluster, slot, away * 2)),
        }
        Ok(())
    }

    /// etcd stands still, for less than its leases or for more, or is started again.
    fn hit_etcd(&mut self, cluster: &mut Cluster) -> Result<()> {
        match self.draw(3) {
            0 => {
                self.restarts += 1;
                cluster.restart_etcd()?;
            }
            1 => {
                let time = self.millis(50, 1_000);
                self.pauses += u32::from(cluster.pause(&[ProcessId::Etcd], time));
            }
            _ => {
                let time = self.millis(2_500, 5_000);
                self.pauses += u32::from(cluster.pause(&[ProcessId::Etcd], time));
            }
        }
        Ok(())
    }

    fn kill(&mut self, cluster: &mut Cluster, slot: usize, away: Duration) {
        self.kills += u32::from(cluster.kill(slot, away));
    }

    /// Pauses for less than a lease, or for more.
    fn pause(&mut self, cluster: &mut Cluster, all: &[ProcessId]) {
        let lease = LEASE.as_millis() as u64;
        let time = match self.draw(2) {
            0 => self.millis(50, lease * 3 / 4),
            _ => self.millis(lease * 3 / 2, lease * 5),
        };
        self.pauses += u32::from(cluster.pause(all, time));
    }
}
