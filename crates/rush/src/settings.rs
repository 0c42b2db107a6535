//! The one setting that the rush shares with the programs it presses: the tokens' secret.

use anyhow::Context as _;
use secrecy::SecretString;

/// The built-in settings, as `--print-defaults` shows them.
pub(crate) use flashsale_bootstrap::DEFAULTS;

/// Reads the secret that signs the buyers' tokens.
pub(crate) fn jwt_secret() -> anyhow::Result<SecretString> {
    flashsale_bootstrap::Settings::load()?.auth.jwt_secret.context(
        "the buyers' tokens are signed here: set auth.jwt_secret (environment \
         FLASHSALE__AUTH__JWT_SECRET) to the secret of the gateways",
    )
}
