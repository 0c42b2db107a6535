//! What gateway and order-worker look at before they are ready: the doctor's questions that bear a risk.
//!
//! In production an answer that is not as it has to be, and is not allowed by name, ends the program.
//! A Redis that is away is waited for, as everywhere: then it is asked when it is there, and the
//! program is not ready until then.

use std::time::Duration;

use anyhow::{Context as _, bail};
use flashsale_bootstrap::settings::Profile;
use flashsale_bootstrap::{Readiness, Settings, Shutdown};
use flashsale_storage_redis::Redis;
use flashsale_storage_sql::Database;
use tokio::time::sleep;
use tracing::{error, warn};

use crate::doctor::{self, Check, Status};

/// The readiness check that fails until Redis was asked.
pub const CHECK_SAFETY: &str = "safety";

/// How often a Redis that is away is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What is still to be asked.
pub struct StartCheck {
    settings: Settings,
    redis: Redis,
    readiness: Readiness,
    is_done: bool,
}

impl StartCheck {
    /// Asks settings and database, and in production Redis too if it answers.
    ///
    /// # Errors
    /// In production, when something is unsafe and not allowed; when the database cannot be asked; and
    /// when the sentinels of `redis.url` do not know its service.
    pub async fn begin(
        settings: &Settings,
        redis: &Redis,
        database: &Database,
        readiness: &Readiness,
    ) -> anyhow::Result<Self> {
        readiness.register(CHECK_SAFETY);
        redis.check_service().await.context("redis.url cannot be used")?;
        let mut checks = doctor::of_settings(settings);
        let asked = "the database cannot be asked how it is set up";
        checks.extend(doctor::of_database(database).await.context(asked)?);
        checks.push(doctor::indexes(database).await.context(asked)?);
        let mut check = Self {
            settings: settings.clone(),
            redis: redis.clone(),
            readiness: readiness.clone(),
            is_done: false,
        };
        // Only where it can end the start is it worth waiting for.
        if settings.profile == Profile::Production
            && let Ok(of_redis) = doctor::of_redis(settings, redis).await
        {
            checks.extend(of_redis);
            check.is_done = true;
        }
        check.judge(&checks)?;
        if check.is_done {
            readiness.set_ok(CHECK_SAFETY);
        }
        Ok(check)
    }

    /// Asks Redis once it is there, if it has not been asked. Requests the shutdown when it is unsafe.
    ///
    /// # Errors
    /// In production, when Redis is unsafe and that is not allowed.
    pub async fn finish(mut self, shutdown: Shutdown) -> anyhow::Result<()> {
        while !self.is_done {
            tokio::select! {
                asked = doctor::of_redis(&self.settings, &self.redis) => {
                    if let Ok(checks) = asked {
                        if let Err(refused) = self.judge(&checks) {
                            error!("{refused}");
                            self.readiness.set_failed(CHECK_SAFETY, refused.to_string());
                            shutdown.request();
                            return Err(refused);
                        }
                        self.is_done = true;
                        self.readiness.set_ok(CHECK_SAFETY);
                        return Ok(());
                    }
                }
                () = shutdown.requested() => return Ok(()),
            }
            tokio::select! {
                () = sleep(ASK_AGAIN) => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
        Ok(())
    }

    fn judge(&self, checks: &[Check]) -> anyhow::Result<()> {
        let mut refused = Vec::new();
        for check in checks.iter().filter(|check| check.status != Status::Ok) {
            let Some(risk) = check.risk else { continue };
            if self.settings.profile == Profile::Production
                && !self.settings.allow_unsafe.contains(&risk)
            {
                refused.push(format!("{} ({})", check.what, risk.name()));
            } else {
                warn!(risk = risk.name(), "unsafe ({}): {}", risk.name(), check.what);
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        bail!("not safe for production, and not named in allow_unsafe: {}", refused.join("; "))
    }
}
