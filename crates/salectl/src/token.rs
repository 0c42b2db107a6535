//! Tokens, signed as the gateways check them: HS256 with `auth.jwt_secret`.

use flashsale_domain::UserId;
use jsonwebtoken::{EncodingKey, Header};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

/// What a token says of its holder.
#[derive(Debug, Serialize)]
pub(crate) struct Claims<'a> {
    pub(crate) sub: &'a UserId,
    /// `admin`, or absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    /// Seconds since the Unix epoch.
    pub(crate) iat: i64,
    /// Seconds since the Unix epoch; the gateways require it.
    pub(crate) exp: i64,
}

/// Signs `claims`.
pub(crate) fn sign(claims: &Claims<'_>, secret: &SecretString) -> anyhow::Result<String> {
    let key = EncodingKey::from_secret(secret.expose_secret().as_bytes())?;
    Ok(jsonwebtoken::encode(&Header::default(), claims, &key)?)
}
