//! Tokens: who is let in, and above all who is not.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flashsale_test_support::{TempDir, eventually, temp_dir};
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, SECRET, SOON, TestApp, claims, now_ms, send, sign, token};

/// An Ed25519 key pair that nothing but these tests knows.
const ED25519_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIIgpjhqoWJ06c6lUSC/LCDi1GCjj6obRkBDon7aGxiT3
-----END PRIVATE KEY-----
";
const ED25519_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAQJ4SXgNdJ7pMEIn3wEu9dmZvo2/e7PMWg1VwOnGEX0Y=
-----END PUBLIC KEY-----
";
/// An RSA key pair of 2,048 bits, likewise.
const RSA_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7Sa0VVpdTaoeQ
SHICi6BEubXeLb6M5FWdSyXT1fRwMpEG1Vtd5jF06JayR/fQwEiiYtjSmB/6vtdf
SMqqplhmG4DBYeLz+XlAs0dfTrv5BePzhZrbnMgqs/QYUs1uxmapG/VceCdq0VP/
dX4q55SFt/fWmomQAJ3ROCxSAM4bNhlg1o4SYx9CzqMT+T45k61cVWwU6IfZ8XRU
rlSnN5SNNyVEzTTp22idl6ey+wT3JCIhNEQ3bEnK0djPeHdhX3/RR54UFxQhgXdK
JS09b8qhOTCI2Qek2n4jnaBOFrruhYk6zMdj3uPZCuyDMHicHZJySZ82depRRaZy
dK8LDm1RAgMBAAECggEAIWqRnpFK4kgLZI+8gd5CTAjbnYcJbO+PpAdEulF+Meef
zzmRugUItXyLaMdk/MLWIt0ipR6d9BoJaPeeq4iPFLbbCAYMXa4ZN5VVSnjMmq+1
np1rxjvozg+6IX3iqB1vs0QpCOTqWYl8ZIPk7UhRDHPI3WpI2Z/2iJ4ucDozDBES
Yg4CkDKe2vKIE/Ae3UiigJ+jdOPcLGAghxuF3lx9LzCS+nvce/AEqq5zunSCGH3D
nMu7DcGqaPs/HvR1WFD1s9c4H3qQrFJDK7gi/c3iwTuA/jY3XQN05rQiHm73JaES
9yYEuImjCudbikTVKcbVDLz8r+xM2MQ03C3wc074TQKBgQDspaJUEFjtNMFz+ejJ
KHcVAl9+tkjHuLJJ/g8N9WBN1IM8TLqQwPX+TvTy4PMmYrwx0XpeYQxCkjBRNSRz
cfneFLdX8sZzbvMrALahXCGkRAzKBG+Zof6zvcjXz1VusqsoXCJ6xfbm+o5I25BN
E3vYr/i8AQfqf7AxHkkBr7NnvQKBgQDKmqxjmZ4FbLEbaOWDWT/CifrUWc5dXvkO
JWI+mjBNk1ecbhAinMwo0MD8fTZR229zglzRUYjh38Is4++j9hbufgL3b95IaqOL
mKOrqh2jo3BRhzFxOXJ4irslGdfRhCIha0i92JaETFIUoA8XoAkR2W8jyLQ4dx2M
OGuRqCWbJQKBgGcyF6a29kCCp/XOPkAyYDOONFyKWxSVK1Ju8tuwbE2kZZJPF3B2
ZQ+AGPstM3tCxTSoV8d+ZJ1HKMDQ/tNFGaRJvmYg3X+LG4leJ0YYaic68aTK6GvD
o9F36nSJ2oSKb28LNpH5cCDrlE6bSMMDwxcMLdi2TmBpTEkvHsEYgJC1AoGBALtF
Ruz1VFQNSJNeXS8Qste9tETOEerKW4lQ0sOsv9Mky0mDjpR/vFJJyuhXUHtPSnBJ
YkP0ioLF0fSuZ5Z1ZHLjtRhDpgHn1+2zlC2bm7Pi4XHqdbADeqSjDyLXBV7bNLUR
NnaMmWwGI6R+4hRjT57ZDVrVLIg4ye4PRJapBsGlAoGASxW9RaLK5SlTqpyEqmnE
yL/VM7vod3rdvRTIE9WUodawmYj6NHCjz0W0m0VZnDkqUL1gJKwxnK5QhmywIsNT
fQD7PEhioCew2zxYdVX9tzUUnWeXTp2qFO7nocRBQnW6Dfb2yhHsrtVu5pLVW0kf
vvlEtzvmXSVBOOfd1G9FCyc=
-----END PRIVATE KEY-----
";
const RSA_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAu0mtFVaXU2qHkEhyAoug
RLm13i2+jORVnUsl09X0cDKRBtVbXeYxdOiWskf30MBIomLY0pgf+r7XX0jKqqZY
ZhuAwWHi8/l5QLNHX067+QXj84Wa25zIKrP0GFLNbsZmqRv1XHgnatFT/3V+KueU
hbf31pqJkACd0TgsUgDOGzYZYNaOEmMfQs6jE/k+OZOtXFVsFOiH2fF0VK5UpzeU
jTclRM006dtonZensvsE9yQiITREN2xJytHYz3h3YV9/0UeeFBcUIYF3SiUtPW/K
oTkwiNkHpNp+I52gTha67oWJOszHY97j2QrsgzB4nB2SckmfNnXqUUWmcnSvCw5t
UQIDAQAB
-----END PUBLIC KEY-----
";

