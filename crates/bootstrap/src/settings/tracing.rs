//! Section `tracing`.

use std::path::PathBuf;

use super::reader::Reader;

/// Where OTLP over HTTP takes traces, at a receiver that is named without a path.
const TRACES_PATH: &str = "/v1/traces";

/// Section `tracing`.
#[derive(Debug, Clone)]
pub struct TracingSettings {
    /// Where spans are posted, with the path; `None` is nowhere.
    pub otlp_endpoint: Option<String>,
    /// The share of requests without a traceparent that is traced.
    pub sample_ratio: f64,
    /// How many requests a second are traced because their traceparent says so.
    pub incoming_per_second: u32,
    /// A PEM file with authorities that the receiver's certificate may be of, besides the public ones.
    pub ca_file: Option<PathBuf>,
}

impl TracingSettings {
    pub(super) fn read(from: &mut Reader) -> Self {
        Self {
            otlp_endpoint: from.parsed(
                "tracing.otlp_endpoint",
                "http:// or https://, a host, and if need be port and path, such as \
                 http://collector:4318",
                None,
                parse_endpoint,
            ),
            sample_ratio: from.fraction("tracing.sample_ratio"),
            incoming_per_second: from.integer("tracing.incoming_per_second", 0..=10_000),
            ca_file: from.parsed("tracing.ca_file", "the path of a PEM file", None, |path| {
                Ok((!path.is_empty()).then(|| PathBuf::from(path)))
            }),
        }
    }
}

fn parse_endpoint(text: &str) -> Result<Option<String>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    super::check_scheme(text, &["http", "https"])?;
    let uri: actix_web::http::Uri = text.parse().map_err(|_| "it is not a URL".to_owned())?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        // Not quoted: it may be a password.
        return Err("it carries a user or a password, which would not be sent".to_owned());
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(format!("{text:?} has no host"));
    }
    let path = if uri.path() == "/" { TRACES_PATH } else { "" };
    Ok(Some(format!("{}{path}", if path.is_empty() { text } else { text.trim_end_matches('/') })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_without_a_path_is_asked_at_the_usual_one() {
        for (text, endpoint) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            ("https://[::1]/otlp/v1/traces", "https://[::1]/otlp/v1/traces"),
        ] {
            assert_eq!(parse_endpoint(text), Ok(Some(endpoint.to_owned())));
        }
        assert_eq!(parse_endpoint(""), Ok(None));
    }
}
