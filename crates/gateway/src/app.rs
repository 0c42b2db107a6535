//! The program: what it builds, how it runs, how it leaves.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::KeepAlive;
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use actix_web::{App, HttpServer};
use anyhow::Context as _;
use flashsale_bootstrap::telemetry::PrometheusHandle;
use flashsale_bootstrap::{AdminServer, Readiness, Settings, Shutdown, telemetry};
use flashsale_operations::start::StartCheck;
use flashsale_operations::{Operations, connect, pools};
use flashsale_storage_redis::Redis;
use flashsale_storage_sql::Database;
use flashsale_webhooks::Secrets;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::admission_queue::AdmissionQueue;
use crate::answer_counts::AnswerCounts;
use crate::auth::{BuyerVerifier, TokenVerifier};
use crate::catalogue::{CHECK_CATALOGUE, CHECK_REDIS, Catalogue, CatalogueFollower};
use crate::direct::DirectOrders;
use crate::edge;
use crate::followers::{Followers, FollowersFeed};
use crate::help::HELP;
use crate::leases::Leases;
use crate::newest_sales::NewestSales;
use crate::operators::{self, OperatorsState};
use crate::receipts::Receipts;
use crate::request_body::BodyLimits;
use crate::routes;
use crate::spans::Sampling;

/// How long closing the connections may take; nothing is in flight on them by then.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

const CHECK_SERVING: &str = "serving";

/// How long answers go on, each the last of its connection, before idle connections are closed. A
/// connection that is closed at the moment in which its next request comes leaves that request
/// without an answer; after this time only those are left that nobody has used for as long.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// What the routes need besides the admission queue, which each worker thread has its own of.
pub(crate) struct State {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) newest_sales: NewestSales,
    pub(crate) receipts: Receipts,
    pub(crate) direct: DirectOrders,
    pub(crate) leases: Arc<Leases>,
    pub(crate) answers: Arc<AnswerCounts>,
    pub(crate) followers: Arc<Followers>,
    pub(crate) operations: Operations,
    /// What the payment provider signs with.
    pub(crate) payment_secrets: Option<Secrets>,
    pub(crate) body: BodyLimits,
    /// Which requests are traced; `None` when none is.
    pub(crate) sampling: Option<Sampling>,
    /// The largest request line and headers together, in bytes.
    pub(crate) head_limit_bytes: usize,
    /// Requested when the gateway is to leave: who waits for something is answered now.
    pub(crate) draining: Shutdown,
}

/// A gateway, bound and ready to run.
pub struct Gateway {
    settings: Settings,
    redis: Redis,
    database: Database,
    verifier: Arc<TokenVerifier>,
    listener: TcpListener,
    readiness: Readiness,
    admin: AdminServer,
    start: StartCheck,
}

impl Gateway {
    /// Connects to the database, prepares Redis and binds both ports.
    ///
    /// # Errors
    /// When no token key is set, the database cannot be reached or is not migrated, a port cannot be
    /// bound, or in production something is unsafe. A Redis that is away is waited for later.
    pub async fn build(settings: &Settings, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        telemetry::describe(HELP);
        pools::describe_them();
        let verifier = Arc::new(TokenVerifier::new(&settings.auth)?);
        let redis = connect::redis(settings)?;
        let database = connect::migrated_database(settings).await?;
        let readiness = Readiness::new();
        for check in [CHECK_CATALOGUE, CHECK_REDIS] {
            readiness.register(check);
        }
        let start = StartCheck::begin(settings, &redis, &database, &readiness).await?;
        let listener = TcpListener::bind(settings.http.listen)
            .with_context(|| format!("http.listen {} cannot be bound", settings.http.listen))?;
        let operators = web::Data::new(OperatorsState {
            verifier: Arc::clone(&verifier),
            operations: Operations::new(redis.clone(), database.clone()),
            body: body_limits(settings),
        });
        let routes = move |config: &mut ServiceConfig| operators::configure(config, &operators);
        let admin = AdminServer::bind(settings.admin.listen, readiness.clone(), metrics, routes)?;
        let settings = settings.clone();
        Ok(Self { settings, redis, database, verifier, listener, readiness, admin, start })
    }

