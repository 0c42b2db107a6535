//! Carrying out one fault: its begin and its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use flashsale_domain::{EntryId, OrderId, Partition};
use flashsale_test_support::try_eventually;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::clocks::is_faked;
use crate::damage::{Damage, Poison};
use crate::deployment::{Deployment, LEAVES_WITHIN, SOON, WORKERS};
use crate::plan::{Fault, Phase, Plan};
use crate::{Kind, poison};

/// How long a worker is held still before it is killed: Redis hands it the next entries meanwhile, so
/// that it dies with something in its hands.
const HELD_STILL: Duration = Duration::from_millis(120);

/// How often it is held still anew when it was between two reads, and nothing was handed to it.
const HELD_STILL_TIMES: u32 = 8;

/// How long all workers are held still, at the most, until there are entries to take: with what went
/// before less than `worker.reclaim_idle`, or they would lose what they hold.
const GATHERS_WITHIN: Duration = Duration::from_millis(700);
/// Entries that are enough of them.
const GATHERED_MIN: usize = 20;

/// How long the backlog may take to drain while Redis takes no new orders.
const DRAINS_WITHIN: Duration = Duration::from_secs(10);

/// Orders that a database is given before it is set back, and how long they are waited for.
const FORGOTTEN_MIN: i64 = 20;
const FORGETS_WITHIN: Duration = Duration::from_secs(3);

/// How far off the clocks of the gateway and of each worker are.
type Offsets = (&'static str, [&'static str; WORKERS]);
/// The gateway's is before the sale opens; a worker's is behind every deadline, or long before.
const CLOCKS_OFF: Offsets = ("-5h", ["+7h", "-9h", "+26h"]);
/// Set again: the gateway's is late, but within the life of a buyer's token.
const CLOCKS_SET: Offsets = ("+40m", ["-3h", "+31h", "-1h"]);

const HOUR_S: i64 = 3_600;

/// What XDEL takes from the victim, and from everybody's.
const TAKEN_FROM_VICTIM: usize = 30;
const TAKEN_FROM_ALL: usize = 10;

impl Deployment {
    /// Does what the plan says for this fault now.
    pub(crate) async fn carry_out(
        &mut self,
        plan: &Plan,
        fault: &Fault,
        phase: Phase,
        home: Partition,
        damage: &mut Damage,
    ) -> anyhow::Result<()> {
        let done = match phase {
            Phase::Begin => self.begin(fault, home, damage).await,
            Phase::End => self.end(plan, fault, home, damage).await,
        };
        done.with_context(|| format!("{} ({phase:?})", fault.kind))
    }

    async fn begin(
        &mut self,
        fault: &Fault,
        home: Partition,
        damage: &mut Damage,
    ) -> anyhow::Result<()> {
        match fault.kind {
            Kind::WorkerKill => self.kill_worker(fault.worker, home).await?,
            Kind::WorkerFreeze => self.workers[fault.worker].freeze(),
            Kind::WorkerTerminate => self.workers[fault.worker].member.program.terminate(),
            Kind::RedisKill => block_in_place(|| self.redis_server.kill_9()),
            Kind::RedisFlush => {
                self.raw.flush_all().await?;
                self.note_forgotten(damage);
            }
            Kind::RedisAmnesia => {
                block_in_place(|| {
                    self.redis_server.kill_9();
                    self.redis_server.forget();
                });
                self.note_forgotten(damage);
            }
            Kind::SentinelFailover => {
                self.leave_replica_behind().await?;
                self.note_forgotten(damage);
            }
            Kind::ScriptFlush => self.raw.flush_scripts().await?,
            Kind::RedisFull => self.raw.limit_memory(1).await?,
            Kind::GroupDestroy => {
                self.raw.destroy_group(home).await?;
                damage.trace_is_gone = damage.redis_lost();
            }
            Kind::EntriesDelete | Kind::StreamTrim => {
                self.take_entries(fault, home, damage).await?
            }
            Kind::PoisonEntries => self.append_poison(fault, home).await?,
            Kind::ClockStep => {
                self.set_clocks(CLOCKS_OFF)?;
                // For a gateway of five hours ago it is still good.
                ensure!(self.takes_token(-HOUR_S).await?, "the gateway's clock was not set back");
            }
            Kind::PostgresTerminate => block_in_place(|| self.postgres.terminate_backends()),
            Kind::PostgresStop => self.stop_postgres(),
            Kind::DatabaseRestore => {
                self.stop_postgres();
                block_in_place(|| self.postgres.keep_copy());
                self.start_postgres();
                let counted = try_eventually(SOON, "the database counts", async || {
                    self.sql.count_orders().await.map_err(|error| format!("{error:#}"))
                });
                self.rows_at_copy = counted.await.map_err(anyhow::Error::msg)?;
            }
        }
        Ok(())
    }

