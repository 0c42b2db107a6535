//! Who presses: each buyer's headers, ready to send.
//!
//! Minted before the clock starts, so that signing takes no time from the servers under load.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use hyper::header::HeaderValue;
use jsonwebtoken::{EncodingKey, Header};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;

/// How long a token is good for: longer than any rush.
const TTL: Duration = Duration::from_secs(3_600);

/// What one buyer sends with every request; cloning a header value copies no bytes.
#[derive(Debug)]
pub(crate) struct Buyer {
    pub(crate) authorization: HeaderValue,
    /// One key per buyer, so that every repeat is the same order again.
    pub(crate) idempotency_key: Option<HeaderValue>,
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    iat: u64,
    exp: u64,
}

/// The name of a buyer: the `sub` of the token.
pub(crate) fn name(prefix: &str, buyer: u32) -> String {
    format!("{prefix}{buyer}")
}

/// Mints `buyers` tokens, HS256.
pub(crate) fn mint(
    prefix: &str,
    buyers: u32,
    keyed: bool,
    secret: &SecretString,
) -> anyhow::Result<Vec<Buyer>> {
    let header = Header::default();
    let signer = EncodingKey::from_secret(secret.expose_secret().as_bytes())?;
    let iat = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock stands before 1970")?
        .as_secs();
    let exp = iat + TTL.as_secs();
    (0..buyers)
        .map(|buyer| {
            let sub = name(prefix, buyer);
            let token = jsonwebtoken::encode(&header, &Claims { sub: &sub, iat, exp }, &signer)?;
            let mut authorization = HeaderValue::try_from(format!("Bearer {token}"))?;
            authorization.set_sensitive(true);
            let idempotency_key =
                keyed.then(|| HeaderValue::try_from(format!("key-{sub}"))).transpose()?;
            Ok(Buyer { authorization, idempotency_key })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{DecodingKey, Validation};

    use super::*;

    #[test]
    fn a_token_names_its_buyer_and_expires() {
        let secret = SecretString::from("a secret of at least thirty-two bytes");
        let buyers = mint("b-", 3, true, &secret).expect("mints");
        let bearer = buyers[2].authorization.to_str().expect("is ASCII");
        let claims = jsonwebtoken::decode::<serde_json::Value>(
            bearer.strip_prefix("Bearer ").expect("is a bearer token"),
            &DecodingKey::from_secret(secret.expose_secret().as_bytes()).expect("is a key"),
            &Validation::default(), // checks the signature and `exp`
        )
        .expect("is valid")
        .claims;
        assert_eq!(claims["sub"], "b-2");
        assert_eq!(buyers[2].idempotency_key.as_ref().expect("has a key"), "key-b-2");
        assert!(mint("b-", 1, false, &secret).expect("mints")[0].idempotency_key.is_none());
    }
}