fn hs256(secret: &[u8], claims: &Value) -> String {
    sign(Algorithm::HS256, &EncodingKey::from_secret(secret).expect("a secret"), claims)
}

fn eddsa(claims: &Value) -> String {
    let key = EncodingKey::from_ed_pem(ED25519_PRIVATE.as_bytes()).expect("a key");
    sign(Algorithm::EdDSA, &key, claims)
}

fn rs256(claims: &Value) -> String {
    let key = EncodingKey::from_rsa_pem(RSA_PRIVATE.as_bytes()).expect("a key");
    sign(Algorithm::RS256, &key, claims)
}

/// A token whose header says what it likes, with a signature that is none.
fn forged(header: &str, claims: &Value, signature: &str) -> String {
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}.{}", encode(header), encode(&claims.to_string()), encode(signature))
}

/// A well-signed token whose header asks its reader to understand more than RFC 7515 (its `crit`).
fn with_crit(key: &EncodingKey, claims: &Value) -> String {
    let token = forged(r#"{"alg":"HS256","crit":["exp"],"exp":1}"#, claims, "");
    let message = token.trim_end_matches('.');
    let signature = crypto::sign(message.as_bytes(), key, Algorithm::HS256).expect("is signed");
    format!("{message}.{signature}")
}

/// A gateway that checks tokens with a public key from a file.
async fn with_public_key(pem: &str) -> (TestApp, TempDir) {
    let directory = temp_dir("key");
    let path = directory.path().join("key.pem");
    std::fs::write(&path, pem).expect("a file can be written");
    let path = path.to_str().expect("is UTF-8");
    (TestApp::spawn_with(&[("auth.jwt_public_key_file", path)]).await, directory)
}

async fn place_with_header(app: &TestApp, sale: &str, authorization: &[u8]) -> Answer {
    let request = app.request(Method::POST, &format!("/api/v1/sales/{sale}/orders"));
    send(request.header("Authorization", authorization)).await
}

fn assert_unauthorized(answer: &Answer, why: &str) {
    assert_eq!(answer.status, 401, "{why}: {answer:?}");
    assert_eq!(answer.problem(), (401, "unauthorized"), "{why}");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{why}");
}

/// Each of these must be refused, and none may leave an order.
async fn assert_all_refused(app: &TestApp, tokens: &[(&str, String)]) {
    let sale = app.sale(1).await;
    for (why, token) in tokens {
        let header = format!("Bearer {token}");
        let answer = place_with_header(app, &sale.to_string(), header.as_bytes()).await;
        assert_unauthorized(&answer, why);
    }
    let account = app.redis.read_sale(crate::support::home(), sale).await.expect("answers");
    assert_eq!(account.sale.expect("is loaded").stock, 1);
}

#[tokio::test]
async fn whoever_sends_no_proper_bearer_token_is_refused_everywhere() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await.to_string();
    let good = token("alice");
    let headers: Vec<(&str, Vec<u8>)> = vec![
        ("empty", b"".to_vec()),
        ("a scheme alone", b"Bearer".to_vec()),
        ("a scheme and a blank", b"Bearer ".to_vec()),
        ("no scheme", good.clone().into_bytes()),
        ("basic", b"Basic YWxpY2U6c2VjcmV0".to_vec()),
        ("another scheme with a good token", format!("Token {good}").into_bytes()),
        ("two words as token", format!("Bearer {good} {good}").into_bytes()),
        ("no dots", b"Bearer abc".to_vec()),
        ("dots alone", b"Bearer ..".to_vec()),
        ("not UTF-8", b"Bearer \xff\xfe".to_vec()),
        ("comma", format!("Bearer,{good}").into_bytes()),
        ("cut", format!("Bearer {}", &good[..good.len() - 2]).into_bytes()),
    ];
    for (why, header) in &headers {
        assert_unauthorized(&place_with_header(&app, &sale, header).await, why);
    }
    let protected = [
        (Method::POST, format!("/api/v1/sales/{sale}/orders")),
        (Method::GET, "/api/v1/orders".to_owned()),
        (Method::GET, "/api/v1/orders/1".to_owned()),
        // Before anything about a sale is told.
        (Method::POST, "/api/v1/sales/999/orders".to_owned()),
    ];
    for (method, path) in protected {
        assert_unauthorized(&send(app.request(method, &path)).await, &path);
    }
}

