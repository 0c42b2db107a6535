//! Tokens: what they say, until when it is so, and whether it was signed with our key.
//!
//! A token is taken apart once. `jsonwebtoken` checks the signature; its own reading of a token takes the
//! claims apart twice, which on the way of every order is felt.

use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flashsale_bootstrap::clock;
use flashsale_bootstrap::settings::{AuthSettings, TokenKey};
use flashsale_domain::UserId;
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::problem::Problem;

pub(crate) const EXPIRED: Problem = Problem::Unauthorized("the token has expired");
const IMMATURE: Problem = Problem::Unauthorized("the token is not valid yet");
const INVALID: Problem = Problem::Unauthorized("the token is not valid");

/// What opens the operators' API.
const OPERATOR_ROLE: &str = "admin";

/// Checks tokens with one key and one algorithm. Which algorithm is ours to say, never the token's.
pub(crate) struct TokenKeyring {
    key: DecodingKey,
    algorithm: Algorithm,
    leeway: Duration,
}

/// What is true of a token in its time.
#[derive(Debug, Clone)]
pub(crate) struct Bearer {
    pub(crate) user_id: UserId,
    /// Seconds since the Unix epoch.
    pub(crate) exp: f64,
    pub(crate) is_operator: bool,
}

#[derive(Deserialize)]
struct Header {
    alg: Algorithm,
    /// What a reader has to understand beyond RFC 7515. Nothing of it is understood here.
    #[serde(default)]
    crit: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// Seconds since the Unix epoch.
    exp: f64,
    /// Seconds since the Unix epoch.
    #[serde(default)]
    nbf: Option<f64>,
    #[serde(default)]
    role: Option<String>,
}

/// The three parts of a token.
struct Parts<'a> {
    /// Header and payload, as they were signed.
    message: &'a str,
    header: &'a str,
    payload: &'a str,
    signature: &'a str,
}

impl<'a> Parts<'a> {
    fn of(token: &'a str) -> Result<Self, Problem> {
        let (message, signature) = token.rsplit_once('.').ok_or(INVALID)?;
        let (header, payload) = message.rsplit_once('.').ok_or(INVALID)?;
        Ok(Self { message, header, payload, signature })
    }
}

impl TokenKeyring {
    /// HS256 from a shared secret; EdDSA or RS256 from a public key file.
    pub(crate) fn new(settings: &AuthSettings) -> anyhow::Result<Self> {
        let (key, algorithm) = match settings.require()? {
            TokenKey::Secret(secret) => (
                DecodingKey::from_secret(secret.expose_secret().as_bytes())
                    .context("auth.jwt_secret cannot be used")?,
                Algorithm::HS256,
            ),
            TokenKey::PublicKeyFile(path) => {
                let pem = std::fs::read(path).context("auth.jwt_public_key_file cannot be read")?;
                if let Ok(key) = DecodingKey::from_ed_pem(&pem) {
                    (key, Algorithm::EdDSA)
                } else if let Ok(key) = DecodingKey::from_rsa_pem(&pem) {
                    (key, Algorithm::RS256)
                } else {
                    bail!(
                        "auth.jwt_public_key_file is no PEM file with an Ed25519 or RSA public key"
                    );
                }
            }
        };
        Ok(Self { key, algorithm, leeway: settings.leeway })
    }

    /// Whether a signature takes so long to check that it pays to remember which were good.
    pub(crate) fn is_slow(&self) -> bool {
        self.algorithm != Algorithm::HS256
    }

    /// Reads a token whose signature is good and whose time it is. Which audience a shop's tokens name
    /// is the shop's affair.
    pub(crate) fn verify(&self, token: &str) -> Result<Bearer, Problem> {
        let parts = Parts::of(token)?;
        let header = read_part::<Header>(parts.header)?;
        if header.alg != self.algorithm || header.crit.is_some() {
            return Err(INVALID);
        }
        let message = parts.message.as_bytes();
        if !crypto::verify(parts.signature, message, &self.key, self.algorithm).unwrap_or(false) {
            return Err(INVALID);
        }
        self.read_claims(parts.payload)
    }

    /// Reads a token in its time, whoever has signed it.
    pub(crate) fn read_unverified(&self, token: &str) -> Result<Bearer, Problem> {
        self.read_claims(Parts::of(token)?.payload)
    }

    /// Whether it is too late for a token that expires at `exp`, in seconds since the Unix epoch.
    pub(crate) fn is_expired(&self, exp: f64) -> bool {
        exp + self.leeway.as_secs_f64() < now_s()
    }

    /// How long a token is still good.
    pub(crate) fn time_left(&self, exp: f64) -> Duration {
        let left = exp + self.leeway.as_secs_f64() - now_s();
        Duration::try_from_secs_f64(left).unwrap_or(if left > 0.0 {
            Duration::MAX
        } else {
            Duration::ZERO
        })
    }

    fn read_claims(&self, payload: &str) -> Result<Bearer, Problem> {
        let claims: Claims = read_part(payload)?;
        if self.is_expired(claims.exp) {
            return Err(EXPIRED);
        }
        if claims.nbf.is_some_and(|nbf| nbf - self.leeway.as_secs_f64() > now_s()) {
            return Err(IMMATURE);
        }
        let user_id = UserId::new(claims.sub).map_err(|_| {
            Problem::Unauthorized(
                "the token's sub is not 1 to 128 bytes without control characters",
            )
        })?;
        let is_operator = claims.role.as_deref() == Some(OPERATOR_ROLE);
        Ok(Bearer { user_id, exp: claims.exp, is_operator })
    }
}

fn read_part<T: DeserializeOwned>(part: &str) -> Result<T, Problem> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| INVALID)?;
    serde_json::from_slice(&json).map_err(|_| INVALID)
}

fn now_s() -> f64 {
    Duration::from_millis(u64::try_from(clock::now_ms()).unwrap_or(0)).as_secs_f64()
}
