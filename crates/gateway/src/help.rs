//! What each metric of the gateway means, for whoever reads `/metrics`. docs/operations.md says more.

/// Metric and meaning.
pub(crate) const HELP: &[(&str, &str)] = &[
    ("flashsale_admissions_total", "Answers to orders, by sale and outcome"),
    ("flashsale_admission_seconds", "From joining the queue to the answer, in queued sales"),
    ("flashsale_admission_batch_size", "Requests in one script call"),
    ("flashsale_admission_queue_depth", "Requests that wait in this process"),
    (
        "flashsale_admission_unconfirmed_batches_total",
        "Batches that too few replicas confirmed in time",
    ),
    ("flashsale_local_refusals_total", "Requests refused without asking Redis, by outcome"),
    ("flashsale_followed_orders", "Orders that somebody waits for or follows here"),
    ("flashsale_stock_left", "Units that are left, as last seen"),
    ("flashsale_catalogue_age_seconds", "How old this gateway's knowledge of the sales is"),
];