    /// Where buyers are listened to.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn http_addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// Where the admin port listens.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// Serves until the shutdown is requested; then answers what is in flight.
    ///
    /// # Errors
    /// When the sales cannot be read at the start, a listener fails, or in production a Redis that was
    /// away at the start turns out to be unsafe.
    pub async fn run(self, shutdown: Shutdown) -> anyhow::Result<()> {
        let after_drain = Shutdown::new();
        let admin = tokio::spawn(self.admin.run(after_drain.clone()));
        let start = tokio::spawn(self.start.finish(shutdown.clone()));
        let catalogue = Arc::new(Catalogue::default());
        let follower = CatalogueFollower {
            catalogue: Arc::clone(&catalogue),
            database: self.database.clone(),
            redis: self.redis.clone(),
            readiness: self.readiness.clone(),
            refresh: self.settings.catalogue.refresh,
        };
        tokio::select! {
            loaded = follower.load() => loaded.context("the sales cannot be read")?,
            // Nobody has been served yet, so nobody is waited for.
            () = shutdown.requested() => return start.await.context("the look at Redis ended badly")?,
        }
        let (newest_sales, looker) = NewestSales::of(&follower);
        let follower = tokio::spawn(follower.run(after_drain.clone()));
        let looker = tokio::spawn(looker.run(after_drain.clone()));
        let leases = Arc::new(Leases::new(self.redis.clone()));
        let answers = Arc::new(AnswerCounts::new());
        let adding = Arc::clone(&answers).keep_adding(self.database.clone(), after_drain.clone());
        let adding = tokio::spawn(adding);
        let followers = Arc::new(Followers::default());
        let feed =
            FollowersFeed::new(Arc::clone(&followers), self.redis.clone(), self.database.clone());
        let feed = tokio::spawn(feed.run(after_drain.clone()));

        let http_addr = self.listener.local_addr()?;
        let http = self.settings.http.clone();
        let admission = self.settings.admission.clone();
        let replicas = connect::replicas(&self.settings);
        let redis = self.redis.clone();
        let verifier = self.verifier;
        // Connects lazily: every worker thread takes its own from here.
        redis.admission_connection().context("redis.url cannot be used for admission")?;
        let state = web::Data::new(State {
            receipts: Receipts::new(
                self.redis.clone(),
                self.database.clone(),
                Arc::clone(&catalogue),
            ),
            catalogue,
            newest_sales,
            direct: DirectOrders {
                redis: self.redis.clone(),
                database: self.database.clone(),
                settings: self.settings.direct.clone(),
            },
            leases: Arc::clone(&leases),
            answers,
            followers,
            operations: Operations::new(self.redis.clone(), self.database.clone()),
            payment_secrets: self.settings.payment.webhook_secret.clone(),
            body: body_limits(&self.settings),
            sampling: Sampling::of(&self.settings.tracing),
            head_limit_bytes: http.head_limit_bytes,
            draining: shutdown.clone(),
        });
        let server = HttpServer::new(move || {
            // Once a worker thread: a queue, a connection and a memory for tokens of its own.
            let mut connection = redis
                .admission_connection()
                .expect("the same settings have given a connection before");
            if let Some(replicas) = replicas {
                connection = connection.confirmed_by(replicas);
            }
            App::new()
                .app_data(web::ThinData(AdmissionQueue::new(
                    connection,
                    &admission,
                    Arc::clone(&leases),
                )))
                .app_data(web::ThinData(BuyerVerifier::new(Arc::clone(&verifier))))
                .app_data(state.clone())
                .wrap(from_fn(edge::pass))
                .configure(routes::configure)
        })
        .workers(if http.workers == 0 { cores() } else { http.workers })
        .keep_alive(keep_alive(http.keep_alive))
        .client_request_timeout(http.client_request_timeout)
        // A buyer who hangs up is noticed at once, and not only when his answer cannot be written.
        .h1_allow_half_closed(false)
        .shutdown_timeout(http.drain_deadline.as_secs())
        .disable_signals()
        .listen(self.listener)?
        .run();
        let handle = server.handle();
        let server = tokio::spawn(server);
        info!(http = %http_addr, "gateway is running");

        shutdown.requested().await;
        info!("stopping: answering what is in flight");
        self.readiness.set_failed(CHECK_SERVING, "draining");
        sleep(LAST_ANSWERS.min(http.drain_deadline)).await;
        handle.stop(true).await;
        server.await.context("the server ended badly")??;
        after_drain.request();
        follower.await.context("the catalogue ended badly")?;
        looker.await.context("the look for new sales ended badly")?;
        feed.await.context("the followers' feed ended badly")?;
        adding.await.context("the counts of answers ended badly")?;
        admin.await.context("the admin listener ended badly")??;
        match timeout(CLOSE_WITHIN, self.database.close()).await {
            Ok(closed) => closed?,
            Err(_) => warn!("the database does not answer; leaving its connections open"),
        }
        start.await.context("the look at Redis ended badly")??;
        info!("stopped");
        Ok(())
    }
}

fn body_limits(settings: &Settings) -> BodyLimits {
    BodyLimits { bytes: settings.http.body_limit_bytes, time: settings.http.body_timeout }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn keep_alive(duration: Duration) -> KeepAlive {
    if duration.is_zero() { KeepAlive::Disabled } else { KeepAlive::Timeout(duration) }
}
