//! Signing and verifying webhooks as the Standard Webhooks specification has it
//! (<https://github.com/standard-webhooks/standard-webhooks>): HMAC-SHA256 over
//! `<id>.<timestamp>.<body>`, as `v1,<base64>` in `webhook-signature`.
//!
//! No I/O and no clock: who calls says what time it is.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The header with the message's id: the same for every try to deliver it.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of sending: seconds since the Unix epoch.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures, separated by spaces.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// How far the time of sending may be off, in seconds, in either direction.
pub const TOLERANCE_S: i64 = 300;
/// The longest id that is accepted, in bytes.
const ID_BYTES_MAX: usize = 256;

/// One or several secrets. The first one signs; a signature by any of them is good, so that a
/// secret can be replaced while messages signed with the old one are still on their way.
#[derive(Clone)]
pub struct Secrets {
    keys: Vec<Vec<u8>>,
}

/// A text that holds no usable secrets. It is not quoted: it is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "webhook secrets are separated by spaces; each is whsec_ and base64, or a text of at least {} bytes",
    Secrets::BYTES_MIN
)]
pub struct SecretsError;

/// Why a message is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The id is missing or not usable.
    #[error("webhook-id is not 1 to 256 visible ASCII characters")]
    Id,
    /// The time is missing or no number.
    #[error("webhook-timestamp is not a number of seconds since 1970")]
    Timestamp,
    /// The message is too old, or from the future.
    #[error("webhook-timestamp is more than 5 minutes off")]
    OutOfTolerance,
    /// No signature is by one of the secrets.
    #[error("webhook-signature holds no signature of this message")]
    Signature,
}

/// A message's headers and body, as they came.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`.
    pub timestamp: &'a str,
    /// `webhook-signature`.
    pub signature: &'a str,
    /// The body, byte for byte.
    pub body: &'a [u8],
}

impl Secrets {
    /// The shortest secret, in bytes. The specification asks for 24 to 64, and a provider's own secret
    /// is what it is.
    pub const BYTES_MIN: usize = 8;

    /// Secrets separated by spaces, the one that signs first.
    ///
    /// # Errors
    /// When there is none, or one is too short or no base64.
    pub fn parse(text: &str) -> Result<Self, SecretsError> {
        let key = |secret: &str| match secret.strip_prefix("whsec_") {
            Some(encoded) => BASE64.decode(encoded).map_err(|_| SecretsError),
            None => Ok(secret.as_bytes().to_vec()),
        };
        let keys: Vec<Vec<u8>> = text.split_whitespace().map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() || keys.iter().any(|key| key.len() < Self::BYTES_MIN) {
            return Err(SecretsError);
        }
        Ok(Self { keys })
    }

    /// The value of `webhook-signature` for a message.
    pub fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let mac = mac(&self.keys[0], id, &timestamp_s.to_string(), body);
        format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
    }

    /// Checks a message at `now_s`, seconds since the Unix epoch. Signatures are compared in constant
    /// time.
    ///
    /// # Errors
    /// The first reason not to accept it.
    pub fn verify(&self, message: &Message<'_>, now_s: i64) -> Result<(), Refusal> {
        let visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !(1..=ID_BYTES_MAX).contains(&message.id.len()) || !visible(message.id) {
            return Err(Refusal::Id);
        }
        let timestamp_s: i64 = message.timestamp.parse().map_err(|_| Refusal::Timestamp)?;
        if now_s.saturating_sub(timestamp_s).saturating_abs() > TOLERANCE_S {
            return Err(Refusal::OutOfTolerance);
        }
        let signatures = message.signature.split(' ').filter_map(|part| part.strip_prefix("v1,"));
        let good = signatures.filter_map(|encoded| BASE64.decode(encoded).ok()).any(|signature| {
            self.keys.iter().any(|key| {
                let mac = mac(key, message.id, message.timestamp, message.body);
                mac.verify_slice(&signature).is_ok()
            })
        });
        if good { Ok(()) } else { Err(Refusal::Signature) }
    }
}

