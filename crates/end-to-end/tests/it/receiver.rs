//! A receiver of traces that no one here wrote: Rotel, which prints each span that it is sent.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use flashsale_test_support::{Program, binary, eventually_blocking, free_port};

use crate::stack::SOON;

/// A running receiver.
pub(crate) struct Receiver {
    program: Program,
    port: u16,
}

/// A span as the receiver has understood it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReceivedSpan {
    /// The program that sent it.
    pub(crate) service: String,
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty where it begins a trace.
    pub(crate) parent: String,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Trace and span, joined by a slash.
    pub(crate) links: Vec<String>,
}

impl Receiver {
    /// Starts one, and waits until it listens. It is fetched where it is not there yet.
    pub(crate) fn start() -> Self {
        let path = fetch();
        let port = free_port();
        let program = Program::builder(path)
            .args(&["start", "--exporter", "blackhole", "--pid-file", "receiver.pid"])
            .args(&["--debug-log", "traces", "--debug-log-verbosity", "detailed"])
            .args(&["--otlp-http-endpoint", &format!("127.0.0.1:{port}")])
            .args(&["--otlp-grpc-endpoint", &format!("127.0.0.1:{}", free_port())])
            .start();
        eventually_blocking(SOON, "the receiver listens", || {
            TcpStream::connect(("127.0.0.1", port)).map_err(|error| (error, program.log()))
        });
        Self { program, port }
    }

    /// As `tracing.otlp_endpoint`.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<ReceivedSpan> {
        parse(&self.program.log())
    }

    /// Waits until all that is waited for has come, and returns the spans so far.
    pub(crate) fn wait_until(&self, is_all: impl Fn(&[ReceivedSpan]) -> bool) -> Vec<ReceivedSpan> {
        eventually_blocking(SOON, "the spans have come", || {
            let spans = self.spans();
            if is_all(&spans) { Ok(spans) } else { Err(spans) }
        })
    }
}

/// By the script that is shipped, beside what Cargo built.
fn fetch() -> PathBuf {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/local/fetch-otlp-receiver.sh");
    let profile = binary("gateway");
    let target = profile.parent().and_then(Path::parent).expect("target/profile/program");
    let output = Command::new(script).arg(target.join("otlp-receiver")).output();
    let output = output.expect("the script can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end())
}

/// Of a report for people: lines `Key : value`, and `-> key: Str(value)` below the head of their list.
fn parse(log: &str) -> Vec<ReceivedSpan> {
    enum List {
        Resource,
        Attributes,
        Links,
    }
    let (mut spans, mut list, mut service) = (Vec::<ReceivedSpan>::new(), None, String::new());
    let mut linked_trace = String::new();
    for line in log.lines() {
        let entry = line.trim_start().strip_prefix("-> ").and_then(|entry| entry.split_once(": "));
        if let Some((key, value)) = entry {
            let plain = value.split_once('(').map_or(value, |(_, value)| value);
            let plain = plain.strip_suffix(')').unwrap_or(plain);
            match (&list, spans.last_mut()) {
                (Some(List::Resource), _) if key == "service.name" => {
                    plain.clone_into(&mut service)
                }
                (Some(List::Attributes), Some(span)) => {
                    span.attributes.insert(key.to_owned(), plain.to_owned());
                }
                (Some(List::Links), Some(_)) if key == "Trace ID" => {
                    value.clone_into(&mut linked_trace);
                }
                (Some(List::Links), Some(span)) if key == "ID" => {
                    span.links.push(format!("{linked_trace}/{value}"));
                }
                _ => {}
            }
            continue;
        }
        match line.trim() {
            "Resource attributes:" => list = Some(List::Resource),
            "Attributes:" => list = Some(List::Attributes),
            "Links:" => list = Some(List::Links),
            head if head.starts_with("Span #") => {
                spans.push(ReceivedSpan { service: service.clone(), ..Default::default() });
                list = None;
            }
            _ => {}
        }
        let Some((key, value)) = line.split_once(" : ") else { continue };
        let Some(span) = spans.last_mut() else { continue };
        let field = match key.trim() {
            "Trace ID" => &mut span.trace,
            "Parent ID" => &mut span.parent,
            "ID" => &mut span.id,
            "Name" => &mut span.name,
            _ => continue,
        };
        value.trim().clone_into(field);
    }
    spans
}
