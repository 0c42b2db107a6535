//! Workers killed between the transaction that changes an order and the last that follows from it in
//! Redis: whatever the step, the next worker leaves the unit where it belongs, once.
//!
//! The steps are made to last by locks in the database and by a way to Redis that holds a request up.

use flashsale_domain::{
    Admission, AdmissionRequest, IdempotencyKey, NewPayment, OrderId, PaymentOutcome, Price,
    Refusal, Sale,
};
use flashsale_operations::PaymentVerdict;
use flashsale_storage_sql::{Cancellation, PaymentAnswer};
use flashsale_test_support::{RedisServer, eventually};
use sea_orm::{ConnectionTrait as _, DatabaseTransaction, TransactionTrait as _};

use crate::real_worker::RealWorker;
use crate::support::{Plan, SOON, Stand, only, press, user_id};
use crate::turnstile::Turnstile;

/// Where the worker is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is committed what Redis is owed, and nobody has read it.
    Committed,
    /// A worker has read it, and Redis has not heard of it.
    Read,
    /// Redis has carried it out, and the database does not know.
    CarriedOut,
    /// The database knows.
    Noted,
}

const STEPS: [Step; 4] = [Step::Committed, Step::Read, Step::CarriedOut, Step::Noted];

/// What the worker writes when Redis has carried out what it was owed.
struct Note {
    table: &'static str,
    statement: &'static str,
}

const RELEASED: Note = Note { table: "outbox", statement: "DELETE FROM \"outbox\"%" };
const REACQUIRED: Note = Note { table: "payments", statement: "UPDATE \"payments\"%" };

/// A sale of one unit and its buyer, and a worker that is to be killed.
struct Round<'a> {
    stand: &'a Stand,
    line: Turnstile,
    sale: Sale,
    buyer: String,
    worker: RealWorker,
}

async fn stand() -> Stand {
    // Nothing may give up because a step lasts.
    let plan = Plan::postgres()
        .with("database.statement_timeout", "4m")
        .with("worker.reclaim_idle", "10m");
    plan.stand().await
}

impl<'a> Round<'a> {
    /// `name` is the buyer's, without the number that his admission adds.
    async fn begin(stand: &'a Stand, name: &str, step: Step) -> Self {
        let line = Turnstile::to(RedisServer::shared()).await;
        let sale = stand.publish(1).await;
        let worker = stand.real_worker(&[("FLASHSALE__REDIS__URL", line.url())]);
        worker.admin.wait_for_readiness(true).await;
        Self { stand, line, sale, buyer: format!("{name}-{step:?}-0"), worker }
    }

    /// The buyer's order.
    async fn admit(&self) -> OrderId {
        let prefix = self.buyer.strip_suffix("-0").expect("it ends so");
        self.stand.admit(&self.sale, prefix, 1).await[0]
    }

    /// The same, as a row that waits for payment, and nothing left to do for the worker.
    async fn admit_and_commit(&self) -> OrderId {
        let id = self.admit().await;
        self.is_committed(id).await;
        id
    }

    async fn is_committed(&self, id: OrderId) {
        eventually(SOON, "its row", async || self.stand.open_ids().await.contains(&id)).await;
        self.stand.settle().await;
    }

    async fn make_overdue(&self) {
        let sql = format!("UPDATE orders SET pay_by_ms = 1 WHERE sale_id = {}", self.sale.id);
        self.stand.execute(&sql).await;
    }

    async fn lock(&self, table: &str, mode: &str) -> DatabaseTransaction {
        let lock = self.stand.sql.begin().await.expect("a transaction");
        let sql = format!("LOCK TABLE {table} IN {mode} MODE");
        lock.execute_unprepared(&sql).await.expect("locked");
        lock
    }