    async fn end(
        &mut self,
        plan: &Plan,
        fault: &Fault,
        home: Partition,
        damage: &mut Damage,
    ) -> anyhow::Result<()> {
        match fault.kind {
            Kind::WorkerKill | Kind::EntriesDelete | Kind::StreamTrim => {
                self.replace_worker(fault.worker, false)?;
            }
            Kind::WorkerFreeze => self.workers[fault.worker].wake(),
            Kind::WorkerTerminate => self.see_leave(plan, fault, damage)?,
            Kind::RedisKill | Kind::RedisAmnesia => {
                block_in_place(|| self.redis_server.start_again());
            }
            Kind::SentinelFailover => self.fail_over().await?,
            Kind::ClockStep => {
                self.set_clocks(CLOCKS_SET)?;
                ensure!(!self.takes_token(HOUR_S / 2).await?, "the gateway's clock was not set");
            }
            Kind::RedisFull => {
                // With another fault beside it, something may have to wait.
                if plan.faults.len() == 1 {
                    self.see_drain(home, damage).await;
                }
                self.raw.limit_memory(0).await?;
            }
            Kind::PostgresStop => self.start_postgres(),
            Kind::DatabaseRestore => {
                // Where the buyers have gone home there is nothing more to forget.
                let forgettable = self.rows_at_copy + FORGOTTEN_MIN;
                let more = try_eventually(FORGETS_WITHIN, "orders to forget", async || {
                    self.sql.count_orders().await.is_ok_and(|orders| orders >= forgettable)
                });
                more.await.ok();
                self.stop_postgres();
                block_in_place(|| self.postgres.put_copy_back());
                self.start_postgres();
                damage.set_back = true;
            }
            Kind::RedisFlush
            | Kind::ScriptFlush
            | Kind::GroupDestroy
            | Kind::PoisonEntries
            | Kind::PostgresTerminate => {}
        }
        Ok(())
    }

    /// Kills a worker that holds entries, if it can be caught with some.
    async fn kill_worker(&mut self, place: usize, home: Partition) -> anyhow::Result<()> {
        let consumer = self.workers[place].consumer_part();
        let tries = if self.workers[place].is_frozen { 0 } else { HELD_STILL_TIMES };
        for _ in 0..tries {
            self.workers[place].freeze();
            sleep(HELD_STILL).await;
            // A Redis that another fault has taken away says nothing.
            let held = self.raw.list_pending(home).await.unwrap_or_default();
            if held.iter().any(|held| held.consumer.contains(&consumer)) {
                break;
            }
            self.workers[place].wake();
            sleep(HELD_STILL).await;
        }
        block_in_place(|| self.workers[place].member.program.kill_9());
        Ok(())
    }

    fn set_clocks(&self, (gateway, workers): Offsets) -> anyhow::Result<()> {
        self.gateway.set_clock(gateway)?;
        for (worker, offset) in self.workers.iter().zip(workers) {
            ensure!(is_faked(worker.member.program.pid()), "{} has no such clock", worker.name());
            worker.member.set_clock(offset)?;
        }
        Ok(())
    }

    /// Redis has lost what it had, bad entries and dead letters too.
    fn note_forgotten(&mut self, damage: &mut Damage) {
        damage.flushed = true;
        damage.trace_is_gone = true;
        for poison in self.poison.values_mut() {
            poison.must_be_there = false;
        }
    }

