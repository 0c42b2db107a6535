//! The check of a buyer's token that each design makes: HS256, not expired, by the plain use of the
//! library that the gateway uses too.

use actix_web::HttpRequest;
use actix_web::http::header::AUTHORIZATION;
use anyhow::Context as _;
use flashsale_bootstrap::Settings;
use flashsale_domain::UserId;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use secrecy::ExposeSecret as _;
use serde::Deserialize;

#[derive(Clone)]
pub(super) struct Tokens {
    key: DecodingKey,
    validation: Validation,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
}

impl Tokens {
    pub(super) fn new(settings: &Settings) -> anyhow::Result<Self> {
        let secret = settings.auth.jwt_secret.as_ref().context("auth.jwt_secret is not set")?;
        let key = DecodingKey::from_secret(secret.expose_secret().as_bytes())?;
        let mut validation = Validation::new(Algorithm::HS256);
        validation.set_required_spec_claims(&["exp", "sub"]);
        Ok(Self { key, validation })
    }

    /// The buyer who sent the request.
    pub(super) fn buyer(&self, request: &HttpRequest) -> Option<UserId> {
        let header = request.headers().get(AUTHORIZATION)?.to_str().ok()?;
        let token = header.strip_prefix("Bearer ")?;
        let claims = decode::<Claims>(token, &self.key, &self.validation).ok()?.claims;
        UserId::new(claims.sub).ok()
    }
}
