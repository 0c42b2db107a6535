//! Idempotency keys: what a client sends, and the digest that is kept of it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// A client's `Idempotency-Key`: 1 to 255 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

/// Why a text is not an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an Idempotency-Key has 1 to 255 visible ASCII characters")]
pub struct IdempotencyKeyError;

impl IdempotencyKey {
    const LENGTH_MAX: usize = 255;

    /// Checks and takes a key.
    ///
    /// # Errors
    /// When it is empty, too long, or has a character that is not visible ASCII.
    pub fn new(key: impl Into<String>) -> Result<Self, IdempotencyKeyError> {
        let key = key.into();
        let fits = (1..=Self::LENGTH_MAX).contains(&key.len());
        if fits && key.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Self(key))
        } else {
            Err(IdempotencyKeyError)
        }
    }

    /// The key as it was sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What is stored of the key.
    pub fn digest(&self) -> IdempotencyDigest {
        let hash = Sha256::digest(self.0.as_bytes());
        IdempotencyDigest(URL_SAFE_NO_PAD.encode(&hash[..IdempotencyDigest::BYTES]))
    }
}

/// The first 64 bits of the key's SHA-256, as 11 characters of URL-safe base64.
///
/// 64 bits are enough: digests are only ever compared within one buyer's record of one sale, which
/// holds at most 20 orders, so two different keys meet by chance once in 10^17 records, and a buyer
/// who makes two keys collide on purpose only gets his own order back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyDigest(String);

impl IdempotencyDigest {
    const BYTES: usize = 8;
    /// The length of the text: 8 bytes in base64 without padding.
    const LENGTH: usize = 11;

    /// A digest as it was stored; `None` when the text cannot be one.
    pub fn from_stored(text: &str) -> Option<Self> {
        let fits = text.len() == Self::LENGTH
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        fits.then(|| Self(text.to_owned()))
    }

    /// The digest as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_visible_ascii() {
        for good in ["k", "8e03978e-40d5-43e8-bc93-6894a57f9324", "~!@#", &"x".repeat(255)] {
            assert!(IdempotencyKey::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "a b", "a\t", "a\n", "é", "钥", &"x".repeat(256), "\u{7f}"] {
            assert_eq!(IdempotencyKey::new(bad), Err(IdempotencyKeyError), "{bad:?}");
        }
    }

    #[test]
    fn a_digest_is_stable_and_differs_between_keys() {
        let digest = |key: &str| IdempotencyKey::new(key).expect("valid").digest();
        // The stored format: changing it would make every replay in flight a new order.
        assert_eq!(digest("abc").as_str(), "ungWv48Bz-o");
        assert_eq!(digest("abc"), digest("abc"));
        assert_ne!(digest("abc"), digest("abd"));
        assert_eq!(IdempotencyDigest::from_stored(digest("x").as_str()), Some(digest("x")));
    }

    #[test]
    fn a_stored_text_that_is_no_digest_is_refused() {
        for bad in ["", "short", "ungWv48Bz-o=", "ungWv48Bz;o", "ungWv48Bz oo"] {
            assert_eq!(IdempotencyDigest::from_stored(bad), None, "{bad:?}");
        }
    }
}
