//! Who asks: the bearer token, checked once, at the edge.
//!
//! The signature of a public key takes ten times as long to check as a whole order takes otherwise, and
//! buyers press twice. So each worker thread remembers tokens whose signature was good, up to a number,
//! and looks only at their times again.

use std::cell::RefCell;
use std::future::{Ready, ready};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::http::header::AUTHORIZATION;
use actix_web::{FromRequest, HttpRequest, web};
use anyhow::{Context as _, bail};
use flashsale_bootstrap::clock;
use flashsale_bootstrap::settings::{AuthSettings, TokenKey};
use flashsale_domain::UserId;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use lru::LruCache;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use tokio::time::Instant;

use crate::headers::at_most_one;
use crate::problem::Problem;

/// What opens the operators' API.
const OPERATOR_ROLE: &str = "admin";

const EXPIRED: Problem = Problem::Unauthorized("the token has expired");
const IMMATURE: Problem = Problem::Unauthorized("the token is not valid yet");
const INVALID: Problem = Problem::Unauthorized("the token is not valid");

/// A token that is longer is checked each time: the memory of a thread stays small. Bytes.
const REMEMBERED_LENGTH_MAX: usize = 2048;

const TOKEN_LEFT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Checks tokens with one key and one algorithm. Which algorithm is ours to say, never the token's.
pub(crate) struct TokenVerifier {
    key: DecodingKey,
    validation: Validation,
    leeway: Duration,
    /// How many tokens a thread remembers; `None` where checking again is as quick.
    remembered_max: Option<NonZeroUsize>,
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

impl TokenVerifier {
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
        let mut validation = Validation::new(algorithm);
        validation.leeway = settings.leeway.as_secs();
        validation.validate_nbf = true;
        // Which audience a shop's tokens name is the shop's affair.
        validation.validate_aud = false;
        validation.set_required_spec_claims(&["exp", "sub"]);
        let remembered_max =
            NonZeroUsize::new(settings.remembered_tokens).filter(|_| algorithm != Algorithm::HS256);
        Ok(Self { key, validation, leeway: settings.leeway, remembered_max })
    }

    /// The operator who sent the request.
    pub(crate) fn verify_operator(&self, request: &HttpRequest) -> Result<UserId, Problem> {
        let (user_id, claims) = self.verify(bearer(request)?)?;
        if claims.role.as_deref() == Some(OPERATOR_ROLE) {
            Ok(user_id)
        } else {
            Err(Problem::Forbidden)
        }
    }

    fn verify(&self, token: &str) -> Result<(UserId, Claims), Problem> {
        let token = decode::<Claims>(token, &self.key, &self.validation).map_err(|error| {
            use jsonwebtoken::errors::ErrorKind;
            match error.kind() {
                ErrorKind::ExpiredSignature => EXPIRED,
                ErrorKind::ImmatureSignature => IMMATURE,
                _ => INVALID,
            }
        })?;
        user_of(token.claims)
    }

    /// How long a token is still good.
    fn time_left(&self, exp: f64) -> Duration {
        let left = Duration::try_from_secs_f64(exp - now_s()).unwrap_or(Duration::ZERO);
        // A token that is good for longer than a stream lasts may as well be good for a year.
        left.min(TOKEN_LEFT_MAX)
    }
}

fn now_s() -> f64 {
    Duration::from_millis(u64::try_from(clock::now_ms()).unwrap_or(0)).as_secs_f64()
}

fn bearer(request: &HttpRequest) -> Result<&str, Problem> {
    let header = at_most_one(request, &AUTHORIZATION)?
        .ok_or(Problem::Unauthorized("send Authorization: Bearer <token>"))?;
    let parts = header.to_str().ok().and_then(|text| text.split_once(' '));
    match parts {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(Problem::Unauthorized("the Authorization header is not Bearer <token>")),
    }
}

fn user_of(mut claims: Claims) -> Result<(UserId, Claims), Problem> {
    let user_id = UserId::new(std::mem::take(&mut claims.sub)).map_err(|_| {
        Problem::Unauthorized("the token's sub is not 1 to 128 bytes without control characters")
    })?;
    Ok((user_id, claims))
}

/// What a worker thread checks buyers' tokens with. Clones, within the thread, share what it remembers.
#[derive(Clone)]
pub(crate) struct BuyerVerifier {
    verifier: Arc<TokenVerifier>,
    remembered: Option<Rc<RefCell<Tokens>>>,
}

type Tokens = LruCache<Box<str>, Remembered>;

/// What was in a token whose signature was good.
#[derive(Clone)]
struct Remembered {
    user_id: UserId,
    exp: f64,
}

impl BuyerVerifier {
    pub(crate) fn new(verifier: Arc<TokenVerifier>) -> Self {
        let remembered =
            verifier.remembered_max.map(|max| Rc::new(RefCell::new(LruCache::new(max))));
        Self { verifier, remembered }
    }

    /// The buyer who sent the request.
    pub(crate) fn verify(&self, request: &HttpRequest) -> Result<Buyer, Problem> {
        let token = bearer(request)?;
        let Remembered { user_id, exp } = match self.recall(token) {
            Some(remembered) => remembered?,
            None => {
                let (user_id, claims) = self.verifier.verify(token)?;
                let known = Remembered { user_id, exp: claims.exp };
                self.remember(token, &known);
                known
            }
        };
        let left = self.verifier.time_left(exp) + self.verifier.leeway;
        Ok(Buyer { user_id, expires_at: Instant::now() + left })
    }

    /// Who the request says has sent it: the token is well-formed and in its time, and nobody has
    /// looked at its signature. Good enough only for an answer that anybody may get.
    pub(crate) fn read_claimed_user(&self, request: &HttpRequest) -> Result<UserId, Problem> {
        let claims: Claims = insecure_decode_claims(bearer(request)?).map_err(|_| INVALID)?;
        let (now_s, leeway_s) = (now_s(), self.verifier.leeway.as_secs_f64());
        if claims.exp + leeway_s < now_s {
            return Err(EXPIRED);
        }
        if claims.nbf.is_some_and(|nbf| nbf - leeway_s > now_s) {
            return Err(IMMATURE);
        }
        Ok(user_of(claims)?.0)
    }

    fn recall(&self, token: &str) -> Option<Result<Remembered, Problem>> {
        let mut remembered = self.remembered.as_ref()?.borrow_mut();
        let known = remembered.get(token)?;
        if known.exp + self.verifier.leeway.as_secs_f64() >= now_s() {
            return Some(Ok(known.clone()));
        }
        remembered.pop(token);
        Some(Err(EXPIRED))
    }

    fn remember(&self, token: &str, known: &Remembered) {
        if let Some(remembered) = &self.remembered
            && token.len() <= REMEMBERED_LENGTH_MAX
        {
            remembered.borrow_mut().put(token.into(), known.clone());
        }
    }
}

/// The buyer who sent the request.
pub(crate) struct Buyer {
    pub(crate) user_id: UserId,
    /// When the token is no longer good.
    pub(crate) expires_at: Instant,
}

impl FromRequest for Buyer {
    type Error = Problem;
    type Future = Ready<Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let verifier = request.app_data::<web::ThinData<BuyerVerifier>>();
        ready(verifier.expect("every app is built with one").verify(request))
    }
}