    /// Cuts the replica off, and holds the workers still: what is admitted from now on is in the
    /// primary's memory and nowhere else.
    async fn leave_replica_behind(&mut self) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            worker.freeze();
        }
        self.standby()?.replica.pause();
        // What is on its way already would be read after the pause.
        self.raw.cut_replicas().await
    }

    /// Kills the primary, has the sentinels promote the replica that stayed behind, and brings the old
    /// one back: it holds itself for the primary until the sentinels have made a replica of it.
    async fn fail_over(&mut self) -> anyhow::Result<()> {
        block_in_place(|| self.redis_server.kill_9());
        self.standby()?.replica.resume();
        for worker in &mut self.workers {
            worker.wake();
        }
        let standby = self.standby()?;
        let promoted = standby.replica.port();
        let done = try_eventually(SOON, "the sentinels promote the replica", async || {
            standby.sentinels.primary_port() == Some(promoted)
        });
        done.await.map_err(anyhow::Error::msg)?;
        self.raw = self.raw_of(promoted)?;
        block_in_place(|| self.redis_server.start_again());
        Ok(())
    }

    /// A worker that was asked to leave does so in time; with nothing else in its way it leaves
    /// nothing behind.
    fn see_leave(&mut self, plan: &Plan, fault: &Fault, damage: &mut Damage) -> anyhow::Result<()> {
        let worker = &self.workers[fault.worker];
        let name = worker.name();
        let ended = block_in_place(|| worker.member.program.wait_exit(LEAVES_WITHIN));
        match ended {
            None => {
                let what = format!("{name} did not end within {LEAVES_WITHIN:?} of SIGTERM");
                damage.failures.push(what);
                block_in_place(|| self.workers[fault.worker].member.program.kill_9());
            }
            Some(status) if !status.success() && plan.faults.len() == 1 => {
                damage.failures.push(format!("{name} ended with {status} after SIGTERM"));
            }
            Some(_) => {}
        }
        self.replace_worker(fault.worker, ended.is_some_and(|status| status.success()))
    }

    async fn see_drain(&mut self, home: Partition, damage: &mut Damage) {
        let drained =
            try_eventually(DRAINS_WITHIN, "the backlog drains while Redis is full", async || {
                match self.redis.backlog(home).await {
                    Ok(Some(backlog)) if backlog.total() == Some(0) => Ok(()),
                    other => Err(other),
                }
            });
        damage.failures.extend(drained.await.err());
    }

    /// Takes entries from the stream under its workers, and kills one of those that held some: what
    /// no living worker has in memory is lost.
    async fn take_entries(
        &mut self,
        fault: &Fault,
        home: Partition,
        damage: &mut Damage,
    ) -> anyhow::Result<()> {
        // Nothing may be committed between looking and taking, or the loss could not be told.
        let still: Vec<usize> =
            (0..self.workers.len()).filter(|&place| !self.workers[place].is_frozen).collect();
        for &place in &still {
            self.workers[place].freeze();
        }
        sleep(HELD_STILL).await;
        let gathered = try_eventually(GATHERS_WITHIN, "entries to take", async || {
            self.raw.list_entries(home).await.is_ok_and(|entries| entries.len() >= GATHERED_MIN)
        });
        // Where the buyers have gone home there are fewer.
        gathered.await.ok();
        let taken = self.take_from_stream(fault, home, damage).await;
        block_in_place(|| self.workers[fault.worker].member.program.kill_9());
        for place in still {
            self.workers[place].wake();
        }
        taken
    }

    async fn take_from_stream(
        &mut self,
        fault: &Fault,
        home: Partition,
        damage: &mut Damage,
    ) -> anyhow::Result<()> {
        let mut chance = StdRng::seed_from_u64(fault.seed);
        let on_stream = self.raw.list_entries(home).await?;
        let pending = self.raw.list_pending(home).await?;
        let victims = self.workers[fault.worker].consumer_part();
        let of_victim = pending.iter().filter(|held| held.consumer.contains(&victims));
        let mut chosen: BTreeSet<EntryId> = if fault.kind == Kind::StreamTrim {
            // Up to a little beyond what the victim holds, so that some of it goes.
            let last = of_victim.map(|held| held.id).max().or(on_stream.first().copied());
            let up_to = on_stream.iter().filter(|id| Some(**id) <= last).count();
            let more = chance.random_range(0..=TAKEN_FROM_ALL);
            on_stream.iter().take(up_to + more).copied().collect()
        } else {
            let others = on_stream.sample(&mut chance, TAKEN_FROM_ALL).copied();
            of_victim.map(|held| held.id).take(TAKEN_FROM_VICTIM).chain(others).collect()
        };
        if fault.kind == Kind::StreamTrim {
            // XTRIM names the first that stays; without one, XDEL does the same to the rest.
            match on_stream.iter().find(|id| !chosen.contains(id)) {
                Some(first_kept) => self.raw.trim_below(home, *first_kept).await?,
                None => {
                    chosen.extend(&on_stream);
                    self.raw.delete(home, &on_stream).await?;
                }
            }
        } else {
            let ids: Vec<EntryId> = chosen.iter().copied().collect();
            self.raw.delete(home, &ids).await?;
        }
        let mut held: BTreeMap<EntryId, String> =
            pending.into_iter().map(|held| (held.id, held.consumer)).collect();
        for id in chosen {
            let order = OrderId::from_entry(home, id)?;
            damage.deleted.insert(order);
            self.deleted.insert(order);
            if let Some(consumer) = held.remove(&id) {
                damage.deleted_while_pending.insert(order, consumer);
            }
        }
        Ok(())
    }

    /// Three shapes, each appended among the orders.
    async fn append_poison(&mut self, fault: &Fault, home: Partition) -> anyhow::Result<()> {
        let mut chance = StdRng::seed_from_u64(fault.seed);
        for fields in poison::shapes().sample(&mut chance, 3) {
            if let Some(id) = self.raw.append(home, fields).await? {
                let poison = Poison { fields: fields.clone(), must_be_there: true };
                self.poison.insert((home, id), poison);
            }
        }
        Ok(())
    }
}