#[tokio::test]
async fn a_good_token_is_accepted_whatever_else_it_says() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await.to_string();
    let exp = now_ms() / 1000 + 60;
    let long = "x".repeat(128);
    for (scheme, claims) in [
        ("bearer", json!({ "sub": "lower", "exp": exp })),
        ("BEARER", json!({ "sub": "upper", "exp": exp })),
        ("Bearer", json!({ "sub": long, "exp": exp })),
        ("Bearer", json!({ "sub": "用户一", "exp": exp })),
        ("Bearer", json!({ "sub": "a b:{c}|d;e", "exp": exp })),
        ("Bearer", json!({ "sub": "for-others", "exp": exp, "aud": "shop", "iss": "x" })),
        ("Bearer", json!({ "sub": "operator", "exp": exp, "role": "admin", "nbf": exp - 120 })),
        ("Bearer ", json!({ "sub": "two blanks", "exp": exp })),
    ] {
        let header = format!("{scheme} {}", hs256(SECRET.as_bytes(), &claims));
        let answer = place_with_header(&app, &sale, header.as_bytes()).await;
        assert_eq!(answer.status, 202, "{scheme} {claims}: {answer:?}");
        answer.receipt();
    }
}

#[tokio::test]
async fn a_token_whose_times_are_wrong_is_refused() {
    let app = TestApp::spawn().await;
    let now = now_ms() / 1000;
    let tokens: Vec<(&str, String)> = [
        ("expired", json!({ "sub": "a", "exp": now - 5 })),
        ("expired long ago", json!({ "sub": "a", "exp": 1 })),
        ("no exp", json!({ "sub": "a" })),
        ("exp is null", json!({ "sub": "a", "exp": null })),
        ("exp is text", json!({ "sub": "a", "exp": (now + 60).to_string() })),
        ("exp is a list", json!({ "sub": "a", "exp": [now + 60] })),
        ("exp is true", json!({ "sub": "a", "exp": true })),
        ("exp is negative", json!({ "sub": "a", "exp": -1 })),
        ("not yet valid", json!({ "sub": "a", "exp": now + 600, "nbf": now + 300 })),
        ("nbf is text", json!({ "sub": "a", "exp": now + 600, "nbf": "tomorrow" })),
    ]
    .into_iter()
    .map(|(why, claims)| (why, hs256(SECRET.as_bytes(), &claims)))
    .collect();
    assert_all_refused(&app, &tokens).await;
}

#[tokio::test]
async fn the_leeway_is_what_is_set_and_no_more() {
    let app = TestApp::spawn_with(&[("auth.leeway", "60s")]).await;
    let sale = app.sale(10).await.to_string();
    let now = now_ms() / 1000;
    let place = async |sub: &str, exp: i64| {
        let token = hs256(SECRET.as_bytes(), &json!({ "sub": sub, "exp": exp }));
        place_with_header(&app, &sale, format!("Bearer {token}").as_bytes()).await
    };
    place("within", now - 10).await.receipt();
    assert_unauthorized(&place("beyond", now - 120).await, "beyond the leeway");
}

