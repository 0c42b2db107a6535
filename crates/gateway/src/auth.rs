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
use flashsale_bootstrap::settings::AuthSettings;
use flashsale_domain::UserId;
use lru::LruCache;
use tokio::time::Instant;

use crate::headers::at_most_one;
use crate::problem::Problem;
use crate::token::{Bearer, EXPIRED, TokenKeyring};

/// A token that is longer is checked each time: the memory of a thread stays small. Bytes.
const REMEMBERED_LENGTH_MAX: usize = 2048;

/// A token that is good for longer than a stream lasts may as well be good for a year.
const TOKEN_LEFT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Checks who sent a request. Shared by all threads.
pub(crate) struct TokenVerifier {
    keyring: TokenKeyring,
    /// How many tokens a thread remembers; `None` where checking again is as quick.
    remembered_max: Option<NonZeroUsize>,
}

impl TokenVerifier {
    pub(crate) fn new(settings: &AuthSettings) -> anyhow::Result<Self> {
        let keyring = TokenKeyring::new(settings)?;
        let remembered_max =
            NonZeroUsize::new(settings.remembered_tokens).filter(|_| keyring.is_slow());
        Ok(Self { keyring, remembered_max })
    }

    /// The operator who sent the request.
    pub(crate) fn verify_operator(&self, request: &HttpRequest) -> Result<UserId, Problem> {
        let bearer = self.keyring.verify(bearer_token(request)?)?;
        if bearer.is_operator { Ok(bearer.user_id) } else { Err(Problem::Forbidden) }
    }
}

fn bearer_token(request: &HttpRequest) -> Result<&str, Problem> {
    let header = at_most_one(request, &AUTHORIZATION)?
        .ok_or(Problem::Unauthorized("send Authorization: Bearer <token>"))?;
    let parts = header.to_str().ok().and_then(|text| text.split_once(' '));
    match parts {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(token.trim()),
        _ => Err(Problem::Unauthorized("the Authorization header is not Bearer <token>")),
    }
}

/// What a worker thread checks buyers' tokens with. Clones, within the thread, share what it remembers.
#[derive(Clone)]
pub(crate) struct BuyerVerifier {
    verifier: Arc<TokenVerifier>,
    remembered: Option<Rc<RefCell<Tokens>>>,
}

/// Tokens whose signature was good, and what they say.
type Tokens = LruCache<Box<str>, Bearer>;

impl BuyerVerifier {
    pub(crate) fn new(verifier: Arc<TokenVerifier>) -> Self {
        let remembered =
            verifier.remembered_max.map(|max| Rc::new(RefCell::new(LruCache::new(max))));
        Self { verifier, remembered }
    }

    /// The buyer who sent the request.
    pub(crate) fn verify(&self, request: &HttpRequest) -> Result<Buyer, Problem> {
        let keyring = &self.verifier.keyring;
        let token = bearer_token(request)?;
        let Bearer { user_id, exp, .. } = match self.recall(token) {
            Some(bearer) if keyring.is_expired(bearer.exp) => return Err(EXPIRED),
            Some(bearer) => bearer,
            None => {
                let bearer = keyring.verify(token)?;
                self.remember(token, &bearer);
                bearer
            }
        };
        let left = keyring.time_left(exp).min(TOKEN_LEFT_MAX);
        Ok(Buyer { user_id, expires_at: Instant::now() + left })
    }

    /// Who the request says has sent it: the token is well-formed and in its time, and nobody has
    /// looked at its signature. Good enough only for an answer that anybody may get.
    pub(crate) fn read_claimed_user(&self, request: &HttpRequest) -> Result<UserId, Problem> {
        Ok(self.verifier.keyring.read_unverified(bearer_token(request)?)?.user_id)
    }

    fn recall(&self, token: &str) -> Option<Bearer> {
        self.remembered.as_ref()?.borrow_mut().get(token).cloned()
    }

    fn remember(&self, token: &str, bearer: &Bearer) {
        if let Some(remembered) = &self.remembered
            && token.len() <= REMEMBERED_LENGTH_MAX
        {
            remembered.borrow_mut().put(token.into(), bearer.clone());
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
