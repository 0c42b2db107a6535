//! Money: an amount in minor units (cents, fen) and an ISO 4217 currency. Never a float.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An ISO 4217 alphabetic code, for example `CNY`. Only its form is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Currency([u8; 3]);

/// A text that is not a currency code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a currency is three capital letters of ISO 4217, for example CNY")]
pub struct CurrencyError;

impl FromStr for Currency {
    type Err = CurrencyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes: [u8; 3] = text.as_bytes().try_into().map_err(|_| CurrencyError)?;
        if bytes.iter().all(u8::is_ascii_uppercase) { Ok(Self(bytes)) } else { Err(CurrencyError) }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).expect("three ASCII letters"))
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What one unit costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// In minor units of the currency; 9,900 CNY is 99 yuan. Never negative.
    pub amount: i64,
    /// The currency.
    pub currency: Currency,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_currency_is_three_capital_letters() {
        assert_eq!("CNY".parse::<Currency>().map(|c| c.to_string()), Ok("CNY".into()));
        for bad in ["", "cny", "CN", "CNYX", "C1Y", "元元元", "¥"] {
            assert_eq!(bad.parse::<Currency>(), Err(CurrencyError), "{bad:?}");
        }
    }
}
