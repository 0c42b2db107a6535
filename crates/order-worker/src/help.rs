//! What each metric of the order-worker means, for whoever reads `/metrics`. docs/operations.md says
//! more.

/// Metric and meaning.
pub(crate) const HELP: &[(&str, &str)] = &[
    ("flashsale_orders_committed_total", "Orders of committed batches, by sale and result"),
    ("flashsale_commit_lag_seconds", "From admission to commit"),
    ("flashsale_commit_batch_size", "Orders in one transaction"),
    ("flashsale_stream_backlog", "Entries undelivered or pending"),
    ("flashsale_oldest_unapplied_seconds", "Age of the oldest entry undelivered or pending"),
    ("flashsale_dead_letters", "Entries set aside"),
    ("flashsale_reclaimed_total", "Entries taken over from a worker that held them for too long"),
    ("flashsale_ledger_imbalance", "Units that are where they cannot be"),
    ("flashsale_entries_lost_total", "Entries that were pending and are gone from the stream"),
    ("flashsale_group_recreated_total", "Times that the stream or its group were missing"),
    ("flashsale_worker_retries_total", "Tries that the database put off"),
    ("flashsale_redis_faults_total", "Times that Redis did not do what a part of the worker needs"),
    ("flashsale_releases_total", "Units and slots given back in Redis, by cause"),
    ("flashsale_orders_expired_total", "Orders that were not paid in time"),
    ("flashsale_events_waiting", "Changes of orders that the shop has yet to be told of"),
    ("flashsale_webhook_deliveries_total", "Tries to tell the shop, by result"),
    ("flashsale_gate_open", "1 while the partition's memory is trusted and sells"),
    ("flashsale_rebuilds_total", "Partitions loaded from the database by this worker itself"),
    ("flashsale_desired_workers", "How many workers bring the backlog down in time"),
    ("flashsale_eviction_policy_safe", "1 while Redis never evicts"),
    ("flashsale_aof_enabled", "1 while Redis keeps an append-only file"),
];
