//! A sale's life: create, publish, pause, resume, close.

use std::time::{Duration, Instant};

use flashsale_bootstrap::clock;
use flashsale_domain::{NewSale, Partition, Sale, SaleId, SaleMode, SaleState};
use flashsale_storage_sql::{SaleChange, SaleEdit};
use tokio::time::sleep;

use crate::rebuild::PartitionUse;
use crate::{OperationError, Operations, Refused};

/// How long publishing waits for somebody else who loads the partition.
const LOADED_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Operations {
    /// Creates a sale, as a draft that buyers do not see.
    ///
    /// # Errors
    /// When a field is out of range, or the database fails.
    pub async fn create_sale(&self, sale: &NewSale) -> Result<Sale, OperationError> {
        sale.validate().map_err(Refused::from)?;
        Ok(self.database.insert_sale(sale).await?)
    }

    /// Every sale, newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list_sales(&self) -> Result<Vec<Sale>, OperationError> {
        Ok(self.database.list_sales().await?)
    }

    /// A sale.
    ///
    /// # Errors
    /// When there is none, or the database fails.
    pub async fn get_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        Ok(self.database.find_sale(id).await?.ok_or(Refused::SaleNotFound(id))?)
    }

    /// Changes a sale's description: all of it while it is a draft, its title until it is closed.
    ///
    /// The rest is fixed once the sale is published: gateways remember that a window is over, and
    /// orders were taken under the limit and at the price.
    ///
    /// # Errors
    /// When a value is out of range, the sale's state does not allow it, or the database fails.
    pub async fn edit_sale(&self, id: SaleId, edit: &SaleEdit) -> Result<Sale, OperationError> {
        if *edit == SaleEdit::default() {
            return Err(Refused::NoChange.into());
        }
        let sale = self.get_sale(id).await?;
        let edited = NewSale {
            title: edit.title.clone().unwrap_or(sale.title),
            mode: sale.mode,
            stock: sale.stock_total.max(1),
            window: edit.window.unwrap_or(sale.window),
            per_buyer: edit.per_buyer.unwrap_or(sale.per_buyer),
            price: edit.price.unwrap_or(sale.price),
            payment_window_s: edit.payment_window_s.unwrap_or(sale.payment_window_s),
            late_payment: edit.late_payment.unwrap_or(sale.late_payment),
        };
        edited.validate().map_err(Refused::from)?;
        match self.database.edit_sale(id, edit).await? {
            SaleChange::Done(sale) => Ok(*sale),
            SaleChange::NotFound => Err(Refused::SaleNotFound(id).into()),
            SaleChange::Refused(SaleState::Closed) => Err(Refused::Closed(id).into()),
            SaleChange::Refused(state) => Err(Refused::OnlyTitle { sale: id, state }.into()),
        }
    }

    /// Publishes a draft: chooses its home, and loads it there. Publishing again what is published
    /// already completes what an earlier try left undone.
    ///
    /// # Errors
    /// When the sale may not be published, or a store fails.
    pub async fn publish_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        let sale = self.get_sale(id).await?;
        if !matches!(sale.state, SaleState::Draft | SaleState::Published) {
            let (state, wanted) = (sale.state, SaleState::Published);
            return Err(Refused::State { sale: id, state, wanted }.into());
        }
        if sale.state == SaleState::Draft && sale.window.closes_ms() <= clock::now_ms() {
            return Err(Refused::WindowOver(id).into());
        }
        if sale.mode == SaleMode::Direct {
            return self.change_in_database(id, SaleState::Published).await;
        }
        let partition = match sale.partition {
            Some(partition) => partition,
            None => {
                let partition = self.choose_partition(id);
                self.database.set_sale_partition(id, partition).await?;
                partition
            }
        };
        let homed = self.database.list_sales_of(partition).await?;
        let used = if homed.iter().all(|sale| sale.state == SaleState::Draft) {
            PartitionUse::Never
        } else {
            PartitionUse::Before
        };
        self.change_in_database(id, SaleState::Published).await?;
        let sale = self.database.find_sale_before_growth(id).await?;
        let sale = sale.ok_or(Refused::SaleNotFound(id))?;
        let started = Instant::now();
        while !self.redis.publish_sale(partition, &sale).await? {
            let account = self.redis.read_sale(partition, id).await?;
            if account.gate_open && account.sale.is_some() {
                break;
            }
            // A Redis without this partition's memory, new or emptied: load all of it. An
            // order-worker that sees the same does the same, and either of the two will do.
            match self.load_partition(partition, used).await {
                Ok(_) => break,
                Err(OperationError::Refused(
                    Refused::RebuildRunning(_) | Refused::FenceLost(_),
                )) if started.elapsed() < LOADED_WITHIN => {
                    sleep(LOOK_AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
        self.get_sale(id).await
    }

    /// Stops admitting, until [`Operations::resume_sale`]. What was admitted goes on.
    ///
    /// # Errors
    /// When the sale may not be paused, or a store fails.
    pub async fn pause_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        self.shrink(id, SaleState::Paused).await
    }

    /// Admits again after a pause.
    ///
    /// # Errors
    /// When the sale may not be resumed, or a store fails.
    pub async fn resume_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        let sale = self.get_sale(id).await?;
        if sale.state == SaleState::Draft {
            let (state, wanted) = (sale.state, SaleState::Published);
            return Err(Refused::State { sale: id, state, wanted }.into());
        }
        let sale = self.change_in_database(id, SaleState::Published).await?;
        if let Some(partition) = sale.partition
            && !self.redis.set_sale_state(partition, id, SaleState::Published).await?
        {
            return Err(Refused::NotLoaded(id).into());
        }
        Ok(sale)
    }

    /// Ends a sale for good. What was admitted goes on.
    ///
    /// # Errors
    /// When the sale may not be closed, or a store fails.
    pub async fn close_sale(&self, id: SaleId) -> Result<Sale, OperationError> {
        self.shrink(id, SaleState::Closed).await
    }

    async fn shrink(&self, id: SaleId, wanted: SaleState) -> Result<Sale, OperationError> {
        let sale = self.get_sale(id).await?;
        if sale.state != wanted && !sale.state.can_become(wanted) {
            return Err(Refused::State { sale: id, state: sale.state, wanted }.into());
        }
        if let Some(partition) = sale.partition {
            // Not loaded is as good: nobody is admitted, and a rebuild takes the database's state.
            self.redis.set_sale_state(partition, id, wanted).await?;
        }
        self.change_in_database(id, wanted).await
    }

    async fn change_in_database(
        &self,
        id: SaleId,
        wanted: SaleState,
    ) -> Result<Sale, OperationError> {
        match self.database.set_sale_state(id, wanted).await? {
            SaleChange::Done(sale) => Ok(*sale),
            SaleChange::NotFound => Err(Refused::SaleNotFound(id).into()),
            SaleChange::Refused(state) => Err(Refused::State { sale: id, state, wanted }.into()),
        }
    }

    /// Sales take turns over the partitions.
    fn choose_partition(&self, id: SaleId) -> Partition {
        let partitions: Vec<Partition> = self.redis.partitions().collect();
        let count = i64::try_from(partitions.len()).expect("at most 1,023 partitions");
        let index = usize::try_from(id.as_i64() % count).expect("below the number of partitions");
        partitions[index]
    }
}
