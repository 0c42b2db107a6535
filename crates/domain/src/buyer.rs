//! The buyer: the subject of a verified token, checked once and then trusted everywhere.

use std::fmt;

use serde::Serialize;

/// A buyer's id: 1 to 128 bytes of UTF-8 without control characters.
///
/// Control characters are refused because the id is stored in Redis, SQL, logs and CSV files, and
/// one of them always gives a newline or a NUL a meaning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct UserId(String);

/// Why a text is not a buyer's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UserIdError {
    /// Empty, or longer than 128 bytes.
    #[error("a buyer's id has 1 to 128 bytes")]
    Length,
    /// A control character in it.
    #[error("a buyer's id has no control characters")]
    ControlCharacter,
}

impl UserId {
    const BYTES_MAX: usize = 128;

    /// Checks and takes a buyer's id.
    ///
    /// # Errors
    /// When it is empty, too long, or has a control character.
    pub fn new(id: impl Into<String>) -> Result<Self, UserIdError> {
        let id = id.into();
        if id.is_empty() || id.len() > Self::BYTES_MAX {
            return Err(UserIdError::Length);
        }
        if id.chars().any(char::is_control) {
            return Err(UserIdError::ControlCharacter);
        }
        Ok(Self(id))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_id_is_short_clean_text() {
        for good in ["1", "user-42", "用户一", &"x".repeat(128), "a b", "o'brien\"; drop"] {
            assert!(UserId::new(good).is_ok(), "{good:?}");
        }
        let cases = [
            (String::new(), UserIdError::Length),
            ("x".repeat(129), UserIdError::Length),
            ("用".repeat(43), UserIdError::Length),
            ("a\nb".into(), UserIdError::ControlCharacter),
            ("a\0".into(), UserIdError::ControlCharacter),
            ("a\u{85}".into(), UserIdError::ControlCharacter),
            ("a\u{7f}".into(), UserIdError::ControlCharacter),
        ];
        for (bad, error) in cases {
            assert_eq!(UserId::new(bad.clone()), Err(error), "{bad:?}");
        }
    }
}
