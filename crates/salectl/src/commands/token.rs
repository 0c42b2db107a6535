//! `salectl token`.

use flashsale_bootstrap::Settings;
use flashsale_bootstrap::settings::TokenKey;
use serde::Serialize;

use crate::Verdict;
use crate::cli::TokenArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::token::{Claims, sign};
use crate::when::{now_ms, rfc3339};

const ADMIN: &str = "admin";

/// `{"token":"…","sub":"…","role":null|"admin","expires_at":"…"}`
#[derive(Debug, Serialize)]
struct Minted<'a> {
    token: &'a str,
    sub: &'a str,
    role: Option<&'static str>,
    expires_at: String,
}

/// Signs a token and prints it alone, for `$(salectl token …)`.
pub(crate) fn run(
    args: &TokenArgs,
    settings: &Settings,
    output: Output,
) -> Result<Verdict, Failure> {
    let secret = match settings.auth.require()? {
        TokenKey::Secret(secret) => secret,
        TokenKey::PublicKeyFile(_) => {
            return Err(Failure::refused(
                "only auth.jwt_public_key_file is set, and a public key cannot sign: get the \
                 token from whoever holds the private key",
            ));
        }
    };
    let iat = now_ms() / 1000;
    let ttl_s = i64::try_from(args.ttl.as_secs()).unwrap_or(i64::MAX);
    // Within the calendar, so that every reader of `exp` can hold it.
    let exp = iat.saturating_add(ttl_s).min(EXP_MAX);
    let role = args.admin.then_some(ADMIN);
    let token = sign(&Claims { sub: &args.sub, role, iat, exp }, secret)?;
    let expires_at = rfc3339(exp * 1000);
    output.print(&Minted { token: &token, sub: args.sub.as_str(), role, expires_at }, || {
        token.clone()
    })?;
    Ok(Verdict::Good)
}

/// 9999-12-31T23:59:59Z, the last second of RFC 3339.
const EXP_MAX: i64 = 253_402_300_799;
