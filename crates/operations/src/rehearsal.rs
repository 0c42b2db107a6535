//! A rehearsal's sale: like any other to the programs, hidden from buyers and the shop, and cleaned up
//! without leaving anything behind.
//!
//! What is cleaned up bears the rehearsal's mark, is closed, and has nothing under way. The database
//! forgets it first, then Redis, then the sale goes; all of it under the right to rebuild the partition,
//! because a rebuild that has listed the sale already would load it once more.

use flashsale_domain::{EntryId, NewSale, Partition, Sale, SaleId, SaleState};
use flashsale_storage_redis::decode;
use flashsale_storage_sql::Erasure;

use crate::{OperationError, Operations, Operator, Refused};

impl Operator<'_> {
    /// Creates and publishes a rehearsal's sale.
    ///
    /// # Errors
    /// When a field is out of range, or a store fails; what is there of the sale is found by
    /// [`Operations::list_rehearsals`].
    pub async fn begin_rehearsal(&self, new: &NewSale) -> Result<Sale, OperationError> {
        new.validate().map_err(Refused::from)?;
        let sale = self.operations.database.insert_rehearsal(new).await?;
        let what = format!("{} units: {}", sale.stock_total, sale.title);
        self.log("rehearsal.begin", sale.id, &what).await?;
        self.operations.publish_sale(sale.id).await
    }

    /// Removes a rehearsal's sale and all that was written of it, in the database and in Redis. Closes it
    /// first. What was interrupted goes on.
    ///
    /// # Errors
    /// When the sale is no rehearsal's, when something of it is under way (try again when it is done), or
    /// a store fails.
    pub async fn clean_up_rehearsal(&self, id: SaleId) -> Result<(), OperationError> {
        let operations = self.operations;
        let mut sale = operations.get_rehearsal(id).await?;
        if !matches!(sale.state, SaleState::Draft | SaleState::Closed) {
            sale = operations.close_sale(id).await?;
        }
        // Without a home it was erased already, and only Redis may still have something, anywhere.
        let homes =
            sale.partition.map_or_else(|| operations.redis.partitions().collect(), |p| vec![p]);
        for partition in &homes {
            let waiting = operations.count_unapplied(*partition, id).await?;
            if waiting > 0 {
                return Err(Refused::RehearsalBusy { sale: id, what: waiting }.into());
            }
        }
        match sale.partition {
            None => operations.remove_rehearsal(id, &homes).await?,
            Some(partition) => {
                let lock = operations.lock_rebuild(partition).await?;
                let removed = tokio::select! {
                    removed = operations.remove_rehearsal(id, &homes) => removed,
                    never = lock.keep() => match never {},
                };
                // If this fails it runs out by itself.
                let _unlocked = lock.unlock().await;
                removed?;
            }
        }
        self.log("rehearsal.clean-up", id, "nothing is left of it").await
    }
}

impl Operations {
    /// Every rehearsal's sale that was not cleaned up, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn list_rehearsals(&self) -> Result<Vec<Sale>, OperationError> {
        Ok(self.database.list_rehearsals().await?)
    }

    /// A rehearsal's sale.
    ///
    /// # Errors
    /// When there is none, it is a sale like any other, or the database fails.
    pub async fn get_rehearsal(&self, id: SaleId) -> Result<Sale, OperationError> {
        let sale = self.get_sale(id).await?;
        if sale.rehearsal { Ok(sale) } else { Err(Refused::NotARehearsal(id).into()) }
    }

    /// How many entries of a sale are perhaps not applied yet.
    async fn count_unapplied(
        &self,
        partition: Partition,
        id: SaleId,
    ) -> Result<u64, OperationError> {
        let last = EntryId { ms: u64::MAX, seq: u64::MAX };
        let entries = self.redis.list_unapplied(partition, last).await?;
        let is_of_it = |entry| decode(partition, entry).is_ok_and(|order| order.sale_id == id);
        Ok(u64::try_from(entries.iter().filter(|entry| is_of_it(entry)).count())
            .unwrap_or(u64::MAX))
    }

    async fn remove_rehearsal(
        &self,
        id: SaleId,
        homes: &[Partition],
    ) -> Result<(), OperationError> {
        match self.database.erase_rehearsal(id).await? {
            Erasure::Done => {}
            Erasure::NotFound => return Err(Refused::SaleNotFound(id).into()),
            Erasure::NotARehearsal => return Err(Refused::NotARehearsal(id).into()),
            Erasure::State(state) => {
                return Err(Refused::State { sale: id, state, wanted: SaleState::Closed }.into());
            }
            Erasure::Unfinished(what) => {
                return Err(Refused::RehearsalBusy { sale: id, what }.into());
            }
        }
        for partition in homes {
            self.delete_letters_of(*partition, id).await?;
            self.redis.forget_sale(*partition, id).await?;
        }
        self.database.delete_rehearsal(id).await?;
        self.database.delete_stray_answers().await?;
        Ok(())
    }

    async fn delete_letters_of(
        &self,
        partition: Partition,
        id: SaleId,
    ) -> Result<(), OperationError> {
        for letter in self.redis.list_dead_letters(partition).await? {
            if letter.order(partition).is_ok_and(|order| order.sale_id == id) {
                self.redis.delete_dead_letter(partition, letter.entry.id).await?;
            }
        }
        Ok(())
    }
}