#[tokio::test]
async fn a_token_whose_subject_is_no_buyer_is_refused() {
    let app = TestApp::spawn().await;
    let exp = now_ms() / 1000 + 60;
    let tokens: Vec<(&str, String)> = [
        ("no sub", json!({ "exp": exp })),
        ("empty", json!({ "sub": "", "exp": exp })),
        ("null", json!({ "sub": null, "exp": exp })),
        ("a number", json!({ "sub": 42, "exp": exp })),
        ("a list", json!({ "sub": ["alice"], "exp": exp })),
        ("129 bytes", json!({ "sub": "x".repeat(129), "exp": exp })),
        ("129 bytes of Chinese", json!({ "sub": "用".repeat(43), "exp": exp })),
        ("a newline", json!({ "sub": "alice\nbob", "exp": exp })),
        ("a NUL", json!({ "sub": "alice\u{0}", "exp": exp })),
        ("a delete", json!({ "sub": "alice\u{7f}", "exp": exp })),
        ("8 KB", json!({ "sub": "x".repeat(8192), "exp": exp })),
    ]
    .into_iter()
    .map(|(why, claims)| (why, hs256(SECRET.as_bytes(), &claims)))
    .collect();
    assert_all_refused(&app, &tokens).await;
}

#[tokio::test]
async fn a_subject_of_a_megabyte_is_refused_and_does_no_harm() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let huge = token(&"x".repeat(1024 * 1024));
    let request = format!(
        "POST /api/v1/sales/{sale}/orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer {huge}\r\n\r\n"
    );
    let answer = app.raw(request.as_bytes()).await;
    // The connection may be closed in the face of the rest.
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    app.place(sale, "alice").await.receipt();
}

