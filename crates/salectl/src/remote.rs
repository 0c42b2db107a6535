//! `--remote`: the operators' API of a gateway, for those who may not reach the stores.
//!
//! What it answers is read into the types that the operations give, so that a command prints the same
//! either way; a problem's detail is the line that the operation's refusal would have been.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use flashsale_bootstrap::Settings;
use reqwest::{Client, Method, RequestBuilder, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::RemoteArgs;
use crate::failure::Failure;

/// Where the token is, when no file is named. Never an argument: everybody on the machine sees those.
const TOKEN_VARIABLE: &str = "FLASHSALE_TOKEN";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A rebuild of a large partition takes minutes, and is answered when it is done.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Where a command does its work.
pub(crate) enum Access<'a> {
    /// In the stores of these settings.
    Stores(&'a Settings),
    /// Through a gateway.
    Gateway(Remote),
}

impl<'a> Access<'a> {
    pub(crate) fn new(settings: &'a Settings, args: &RemoteArgs) -> Result<Self, Failure> {
        // Not by clap, which does not see an argument before the command and one after it together.
        match (&args.remote, args.token_file.as_deref()) {
            (None, None) => Ok(Self::Stores(settings)),
            (None, Some(_)) => Err(Failure::usage("--token-file is for --remote alone")),
            (Some(url), file) => Ok(Self::Gateway(Remote::new(url, file)?)),
        }
    }

    /// The settings, for a command that the API has no call for.
    pub(crate) fn settings(&self, command: &str) -> Result<&Settings, Failure> {
        match self {
            Self::Stores(settings) => Ok(settings),
            Self::Gateway(_) => Err(Failure::usage(format!(
                "`salectl {command}` is not to be had with --remote: it needs the stores, or a \
                 secret of the settings, so run it where they are"
            ))),
        }
    }
}

/// A gateway's operators' API.
pub(crate) struct Remote {
    client: Client,
    url: Url,
    token: SecretString,
}

impl Remote {
    fn new(url: &str, token_file: Option<&Path>) -> Result<Self, Failure> {
        let parsed =
            Url::parse(url).map_err(|error| Failure::usage(format!("--remote: {error}")))?;
        if parsed.scheme() != "http" {
            return Err(Failure::usage(
                "--remote: only http:// is built in, so name the gateway's admin port itself, or a \
                 tunnel to it",
            ));
        }
        let bare = parsed.username().is_empty() && parsed.password().is_none();
        if !bare || parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(Failure::usage(
                "--remote: the URL is only http://HOST:PORT; the token comes from elsewhere",
            ));
        }
        // A proxy of the environment has no business with the token, and neither has whoever an answer
        // points to.
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .build()
            .map_err(anyhow::Error::from)?;
        Ok(Self { client, url: parsed, token: token(token_file)? })
    }

    /// Reads something.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: impl fmt::Display,
        parameters: &[(&str, Option<String>)],
    ) -> Result<T, Failure> {
        let mut url = self.url(path);
        for (name, value) in parameters {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.ask(self.client.request(Method::GET, url), None).await
    }

    /// Changes something.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: impl fmt::Display,
        body: &Value,
    ) -> Result<T, Failure> {
        self.ask(self.client.request(Method::POST, self.url(path)).json(body), None).await
    }

    /// Changes some fields of something.
    pub(crate) async fn patch<T: DeserializeOwned>(
        &self,
        path: impl fmt::Display,
        body: &Value,
    ) -> Result<T, Failure> {
        self.ask(self.client.request(Method::PATCH, self.url(path)).json(body), None).await
    }

    /// Changes something under a key.
    pub(crate) async fn post_once<T: DeserializeOwned>(
        &self,
        path: impl fmt::Display,
        key: &str,
        body: &Value,
    ) -> Result<T, Failure> {
        let request = self.client.request(Method::POST, self.url(path));
        self.ask(request.header("Idempotency-Key", key).json(body), Some(key)).await
    }

    fn url(&self, path: impl fmt::Display) -> Url {
        let mut url = self.url.clone();
        let below = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{below}/admin/v1/{path}"));
        url
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        key: Option<&str>,
    ) -> Result<T, Failure> {
        let answer = request.bearer_auth(self.token.expose_secret()).send().await;
        let answer = answer.map_err(|error| no_answer(error, key))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| no_answer(error, key))?;
        if status.is_success() {
            return serde_json::from_str(&text).map_err(|error| {
                Failure::refused(format!("the gateway's answer is not understood: {error}"))
            });
        }
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        let told = |field: &str| problem.get(field).and_then(Value::as_str);
        Err(Failure::refused(told("detail").or(told("title")).map_or_else(
            || format!("answered {status}: this is not the operators' API of a gateway"),
            str::to_owned,
        )))
    }
}

/// Nobody knows what came of it, and whoever asks again needs the key.
fn no_answer(error: reqwest::Error, key: Option<&str>) -> Failure {
    let again = key.map(|key| format!(": ask again with --key {key}")).unwrap_or_default();
    let what = format!("the gateway has not answered; it may have done what was asked{again}");
    Failure::from(anyhow::Error::from(error.without_url()).context(what))
}

fn token(file: Option<&Path>) -> Result<SecretString, Failure> {
    let text = match file {
        Some(path) => fs::read_to_string(path)
            .map_err(|error| Failure::file(format!("--token-file {}: {error}", path.display())))?,
        None => std::env::var(TOKEN_VARIABLE).unwrap_or_default(),
    };
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::usage(format!(
            "--remote needs an operator's token, in the variable {TOKEN_VARIABLE} or in the file of \
             --token-file: one word, as `salectl token --admin` prints it"
        )));
    }
    Ok(SecretString::from(token))
}
