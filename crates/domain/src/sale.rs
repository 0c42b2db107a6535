//! Sales: the window, the states, the limits, and what a new sale must look like.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::order_id::parse_digits;
use crate::{Partition, Price};

/// A sale's id: a positive number below 2^63, a string in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaleId(i64);

/// A text that is not a sale's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sale's id is a decimal number from 1 to 9223372036854775807")]
pub struct SaleIdError;

impl SaleId {
    /// An id from a number as the database stores it; `None` when it is not positive.
    pub const fn from_i64(id: i64) -> Option<Self> {
        if id > 0 { Some(Self(id)) } else { None }
    }

    /// The number as the database stores it.
    pub const fn as_i64(self) -> i64 {
        self.0
    }
}

impl FromStr for SaleId {
    type Err = SaleIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_digits(text)
            .and_then(|id| i64::try_from(id).ok())
            .and_then(Self::from_i64)
            .ok_or(SaleIdError)
    }
}

impl fmt::Display for SaleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for SaleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaleId({})", self.0)
    }
}

impl Serialize for SaleId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SaleId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Where a sale stands in its life: `draft` → `published` ⇄ `paused` → `closed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaleState {
    /// Being prepared; buyers do not see it.
    Draft,
    /// Visible, and for sale within its window.
    Published,
    /// Visible, but nobody is admitted.
    Paused,
    /// Over for good.
    Closed,
}

/// A text that names no sale state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sale's state is one of draft, published, paused, closed")]
pub struct UnknownSaleState;

impl SaleState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Draft, Self::Published, Self::Paused, Self::Closed];

    /// The name used in JSON, SQL and Redis.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Published => "published",
            Self::Paused => "paused",
            Self::Closed => "closed",
        }
    }

    /// Whether a sale in this state may go to `next`.
    pub const fn can_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Draft, Self::Published)
                | (Self::Published, Self::Paused | Self::Closed)
                | (Self::Paused, Self::Published | Self::Closed)
        )
    }
}

impl fmt::Display for SaleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SaleState {
    type Err = UnknownSaleState;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or(UnknownSaleState)
    }
}

/// How orders of a sale are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaleMode {
    /// Admitted in Redis, written later by the order-worker.
    Queued,
    /// One database transaction, answered when it is committed.
    Direct,
}

/// A text that names no sale mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sale's mode is queued or direct")]
pub struct UnknownSaleMode;

impl SaleMode {
    /// The name used in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for SaleMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SaleMode {
    type Err = UnknownSaleMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "queued" => Ok(Self::Queued),
            "direct" => Ok(Self::Direct),
            _ => Err(UnknownSaleMode),
        }
    }
}

/// What happens to money that arrives after its order has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatePayment {
    /// The order takes a unit again, if there is one for it; else the money is due back.
    Reacquire,
    /// The money is due back.
    Refund,
}

/// A text that names no late-payment policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a late payment is handled by reacquire or refund")]
pub struct UnknownLatePayment;

impl LatePayment {
    /// The name used in JSON and SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reacquire => "reacquire",
            Self::Refund => "refund",
        }
    }
}

impl fmt::Display for LatePayment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LatePayment {
    type Err = UnknownLatePayment;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "reacquire" => Ok(Self::Reacquire),
            "refund" => Ok(Self::Refund),
            _ => Err(UnknownLatePayment),
        }
    }
}

/// When a sale is open: `opens ≤ now < closes`, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    opens_ms: i64,
    closes_ms: i64,
}

/// A window that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sale closes after it opens, and both times lie between 2024 and 2093")]
pub struct WindowError;

/// Where a moment lies in relation to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowPhase {
    /// Before it.
    NotStarted,
    /// In it.
    Open,
    /// At its end or after it.
    Ended,
}

impl Window {
    /// The times of order ids: 2024-01-01 and 2^41 ms later.
    const EARLIEST_MS: i64 = 1_704_067_200_000;
    const LATEST_MS: i64 = Self::EARLIEST_MS + (1 << 41) - 1;

    /// A window from `opens_ms` (inclusive) to `closes_ms` (exclusive).
    ///
    /// # Errors
    /// When it would be empty or lies outside the times that order ids can express.
    pub const fn new(opens_ms: i64, closes_ms: i64) -> Result<Self, WindowError> {
        if opens_ms >= Self::EARLIEST_MS && opens_ms < closes_ms && closes_ms <= Self::LATEST_MS {
            Ok(Self { opens_ms, closes_ms })
        } else {
            Err(WindowError)
        }
    }

    /// The first millisecond in which orders are taken.
    pub const fn opens_ms(self) -> i64 {
        self.opens_ms
    }

    /// The first millisecond in which they no longer are.
    pub const fn closes_ms(self) -> i64 {
        self.closes_ms
    }

    /// Where `now_ms` lies.
    pub const fn phase_at(self, now_ms: i64) -> WindowPhase {
        if now_ms < self.opens_ms {
            WindowPhase::NotStarted
        } else if now_ms < self.closes_ms {
            WindowPhase::Open
        } else {
            WindowPhase::Ended
        }
    }
}

/// The most units of a sale: the largest whose stock and records still fit one Redis hash in
/// practice.
pub const STOCK_MAX: i64 = 100_000_000;

/// The most open orders that a sale may allow one buyer.
pub const PER_BUYER_MAX: u16 = 20;

/// A sale as an operator describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSale {
    /// What buyers read.
    pub title: String,
    /// How orders are decided.
    pub mode: SaleMode,
    /// Units for sale.
    pub stock: i64,
    /// When.
    pub window: Window,
    /// How many open orders of one unit a buyer may hold.
    pub per_buyer: u16,
    /// What a unit costs.
    pub price: Price,
    /// How long a buyer has to pay, in seconds.
    pub payment_window_s: i64,
    /// What happens to money that comes later.
    pub late_payment: LatePayment,
}

/// What is wrong with a new sale.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NewSaleError {
    /// The title.
    #[error("a title has 1 to 200 characters and no control characters")]
    Title,
    /// The stock.
    #[error("stock is a number from 1 to 100000000")]
    Stock,
    /// The limit.
    #[error("the limit per buyer is a number from 1 to 20")]
    PerBuyer,
    /// The price.
    #[error("a price is a number of minor units from 0 to 1000000000000")]
    Price,
    /// The payment window.
    #[error("the payment window is 1 second to 30 days")]
    PaymentWindow,
}

impl NewSale {
    const TITLE_CHARS_MAX: usize = 200;
    const PRICE_MAX: i64 = 1_000_000_000_000;
    const PAYMENT_WINDOW_MAX_S: i64 = 30 * 24 * 3600;

    /// Checks what no type has checked yet.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn validate(&self) -> Result<(), NewSaleError> {
        let title = self.title.trim();
        if title.is_empty()
            || title.chars().count() > Self::TITLE_CHARS_MAX
            || title.chars().any(char::is_control)
        {
            return Err(NewSaleError::Title);
        }
        if !(1..=STOCK_MAX).contains(&self.stock) {
            return Err(NewSaleError::Stock);
        }
        if !(1..=PER_BUYER_MAX).contains(&self.per_buyer) {
            return Err(NewSaleError::PerBuyer);
        }
        if !(0..=Self::PRICE_MAX).contains(&self.price.amount) {
            return Err(NewSaleError::Price);
        }
        if !(1..=Self::PAYMENT_WINDOW_MAX_S).contains(&self.payment_window_s) {
            return Err(NewSaleError::PaymentWindow);
        }
        Ok(())
    }
}

/// A sale as the database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sale {
    /// Its id.
    pub id: SaleId,
    /// What buyers read.
    pub title: String,
    /// How orders are decided.
    pub mode: SaleMode,
    /// Where it stands.
    pub state: SaleState,
    /// Units for sale in all.
    pub stock_total: i64,
    /// Units without an open row: lags behind Redis while orders are queued.
    pub stock_left: i64,
    /// When.
    pub window: Window,
    /// How many open orders of one unit a buyer may hold.
    pub per_buyer: u16,
    /// What a unit costs.
    pub price: Price,
    /// How long a buyer has to pay, in seconds.
    pub payment_window_s: i64,
    /// What happens to money that comes later.
    pub late_payment: LatePayment,
    /// Its home in Redis, chosen when it is published; never set for a direct sale.
    pub partition: Option<Partition>,
    /// Counts the sale's rebuilds.
    pub epoch: i64,
    /// Whether it is a rehearsal's: not shown to buyers, not told to the shop, erased afterwards.
    pub rehearsal: bool,
}

/// What the ids of a rehearsal's buyers begin with. Nobody else is admitted to its sale.
pub const REHEARSAL_BUYERS: &str = "rehearsal:";

#[cfg(test)]
mod tests {
    use super::*;

    const T: i64 = 1_800_000_000_000;

    fn new_sale() -> NewSale {
        NewSale {
            title: "Voucher".into(),
            mode: SaleMode::Queued,
            stock: 10,
            window: Window::new(T, T + 1000).expect("a window"),
            per_buyer: 1,
            price: Price { amount: 9900, currency: "CNY".parse().expect("a currency") },
            payment_window_s: 900,
            late_payment: LatePayment::Reacquire,
        }
    }

    #[test]
    fn a_window_is_open_from_its_first_to_before_its_last_millisecond() {
        let window = Window::new(T, T + 1000).expect("a window");
        let cases = [
            (T - 1, WindowPhase::NotStarted),
            (T, WindowPhase::Open),
            (T + 999, WindowPhase::Open),
            (T + 1000, WindowPhase::Ended),
            (i64::MIN, WindowPhase::NotStarted),
            (i64::MAX, WindowPhase::Ended),
        ];
        for (now, phase) in cases {
            assert_eq!(window.phase_at(now), phase, "{now}");
        }
    }

    #[test]
    fn an_empty_or_absurd_window_is_refused() {
        for (opens, closes) in [(T, T), (T, T - 1), (0, T), (T, i64::MAX), (-1, 1)] {
            assert_eq!(Window::new(opens, closes), Err(WindowError), "{opens}..{closes}");
        }
    }

    #[test]
    fn a_sale_moves_only_forward_but_for_pause_and_resume() {
        use SaleState::{Closed, Draft, Paused, Published};
        let legal = [
            (Draft, Published),
            (Published, Paused),
            (Paused, Published),
            (Published, Closed),
            (Paused, Closed),
        ];
        for from in SaleState::ALL {
            for to in SaleState::ALL {
                assert_eq!(from.can_become(to), legal.contains(&(from, to)), "{from} -> {to}");
            }
            assert_eq!(from.as_str().parse(), Ok(from));
        }
    }

    #[test]
    fn a_new_sale_is_checked_field_by_field() {
        assert_eq!(new_sale().validate(), Ok(()));
        type Change = fn(&mut NewSale);
        let cases: [(Change, NewSaleError); 12] = [
            (|s| s.title = "  ".into(), NewSaleError::Title),
            (|s| s.title = "x".repeat(201), NewSaleError::Title),
            (|s| s.title = "a\nb".into(), NewSaleError::Title),
            (|s| s.stock = 0, NewSaleError::Stock),
            (|s| s.stock = -1, NewSaleError::Stock),
            (|s| s.stock = 100_000_001, NewSaleError::Stock),
            (|s| s.per_buyer = 0, NewSaleError::PerBuyer),
            (|s| s.per_buyer = 21, NewSaleError::PerBuyer),
            (|s| s.price.amount = -1, NewSaleError::Price),
            (|s| s.price.amount = i64::MAX, NewSaleError::Price),
            (|s| s.payment_window_s = 0, NewSaleError::PaymentWindow),
            (|s| s.payment_window_s = 2_592_001, NewSaleError::PaymentWindow),
        ];
        for (change, error) in cases {
            let mut sale = new_sale();
            change(&mut sale);
            assert_eq!(sale.validate(), Err(error));
        }
    }

    #[test]
    fn texts_that_are_not_sale_ids_are_refused() {
        for text in ["", "0", "-1", "+5", "05", "abc", "9223372036854775808", "1 "] {
            assert_eq!(text.parse::<SaleId>(), Err(SaleIdError), "{text:?}");
        }
        assert_eq!("9223372036854775807".parse::<SaleId>().map(SaleId::as_i64), Ok(i64::MAX));
    }
}