fn mac(key: &[u8], id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    mac
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} of them)", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example that the specification's libraries test themselves with.
    const KNOWN_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const KNOWN_ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const KNOWN_TIME_S: i64 = 1_614_265_330;
    const KNOWN_BODY: &[u8] = br#"{"test": 2432232314}"#;
    const KNOWN_SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn message<'a>(signature: &'a str, timestamp: &'a str) -> Message<'a> {
        Message { id: KNOWN_ID, timestamp, signature, body: KNOWN_BODY }
    }

    #[test]
    fn a_known_message_has_its_known_signature() {
        let secrets = Secrets::parse(KNOWN_SECRET).expect("a secret");
        assert_eq!(secrets.sign(KNOWN_ID, KNOWN_TIME_S, KNOWN_BODY), KNOWN_SIGNATURE);
        let good = message(KNOWN_SIGNATURE, "1614265330");
        assert_eq!(secrets.verify(&good, KNOWN_TIME_S), Ok(()));
    }

    #[test]
    fn what_was_altered_is_refused() {
        let secrets = Secrets::parse(KNOWN_SECRET).expect("a secret");
        let good = message(KNOWN_SIGNATURE, "1614265330");
        let cases = [
            (Message { body: br#"{"test": 2432232315}"#, ..good }, Refusal::Signature),
            (Message { id: "msg_other", ..good }, Refusal::Signature),
            (Message { timestamp: "1614265331", ..good }, Refusal::Signature),
            (Message { signature: "v1,AAAA", ..good }, Refusal::Signature),
            (
                Message { signature: "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", ..good },
                Refusal::Signature,
            ),
            (Message { signature: "", ..good }, Refusal::Signature),
            (Message { id: "", ..good }, Refusal::Id),
            (Message { id: "a b", ..good }, Refusal::Id),
            (Message { timestamp: "now", ..good }, Refusal::Timestamp),
            (Message { timestamp: "", ..good }, Refusal::Timestamp),
        ];
        for (message, refusal) in cases {
            assert_eq!(secrets.verify(&message, KNOWN_TIME_S), Err(refusal), "{message:?}");
        }
    }

    #[test]
    fn a_message_is_good_for_five_minutes_either_way() {
        let secrets = Secrets::parse(KNOWN_SECRET).expect("a secret");
        let good = message(KNOWN_SIGNATURE, "1614265330");
        for off in [-300, 300] {
            assert_eq!(secrets.verify(&good, KNOWN_TIME_S + off), Ok(()), "{off}");
        }
        for off in [-301, 301, i64::MAX - KNOWN_TIME_S, i64::MIN] {
            let now_s = KNOWN_TIME_S.saturating_add(off);
            assert_eq!(secrets.verify(&good, now_s), Err(Refusal::OutOfTolerance), "{off}");
        }
    }

    #[test]
    fn any_of_several_secrets_and_signatures_is_enough() {
        let old = Secrets::parse("an-old-secret-0123456789").expect("a secret");
        let both = Secrets::parse(&format!("{KNOWN_SECRET} an-old-secret-0123456789"));
        let both = both.expect("two secrets");
        let by_old = old.sign(KNOWN_ID, KNOWN_TIME_S, KNOWN_BODY);
        let good = message(&by_old, "1614265330");
        assert_eq!(both.verify(&good, KNOWN_TIME_S), Ok(()));
        assert_eq!(both.sign(KNOWN_ID, KNOWN_TIME_S, KNOWN_BODY), KNOWN_SIGNATURE);

        let several = format!("v1a,xx {by_old} {KNOWN_SIGNATURE}");
        let known = Secrets::parse(KNOWN_SECRET).expect("a secret");
        assert_eq!(known.verify(&message(&several, "1614265330"), KNOWN_TIME_S), Ok(()));
        let other = Secrets::parse("another-secret-0123456789").expect("a secret");
        let refused = other.verify(&message(&several, "1614265330"), KNOWN_TIME_S);
        assert_eq!(refused, Err(Refusal::Signature));
    }

    #[test]
    fn unusable_secrets_are_refused_and_none_is_shown() {
        for text in ["", "  ", "short", "whsec_", "whsec_not base64 at all!!", "whsec_c2hvcnQ="] {
            assert_eq!(Secrets::parse(text).err(), Some(SecretsError), "{text:?}");
        }
        let secrets = Secrets::parse(KNOWN_SECRET).expect("a secret");
        assert!(!format!("{secrets:?}").contains("Mf"), "{secrets:?}");
    }
}