    /// Waits until somebody waits for a lock with this statement; the process that serves him.
    async fn waiting_with(&self, statement: &str) -> i32 {
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
             AND wait_event_type = 'Lock' AND query LIKE '{statement}'"
        );
        let waiting = async || self.stand.try_value::<i32>(&sql).await;
        eventually(SOON, &format!("somebody who waits with {statement}"), waiting).await
    }

    /// Stops the relay in the middle of its round: it has looked at the outbox, and has yet to look at
    /// adjustments and late payments.
    async fn stop_relay(&self) -> DatabaseTransaction {
        let lock = self.lock("adjustments", "ACCESS EXCLUSIVE").await;
        self.waiting_with("%FROM \"adjustments\"%ORDER BY%LIMIT%").await;
        lock
    }

    /// Lets the stopped relay go on up to the step, and kills the worker there.
    async fn kill_at(&self, step: Step, stopped: DatabaseTransaction, note: &Note) {
        let go_on = async || stopped.commit().await.expect("the relay can go on");
        match step {
            Step::Committed => {
                self.worker.program.kill_9();
                go_on().await;
            }
            Step::Read => {
                self.line.stop_at(&self.buyer);
                go_on().await;
                self.line.has_stopped().await;
                self.worker.program.kill_9();
            }
            Step::CarriedOut => {
                let unwritten = self.lock(note.table, "SHARE").await;
                go_on().await;
                let backend = self.waiting_with(note.statement).await;
                self.worker.program.kill_9();
                // The server does not see that its client is gone while it waits, and would write the
                // note all the same.
                self.stand.execute(&format!("SELECT pg_terminate_backend({backend})")).await;
                let gone = format!("SELECT pid FROM pg_stat_activity WHERE pid = {backend}");
                eventually(SOON, "its connection's end", async || {
                    self.stand.column::<i32>(&gone).await.is_empty()
                })
                .await;
                unwritten.commit().await.expect("unlocked");
            }
            Step::Noted => {
                go_on().await;
                self.nothing_is_owed().await;
                self.worker.program.kill_9();
            }
        }
    }

    async fn owed(&self) -> i64 {
        let owed = "SELECT (SELECT count(*) FROM outbox) \
                    + (SELECT count(*) FROM payments WHERE outcome = 'reacquiring')";
        self.stand.try_value(owed).await.expect("answered")
    }

    async fn nothing_is_owed(&self) {
        let nothing = async || match self.owed().await {
            0 => Ok(()),
            owed => Err(owed),
        };
        eventually(SOON, "that nothing is owed", nothing).await;
    }

    /// Units for sale and held in Redis, and for sale in the database.
    async fn units(&self) -> (i64, i64, i64) {
        let account = self.stand.redis.read_sale(only(), self.sale.id).await.expect("answers");
        let loaded = account.sale.expect("loaded");
        assert_eq!(loaded.total, 1);
        (loaded.stock, loaded.held, self.stand.stock_left(&self.sale).await)
    }

    /// What the buyer is answered who presses with another key than for his first order.
    async fn press_again(&self, key: &str) -> Result<Admission, Refusal> {
        let key = IdempotencyKey::new(key).expect("a key");
        let request = AdmissionRequest {
            user_id: user_id(&self.buyer),
            digest: Some(key.digest()),
            traceparent: None,
        };
        self.answer_to(request).await
    }

    async fn answer_to(&self, request: AdmissionRequest) -> Result<Admission, Refusal> {
        let mut connection = self.stand.redis.admission_connection().expect("a connection");
        let batch = connection.admit(only(), self.sale.id, &[request]).await;
        batch.expect("answered").outcomes[0]
    }

    async fn assert_sound(&self) {
        let ledger = self.stand.operations.read_ledger(self.sale.id).await.expect("a ledger");
        assert!(ledger.is_balanced(), "{ledger:?}");
        let audit = self.stand.operations.audit_sale(self.sale.id, &[]).await.expect("an audit");
        assert_eq!(audit.findings, []);
    }

    /// Kills the worker on the way of a release, and lets another finish it.
    async fn release_through_a_kill(
        &self,
        step: Step,
        ended: OrderId,
        stopped: DatabaseTransaction,
    ) {
        assert_eq!((self.owed().await, self.units().await), (1, (0, 1, 1)), "{step:?}");
        self.kill_at(step, stopped, &RELEASED).await;
        let owed = i64::from(step != Step::Noted);
        let carried_out = matches!(step, Step::CarriedOut | Step::Noted);
        let there = if carried_out { (1, 0, 1) } else { (0, 1, 1) };
        assert_eq!((self.owed().await, self.units().await), (owed, there), "{step:?}");

        let next = self.stand.real_worker(&[]);
        self.nothing_is_owed().await;
        assert_eq!(self.units().await, (1, 0, 1), "{step:?}");
        // The buyer can buy again, once.
        let again = eventually(SOON, "a unit that is not held back", async || {
            self.press_again("again").await
        })
        .await;
        assert!(!again.replayed && again.order_id != ended, "{again:?}");
        self.is_committed(again.order_id).await;
        let refusal = Refusal::AlreadyOrdered(again.order_id);
        assert_eq!(self.press_again("a-third-time").await, Err(refusal));
        assert_eq!(self.answer_to(press("somebody-else")).await, Err(Refusal::SoldOut));
        let first = self.answer_to(press(&self.buyer)).await;
        assert_eq!(first, Ok(Admission { order_id: ended, replayed: true }));
        assert_eq!((self.owed().await, self.units().await), (0, (0, 1, 0)), "{step:?}");
        self.assert_sound().await;
        next.program.kill_9();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_orders_unit_comes_back_once_at_whatever_step_the_worker_is_killed() {
    let stand = stand().await;
    for step in STEPS {
        let round = Round::begin(&stand, "cancels", step).await;
        let id = round.admit_and_commit().await;
        let stopped = round.stop_relay().await;
        let buyer = user_id(&round.buyer);
        let cancelled = round.stand.operations.cancel_order(id, &buyer).await.expect("answered");
        assert!(matches!(cancelled, Cancellation::Cancelled(_)), "{cancelled:?}");
        round.release_through_a_kill(step, id, stopped).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_orders_unit_comes_back_once_at_whatever_step_the_worker_is_killed() {
    let stand = stand().await;
    for step in STEPS {
        let round = Round::begin(&stand, "forgets", step).await;
        let id = round.admit_and_commit().await;
        let stopped = round.stop_relay().await;
        round.make_overdue().await;
        eventually(SOON, "it expires", async || round.owed().await == 1).await;
        round.release_through_a_kill(step, id, stopped).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_orders_unit_comes_back_once_at_whatever_step_the_worker_is_killed() {
    let stand = stand().await;
    for step in STEPS {
        let round = Round::begin(&stand, "unlucky", step).await;
        let stopped = round.stop_relay().await;
        // Another order has the slot, and is gone before the release is carried out.
        round
            .stand
            .execute(&format!(
                "INSERT INTO orders (id, sale_id, user_id, slot, epoch, state, price_amount, \
                 price_currency, committed_ms) \
                 VALUES (77, {}, '{}', 1, {}, 'awaiting_payment', 1, 'CNY', 1)",
                round.sale.id, round.buyer, round.sale.epoch
            ))
            .await;
        let id = round.admit().await;
        eventually(SOON, "it is rejected", async || round.owed().await == 1).await;
        round.stand.execute("DELETE FROM orders WHERE id = 77").await;
        round.stand.settle().await;
        round.release_through_a_kill(step, id, stopped).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_money_buys_one_unit_at_whatever_step_the_worker_is_killed() {
    let stand = stand().await;
    for step in STEPS {
        let round = Round::begin(&stand, "pays-late", step).await;
        let id = round.admit_and_commit().await;
        round.make_overdue().await;
        eventually(SOON, "its unit is back", async || round.units().await == (1, 0, 1)).await;
        round.nothing_is_owed().await;

        let stopped = round.stop_relay().await;
        let price = Price { amount: 9_900, currency: "CNY".parse().expect("a currency") };
        let payment = NewPayment { webhook_id: format!("late-{id}"), order_id: id, price };
        // What the gateway writes before it asks Redis, which it does not come to here.
        let begun = round.stand.database.receive_payment(&payment).await.expect("answered");
        assert!(matches!(begun, PaymentAnswer::Reacquire(_)), "{begun:?}");
        assert_eq!((round.owed().await, round.units().await), (1, (1, 0, 1)), "{step:?}");
        round.kill_at(step, stopped, &REACQUIRED).await;
        let there = match step {
            Step::Committed | Step::Read => (1, (1, 0, 1)),
            Step::CarriedOut => (1, (0, 1, 1)),
            Step::Noted => (0, (0, 1, 0)),
        };
        assert_eq!((round.owed().await, round.units().await), there, "{step:?}");

        let next = round.stand.real_worker(&[]);
        round.nothing_is_owed().await;
        assert_eq!(round.units().await, (0, 1, 0), "{step:?}");
        let verdict = round.stand.operations.receive_payment(&payment).await.expect("answered");
        let paid = PaymentVerdict::Settled { outcome: PaymentOutcome::Paid, repeated: true };
        assert_eq!(verdict, paid);
        let refusal = Refusal::AlreadyOrdered(id);
        assert_eq!(round.press_again("again").await, Err(refusal));
        assert_eq!(round.answer_to(press("somebody-else")).await, Err(Refusal::SoldOut));
        assert_eq!((round.owed().await, round.units().await), (0, (0, 1, 0)), "{step:?}");
        round.assert_sound().await;
        next.program.kill_9();
    }
}
