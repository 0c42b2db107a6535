//! Who asks: the bearer token, checked once, at the edge.

use std::future::{Ready, ready};
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest, web};
use anyhow::{Context as _, bail};
use flashsale_bootstrap::clock;
use flashsale_bootstrap::settings::{AuthSettings, TokenKey};
use flashsale_domain::UserId;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use tokio::time::Instant;

use crate::app::State;
use crate::headers::at_most_one;
use crate::problem::Problem;

/// What opens the operators' API.
const OPERATOR_ROLE: &str = "admin";

const AUTHORIZATION: &str = "Authorization";
const TOKEN_LEFT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Checks tokens with one key and one algorithm. Which algorithm is ours to say, never the token's.
pub(crate) struct TokenVerifier {
    key: DecodingKey,
    validation: Validation,
    leeway: Duration,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// Seconds since the Unix epoch.
    exp: f64,
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
        Ok(Self { key, validation, leeway: settings.leeway })
    }

    fn verify(&self, request: &HttpRequest) -> Result<Buyer, Problem> {
        let (user_id, claims) = self.read_token(request)?;
        let now_s = Duration::from_millis(u64::try_from(clock::now_ms()).unwrap_or(0));
        let left = Duration::try_from_secs_f64(claims.exp - now_s.as_secs_f64());
        // A token that is good for longer than a stream lasts may as well be good for a year.
        let left = left.unwrap_or(Duration::ZERO).min(TOKEN_LEFT_MAX) + self.leeway;
        Ok(Buyer { user_id, expires_at: Instant::now() + left })
    }

    /// The operator who sent the request.
    pub(crate) fn verify_operator(&self, request: &HttpRequest) -> Result<UserId, Problem> {
        let (user_id, claims) = self.read_token(request)?;
        if claims.role.as_deref() == Some(OPERATOR_ROLE) {
            Ok(user_id)
        } else {
            Err(Problem::Forbidden)
        }
    }

    fn read_token(&self, request: &HttpRequest) -> Result<(UserId, Claims), Problem> {
        let header = at_most_one(request, AUTHORIZATION)?
            .ok_or(Problem::Unauthorized("send Authorization: Bearer <token>"))?;
        let malformed = Problem::Unauthorized("the Authorization header is not Bearer <token>");
        let (scheme, token) =
            header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(malformed.clone())?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(malformed);
        }
        let token =
            decode::<Claims>(token.trim(), &self.key, &self.validation).map_err(|error| {
                use jsonwebtoken::errors::ErrorKind;
                Problem::Unauthorized(match error.kind() {
                    ErrorKind::ExpiredSignature => "the token has expired",
                    ErrorKind::ImmatureSignature => "the token is not valid yet",
                    _ => "the token is not valid",
                })
            })?;
        let mut claims = token.claims;
        let user_id = UserId::new(std::mem::take(&mut claims.sub)).map_err(|_| {
            Problem::Unauthorized(
                "the token's sub is not 1 to 128 bytes without control characters",
            )
        })?;
        Ok((user_id, claims))
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
        let state = request.app_data::<web::Data<State>>().expect("every app is built with state");
        ready(state.verifier.verify(request))
    }
}
