//! The rules of a flash sale: no I/O, no async, no clock.
//!
//! Whatever is decided here is decided from values passed in, so that every rule can be tested as a
//! table and no rule depends on where the program runs.

mod admission;
mod buyer;
mod idempotency;
mod money;
mod order;
mod order_id;
mod payment;
mod sale;

pub use admission::{Admission, AdmissionRequest, Refusal};
pub use buyer::{UserId, UserIdError};
pub use idempotency::{IdempotencyDigest, IdempotencyKey, IdempotencyKeyError};
pub use money::{Currency, CurrencyError, Price};
pub use order::{NewOrder, Order, OrderState, RejectReason, UnknownOrderState};
pub use order_id::{
    DIRECT_PARTITION, EntryId, EntryIdError, ID_EPOCH_MS, ID_MS_SHIFT, OrderId, OrderIdError,
    PARTITION_MAX, Partition, SEQ_MAX,
};
pub use payment::{NewPayment, PaymentOutcome, UnknownPaymentOutcome};
pub use sale::{
    LatePayment, NewSale, NewSaleError, PER_BUYER_MAX, REHEARSAL_BUYERS, STOCK_MAX, Sale, SaleId,
    SaleIdError, SaleMode, SaleState, UnknownLatePayment, UnknownSaleMode, UnknownSaleState,
    Window, WindowError, WindowPhase,
};
