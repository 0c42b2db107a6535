//! `profile = "production"`: the program itself refuses to start on what is unsafe, by name, and a Redis
//! that is away at the start is asked when it is there.

use flashsale_test_support::{Program, RedisServer, eventually};

use crate::support::{Addresses, SOON, TestApp, try_send};

/// The deployment of a test is unsafe enough: SQLite, and a Redis without a file.
const BORNE: &str = "sqlite,aof-off";

fn start(app: &TestApp, allowed: &str, more: &[(&str, String)]) -> (Addresses, Program) {
    let production = [
        ("FLASHSALE__PROFILE", "production".to_owned()),
        ("FLASHSALE__ALLOW_UNSAFE", allowed.to_owned()),
    ];
    app.start_gateway_program_with(&[&production[..], more].concat())
}

/// Starts, is refused, and says all of these.
fn refused(app: &TestApp, allowed: &str, more: &[(&str, String)], words: &[&str]) {
    let (_, program) = start(app, allowed, more);
    let ended = program.wait_exit(SOON).expect("it does not start");
    assert_eq!(ended.code(), Some(1), "{}", program.log());
    for word in words {
        assert!(program.log().contains(word), "{word}: {}", program.log());
    }
}

async fn is_ready(app: &TestApp, at: Addresses) -> Option<String> {
    let url = format!("http://{}/readyz", at.admin);
    let answer = try_send(app.client.get(url)).await.ok()?;
    Some(answer.body["checks"]["safety"].as_str().expect("it is checked").to_owned())
}

#[tokio::test]
async fn a_production_start_is_refused_by_name_and_bears_what_is_allowed() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    refused(&app, "", &[], &["allow_unsafe", "(sqlite)", "(aof-off)", "set appendonly yes"]);
    refused(&app, "sqlite", &[], &["(aof-off)"]);
    refused(&app, "sqlite,aof-of", &[], &["allow_unsafe", "no \"aof-of\" to allow"]);
    let weak = [("FLASHSALE__AUTH__JWT_SECRET", "a short one".to_owned())];
    refused(&app, BORNE, &weak, &["(weak-token-secret)", "32 random bytes"]);
    let _: () = app.redis_command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    refused(&app, BORNE, &[], &["(eviction)"]);
    let _: () = app.redis_command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let _: () = app
        .redis_command(&["ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-xadd"]);
    let url = redis.url().replace("redis://", "redis://limited:pw@");
    refused(&app, BORNE, &[("FLASHSALE__REDIS__URL", url)], &["(acl-missing)", "run xadd on"]);

    let (at, program) = start(&app, BORNE, &[]);
    eventually(SOON, "it is ready", async || is_ready(&app, at).await.as_deref() == Some("ok"))
        .await;
    assert!(program.log().contains("unsafe (aof-off)"), "{}", program.log());
    // In development everything starts, and is warned of.
    let (_, program) = app.start_gateway_program().await;
    eventually(SOON, "it warns", async || program.log().contains("unsafe (aof-off)")).await;
    assert!(program.log().contains("unsafe (sqlite)"), "{}", program.log());
}

#[tokio::test]
async fn a_redis_that_is_away_at_a_production_start_is_asked_when_it_is_there() {
    let redis = RedisServer::start();
    let app = TestApp::spawn_on(&redis, &[]).await;
    redis.kill_9();
    let (refused_at, refused) = start(&app, "sqlite", &[]);
    let (at, _borne) = start(&app, BORNE, &[]);
    for at in [refused_at, at] {
        eventually(SOON, "it runs and is not ready", async || {
            is_ready(&app, at).await.as_deref() == Some("not checked yet")
        })
        .await;
    }
    redis.start_again();
    let ended = refused.wait_exit(SOON).expect("it ends by itself");
    assert_eq!(ended.code(), Some(1), "{}", refused.log());
    assert!(refused.log().contains("(aof-off)"), "{}", refused.log());
    eventually(SOON, "the other is ready", async || {
        is_ready(&app, at).await.as_deref() == Some("ok")
    })
    .await;
}
