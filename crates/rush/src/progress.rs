//! Progress on stderr: a bar on a terminal, else one line a second. It only reads counters.

use std::io::{IsTerminal as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;

const BAR_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(1);

/// What the connections count as they go, for the eye alone: the report counts the answers.
#[derive(Debug)]
pub(crate) struct Counters {
    total: u64,
    done: AtomicU64,
    good: AtomicU64,
    /// What a good one is called.
    good_name: &'static str,
}

impl Counters {
    pub(crate) fn new(total: usize, good_name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            total: u64::try_from(total).unwrap_or(u64::MAX),
            done: AtomicU64::new(0),
            good: AtomicU64::new(0),
            good_name,
        })
    }

    /// One more is done.
    pub(crate) fn add(&self, good: bool) {
        self.done.fetch_add(1, Relaxed);
        if good {
            self.good.fetch_add(1, Relaxed);
        }
    }
}

/// The progress of one step, shown until [`Progress::finish`].
pub(crate) struct Progress {
    shown: Option<(Arc<View>, JoinHandle<()>)>,
}

struct View {
    counters: Arc<Counters>,
    label: &'static str,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts to show `counters`, unless `quiet`.
    pub(crate) fn show(label: &'static str, counters: Arc<Counters>, quiet: bool) -> Self {
        if quiet {
            return Self { shown: None };
        }
        let bar = stderr().is_terminal().then(|| bar(counters.total));
        let view = Arc::new(View { counters, label, since: Instant::now(), bar });
        let drawing = Arc::clone(&view);
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(if drawing.bar.is_some() { BAR_EVERY } else { LINE_EVERY })
                    .await;
                drawing.draw();
            }
        });
        Self { shown: Some((view, task)) }
    }

    /// Shows the final numbers and leaves them there.
    pub(crate) async fn finish(self) {
        let Some((view, task)) = self.shown else { return };
        task.abort();
        let _: Result<(), _> = task.await; // an error here is the abort itself
        view.draw();
        if let Some(bar) = &view.bar {
            bar.abandon();
        }
    }
}

impl View {
    fn draw(&self) {
        let Counters { total, good_name, .. } = *self.counters;
        let (done, good) = (self.counters.done.load(Relaxed), self.counters.good.load(Relaxed));
        let rate = done as f64 / self.since.elapsed().as_secs_f64().max(1e-3);
        let numbers = format!("{done}/{total}  {rate:.0}/s  {good} {good_name}");
        match &self.bar {
            Some(bar) => {
                bar.set_message(numbers);
                bar.set_prefix(self.label);
                bar.set_position(done);
            }
            None => eprintln!("{} {numbers}", self.label),
        }
    }
}

fn bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:30} {msg}")
        .expect("the template is a constant");
    // Drawn by `View::draw` alone, so the bar needs no limit on its own rate.
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        .with_style(style.progress_chars("=> "))
}
