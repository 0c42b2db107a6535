//! The documents say what is true: every problem and metric of the code is in them and the other way
//! round, links lead somewhere, and the tests that they cite exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A test's name is a sentence: backticked words of fewer parts are something else.
const WORDS_OF_A_TEST_MIN: usize = 4;

/// The documents that cite tests.
const CITING: &[&str] = &[
    "README.md",
    "README.zh-CN.md",
    "ARCHITECTURE.md",
    "docs/from-the-tutorial.md",
    "docs/torture.md",
    "docs/upgrading.md",
];

#[test]
fn every_problem_is_in_the_api_document_and_no_other() {
    let code = read("crates/gateway/src/problem.rs");
    let slugs: BTreeSet<&str> = code
        .split("StatusCode::")
        .skip(1)
        .filter_map(|rest| rest.split_once(',')?.1.trim_start().strip_prefix('"')?.split_once('"'))
        .map(|(slug, _)| slug)
        .collect();
    assert!(slugs.len() >= 10, "the slugs of problem.rs are no longer found: {slugs:?}");
    // What only the proxy says.
    let proxy = read("deploy/nginx/problems.conf");
    let told = proxy.split("{\"type\":\"/problems/").skip(1).filter_map(|it| it.split_once('"'));
    let proxys: BTreeSet<&str> = told.map(|(slug, _)| slug).collect();
    assert!(proxys.len() >= 5, "the slugs of problems.conf are no longer found: {proxys:?}");
    let slugs: BTreeSet<&str> = slugs.union(&proxys).copied().collect();

    let document = read("docs/api.md");
    let (_, problems) = document.split_once("\n## Problems\n").expect("a section on problems");
    let described: BTreeSet<&str> = problems
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(slug, _)| slug)
        // The head of the table.
        .filter(|slug| *slug != "type")
        .collect();
    assert_eq!(slugs, described, "problem.rs, problems.conf and the table of docs/api.md");
}

#[test]
fn every_metric_is_in_the_operations_document_and_no_other() {
    // What `help.rs` says of metrics makes none.
    let is_help = |file: &&PathBuf| file.ends_with("help.rs");
    let (mut emitted, mut explained) = (BTreeSet::new(), BTreeSet::new());
    for file in rust_files().iter().filter(|file| has_folder(file, "src")) {
        let code = fs::read_to_string(file).expect("a readable source file");
        let literals = code.split("\"flashsale_").skip(1).filter_map(|rest| rest.split('"').next());
        let names = literals.map(|rest| format!("flashsale_{rest}")).filter(|t| is_metric(t));
        if is_help(&file) { explained.extend(names) } else { emitted.extend(names) }
    }
    let made_up: Vec<_> = explained.difference(&emitted).collect();
    assert!(made_up.is_empty(), "help.rs explains what nobody emits: {made_up:?}");
    assert!(emitted.len() >= 10, "the metrics are no longer found: {emitted:?}");

    let document = read("docs/operations.md");
    let described: BTreeSet<String> = code_spans(&document)
        .map(|span| span.split('{').next().unwrap_or_default())
        .filter(|text| is_metric(text))
        .map(str::to_owned)
        .collect();
    assert_eq!(emitted, described, "crates/*/src and docs/operations.md");
}

#[test]
fn every_cited_test_exists() {
    let mut known = BTreeSet::new();
    for file in rust_files() {
        let code = fs::read_to_string(&file).expect("a readable source file");
        let is_test_file = has_folder(&file, "tests");
        let mut before = "";
        for word in code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            // Macros make tests of names that only stand in their call.
            if before == "fn" || is_test_file {
                known.insert(word.to_owned());
            }
            before = word;
        }
    }
    let mut missing = Vec::new();
    for name in CITING {
        let document = read(name);
        let cited: Vec<&str> = code_spans(&document).filter(|span| is_test_name(span)).collect();
        missing.extend(
            cited
                .iter()
                .filter(|test| !known.contains(**test))
                .map(|test| format!("{name}: {test}")),
        );
    }
    assert!(missing.is_empty(), "there are no such tests:\n{}", missing.join("\n"));
}

#[test]
fn every_link_between_documents_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for file in files_with_ending(&root(), "md") {
        let document = fs::read_to_string(&file).expect("a readable document");
        for link in links(&document) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => file.clone(),
                path => file.parent().expect("a file has a folder").join(path),
            };
            let leads_there = if heading.is_empty() {
                target.exists()
            } else {
                fs::read_to_string(&target).is_ok_and(|text| has_heading(&text, heading))
            };
            if !leads_there {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn code_blocks_hold_neither_links_nor_names() {
    let document =
        "a `name` and [a](b.md)\n```sh\n`other` [c](d.md)\n```\n`[e](f.md)` ![g](h.png \"t\")";
    assert_eq!(code_spans(document).collect::<Vec<_>>(), ["name", "[e](f.md)"]);
    assert_eq!(links(document), ["b.md", "h.png"]);
    assert!(has_heading("# A\n## Where do I change …\n", "where-do-i-change-"));
    assert!(is_test_name("orders_become_rows_once") && !is_test_name("orders_become_rows"));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Whether the text is the name of one of our metrics and nothing else.
fn is_metric(text: &str) -> bool {
    let name = text.strip_prefix("flashsale_").unwrap_or_default();
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}

fn is_test_name(text: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    !is_metric(text)
        && text.split('_').count() >= WORDS_OF_A_TEST_MIN
        && text.split('_').all(is_word)
}

/// The lines outside fenced code blocks.
fn prose(document: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    document.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// What stands between backticks; a span does not go over the end of its line.
fn code_spans(document: &str) -> impl Iterator<Item = &str> {
    prose(document).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The targets of `[text](target)` and `![text](target "title")`.
fn links(document: &str) -> Vec<&str> {
    prose(document)
        .flat_map(|line| line.split('`').step_by(2))
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')')?.0.split_whitespace().next())
        .collect()
}

/// Whether a heading has this anchor, made as code hosts make it: lower case, blanks to dashes,
/// punctuation left out.
fn has_heading(document: &str, anchor: &str) -> bool {
    prose(document).filter(|line| line.starts_with('#')).any(|line| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let made: String = text
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        made == anchor
    })
}

fn rust_files() -> Vec<PathBuf> {
    files_with_ending(&root().join("crates"), "rs")
}

/// Whether the file lies in a folder of this name, somewhere within the workspace.
fn has_folder(file: &Path, name: &str) -> bool {
    let within = file.strip_prefix(root()).expect("a file of the workspace");
    within.components().any(|part| part.as_os_str() == name)
}

/// Leaves out what is built and what is hidden.
fn files_with_ending(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files.extend(files_with_ending(&path, ending));
            }
        } else if path.extension().is_some_and(|e| e == ending) {
            files.push(path);
        }
    }
    files
}