#[tokio::test]
async fn a_token_that_was_signed_otherwise_is_refused_by_a_gateway_with_a_secret() {
    let app = TestApp::spawn().await;
    let claims = claims("alice");
    let good = token("alice");
    let (head, signature) = good.rsplit_once('.').expect("three parts");
    let (header, _) = head.split_once('.').expect("three parts");
    let mut other_claims = claims.clone();
    other_claims["sub"] = json!("bob");
    let other_claims = URL_SAFE_NO_PAD.encode(other_claims.to_string());
    let key = EncodingKey::from_secret(SECRET.as_bytes()).expect("a secret");
    let none = r#"{"alg":"none","typ":"JWT"}"#;
    assert_all_refused(
        &app,
        &[
            ("another secret", hs256(b"another secret of thirty-two bytes!!", &claims)),
            ("HS384", sign(Algorithm::HS384, &key, &claims)),
            ("HS512", sign(Algorithm::HS512, &key, &claims)),
            ("RS256", rs256(&claims)),
            ("EdDSA", eddsa(&claims)),
            ("none", forged(none, &claims, "")),
            ("None", forged(r#"{"alg":"None"}"#, &claims, "")),
            ("NONE", forged(r#"{"alg":"NONE"}"#, &claims, "x")),
            ("an extension that must be understood", with_crit(&key, &claims)),
            ("no alg", forged(r#"{"typ":"JWT"}"#, &claims, "")),
            ("a header that is no JSON", forged("alg: HS256", &claims, "x")),
            ("no signature", format!("{head}.")),
            ("no signature and no dot", head.to_owned()),
            ("another's claims", format!("{header}.{other_claims}.{signature}")),
            (
                "none with a good signature",
                format!("{}.{}", forged(none, &claims, "").trim_end_matches('.'), signature),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_gateway_with_an_ed25519_key_accepts_its_tokens_and_no_others() {
    let (app, _directory) = with_public_key(ED25519_PUBLIC).await;
    let claims = claims("alice");
    let pem = ED25519_PUBLIC.as_bytes();
    assert_all_refused(
        &app,
        &[
            // Algorithm confusion: what is public would be the secret.
            ("HS256 with the key's PEM", hs256(pem, &claims)),
            ("HS256 with the trimmed PEM", hs256(pem.trim_ascii(), &claims)),
            ("HS256 with the bare key", hs256(&der_of(ED25519_PUBLIC)[12..], &claims)),
            ("RS256", rs256(&claims)),
            ("none", forged(r#"{"alg":"none"}"#, &claims, "")),
            ("a bad signature", forged(r#"{"alg":"EdDSA"}"#, &claims, &"x".repeat(64))),
        ],
    )
    .await;
    let sale = app.sale(1).await.to_string();
    let header = format!("Bearer {}", eddsa(&claims));
    place_with_header(&app, &sale, header.as_bytes()).await.receipt();
}

#[tokio::test]
async fn a_token_that_was_good_before_is_refused_once_it_has_expired_and_with_another_signature() {
    let (app, _directory) = with_public_key(ED25519_PUBLIC).await;
    let sale = app.sale(1).await.to_string();
    let exp_s = now_ms() / 1000 + 2;
    let token = eddsa(&json!({ "sub": "alice", "exp": exp_s }));
    let header = format!("Bearer {token}");
    place_with_header(&app, &sale, header.as_bytes()).await.receipt();
    let (head, _) = token.rsplit_once('.').expect("three parts");
    let refused_at_ms = eventually(SOON, "the token has expired", async || {
        let forged = format!("Bearer {head}.{}", URL_SAFE_NO_PAD.encode("x".repeat(64)));
        let answer = place_with_header(&app, &sale, forged.as_bytes()).await;
        assert_eq!(answer.problem(), (401, "unauthorized"));
        let answer = place_with_header(&app, &sale, header.as_bytes()).await;
        if answer.status == 409 {
            assert_eq!(answer.problem(), (409, "already-ordered"));
            return None;
        }
        assert_eq!(answer.problem(), (401, "unauthorized"));
        Some(now_ms())
    })
    .await;
    assert!(refused_at_ms >= exp_s * 1000, "not before its time");
}

#[tokio::test]
async fn a_gateway_with_an_rsa_key_accepts_its_tokens_and_no_others() {
    let (app, _directory) = with_public_key(RSA_PUBLIC).await;
    let claims = claims("alice");
    let pem = RSA_PUBLIC.as_bytes();
    let key = EncodingKey::from_rsa_pem(RSA_PRIVATE.as_bytes()).expect("a key");
    assert_all_refused(
        &app,
        &[
            ("HS256 with the key's PEM", hs256(pem, &claims)),
            ("HS256 with the trimmed PEM", hs256(pem.trim_ascii(), &claims)),
            ("HS256 with the key's DER", hs256(&der_of(RSA_PUBLIC), &claims)),
            ("PS256 with the right key", sign(Algorithm::PS256, &key, &claims)),
            ("EdDSA", eddsa(&claims)),
            ("none", forged(r#"{"alg":"none"}"#, &claims, "")),
        ],
    )
    .await;
    let sale = app.sale(1).await.to_string();
    let header = format!("Bearer {}", rs256(&claims));
    place_with_header(&app, &sale, header.as_bytes()).await.receipt();
}

/// What a PEM text wraps.
fn der_of(pem: &str) -> Vec<u8> {
    let lines = pem.lines().filter(|line| !line.starts_with('-'));
    let text: String = lines.collect();
    base64::engine::general_purpose::STANDARD.decode(text).expect("is base64")
}

#[tokio::test]
async fn two_tokens_are_refused_whichever_is_good() {
    let app = TestApp::spawn().await;
    let sale = app.sale(10).await;
    let good = format!("Bearer {}", token("alice"));
    let others = format!("Bearer {}", token("bob"));
    for two in [[&good, &others], [&good, &good]] {
        let press = app.request(Method::POST, &format!("/api/v1/sales/{sale}/orders"));
        let read = app.request(Method::GET, "/api/v1/orders");
        for request in [press, read] {
            let request = two.iter().fold(request, |it, one| it.header("Authorization", *one));
            let answer = send(request).await;
            assert_eq!(answer.problem(), (400, "invalid-request"));
            let detail = answer.body["detail"].as_str().expect("says what is allowed");
            assert!(detail.contains("one authorization header"), "{detail}");
        }
    }
    assert_eq!(app.orders_in_record(sale, "alice").await, 0);
    assert_eq!(app.orders_in_record(sale, "bob").await, 0);
}
