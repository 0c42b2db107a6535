//! Whom we trust where a program of ours is the client.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Trusts the public authorities that Mozilla lists, which are built in, and those of the file that the
/// setting `key` names.
///
/// # Errors
/// When the file cannot be used.
pub fn client_config(key: &str, ca_file: Option<&Path>) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = ca_file {
        let what = || format!("{key}: {} cannot be used", path.display());
        let mut count = 0;
        for certificate in CertificateDer::pem_file_iter(path).with_context(what)? {
            roots.add(certificate.with_context(what)?).with_context(what)?;
            count += 1;
        }
        anyhow::ensure!(count > 0, "{key}: {} holds no certificate", path.display());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(versions?.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_authorities_is_refused_by_its_name() {
        for path in ["/nowhere/ca.pem", "/dev/null"] {
            let error = client_config("webhooks.ca_file", Some(Path::new(path))).expect_err(path);
            assert!(error.to_string().contains(path), "{error:#}");
        }
    }
}
