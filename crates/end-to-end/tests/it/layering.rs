//! Who may import whom, asked of Cargo itself. A crate boundary is worth its manifest only while it
//! keeps something out; these tables are what each one keeps out.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// The crates of ours that each crate may use; dev-dependencies are free. A crate without a line
/// here is refused, so that a new one comes with a decision about its place.
const LAYERS: &[(&str, &[&str])] = &[
    // The rules of a sale know nothing of where they are kept or who asks.
    ("flashsale-domain", &[]),
    ("flashsale-bootstrap", &["flashsale-webhooks"]),
    ("flashsale-migrations", &[]),
    ("flashsale-test-support", &[]),
    // A signature knows neither sales nor stores.
    ("flashsale-webhooks", &[]),
    // The two storages do not know each other: operations puts them together.
    ("flashsale-storage-redis", &["flashsale-domain"]),
    ("flashsale-storage-sql", &["flashsale-domain", "flashsale-migrations"]),
    (
        "flashsale-operations",
        &[
            "flashsale-bootstrap",
            "flashsale-domain",
            "flashsale-storage-redis",
            "flashsale-storage-sql",
        ],
    ),
    // The programs never import each other: gateway and worker meet in the order stream.
    ("flashsale-gateway", PROGRAM),
    ("flashsale-order-worker", PROGRAM),
    ("flashsale-salectl", PROGRAM),
    // A load generator that shared the gateway's types would share its mistakes.
    ("flashsale-rush", &["flashsale-bootstrap"]),
    ("flashsale-demo", &["flashsale-test-support", "flashsale-webhooks"]),
    // It knows the programs from outside; but the designs and limits that it compares them with send the
    // same script and write by the same statements, or they would be other work.
    (
        "flashsale-bench",
        &[
            "flashsale-bootstrap",
            "flashsale-domain",
            "flashsale-operations",
            "flashsale-storage-redis",
            "flashsale-storage-sql",
            "flashsale-test-support",
        ],
    ),
    // It reads both stores to judge them, and knows no program but by its name.
    (
        "flashsale-torture",
        &[
            "flashsale-bootstrap",
            "flashsale-domain",
            "flashsale-operations",
            "flashsale-storage-redis",
            "flashsale-storage-sql",
            "flashsale-test-support",
            "flashsale-webhooks",
        ],
    ),
    ("flashsale-end-to-end", &[]),
];

const PROGRAM: &[&str] = &[
    "flashsale-bootstrap",
    "flashsale-domain",
    "flashsale-operations",
    "flashsale-storage-redis",
    "flashsale-storage-sql",
    "flashsale-webhooks",
];

/// Libraries (with all whose names continue with a dash) that only these crates may use.
const KEPT_IN: &[(&str, &[&str])] = &[
    // The drills do to both stores what no operation of ours does. The bench holds designs that use Redis
    // in other ways than ours, to be compared with it; they are in no program that ships.
    ("redis", &["flashsale-storage-redis", "flashsale-torture", "flashsale-bench"]),
    ("deadpool-redis", &["flashsale-storage-redis", "flashsale-bench"]),
    (
        "sea-orm",
        &["flashsale-storage-sql", "flashsale-migrations", "flashsale-torture", "flashsale-bench"],
    ),
    ("sqlx", &["flashsale-storage-sql", "flashsale-migrations"]),
    // Whoever has a span to tell of knows the API; where spans go is known here alone.
    ("opentelemetry_sdk", &["flashsale-bootstrap"]),
    ("opentelemetry-otlp", &["flashsale-bootstrap"]),
    ("opentelemetry-http", &["flashsale-bootstrap"]),
];

/// Libraries that bring I/O, async or a clock, none of which the rules may have.
const KEPT_OUT_OF_DOMAIN: &[&str] =
    &["tokio", "actix", "futures", "hyper", "reqwest", "chrono", "time"];

#[test]
fn crates_import_only_what_their_layer_allows() {
    let metadata = workspace();
    let ours: Vec<&str> = members(&metadata).map(name).collect();
    let mut broken = Vec::new();
    for package in members(&metadata) {
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == name(package)) else {
            broken.push(format!(
                "{} has no place yet: give it a line in LAYERS of this test",
                name(package)
            ));
            continue;
        };
        for import in imports(package) {
            if ours.contains(&import) && !allowed.contains(&import) {
                broken.push(format!("{} must not import {import}", name(package)));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn each_store_is_known_to_one_layer_only() {
    let metadata = workspace();
    let mut broken = Vec::new();
    for package in members(&metadata) {
        for import in imports(package) {
            for (library, owners) in KEPT_IN {
                if is_of_family(import, library) && !owners.contains(&name(package)) {
                    broken.push(format!(
                        "{} must not import {import}: only {} may",
                        name(package),
                        owners.join(" and ")
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_domain_has_no_input_no_output_and_no_clock() {
    let metadata = workspace();
    let domain = members(&metadata)
        .find(|package| name(package) == "flashsale-domain")
        .expect("the domain is a crate of this workspace");
    for import in imports(domain) {
        for library in KEPT_OUT_OF_DOMAIN {
            assert!(!is_of_family(import, library), "flashsale-domain must not import {import}");
        }
    }
}

#[test]
fn every_line_of_the_layers_names_a_crate_that_exists() {
    let metadata = workspace();
    let ours: Vec<&str> = members(&metadata).map(name).collect();
    for (layer, allowed) in LAYERS {
        for named in std::iter::once(layer).chain(*allowed) {
            assert!(ours.contains(named), "there is no crate {named}");
        }
    }
}

#[test]
fn versions_and_features_stand_in_the_workspace_manifest_alone() {
    let metadata = workspace();
    let mut broken = Vec::new();
    for package in members(&metadata) {
        let manifest = std::fs::read_to_string(&package.manifest_path)
            .expect("the manifest of a member can be read");
        for (number, line) in own_versions(&manifest) {
            broken.push(format!("{}:{number}: {line}", package.manifest_path));
        }
    }
    assert!(
        broken.is_empty(),
        "these dependencies do not say `workspace = true` on their one line:\n{}",
        broken.join("\n")
    );
}

#[test]
fn a_dependency_with_a_version_of_its_own_is_found() {
    let manifest = r#"
[package]
version = "0.1.0"

[dependencies]
# a comment
anyhow.workspace = true
serde = { workspace = true, features = ["derive"] }
tokio = "1"

[target.'cfg(unix)'.dev-dependencies]
rustix = { version = "1", features = ["process"] }

[build-dependencies.cc]
version = "1"

[features]
extra = []
"#;
    let found: Vec<usize> = own_versions(manifest).map(|(number, _)| number).collect();
    assert_eq!(found, [9, 12, 14]);
}

/// Without dependencies, so that nothing is resolved or downloaded.
fn workspace() -> Metadata {
    MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata describes this workspace")
}

fn members(metadata: &Metadata) -> impl Iterator<Item = &Package> {
    metadata.packages.iter()
}

fn name(package: &Package) -> &str {
    package.name.as_str()
}

/// What the crate is built with and from: all but its dev-dependencies.
fn imports(package: &Package) -> impl Iterator<Item = &str> {
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
}

fn is_of_family(import: &str, library: &str) -> bool {
    import.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The numbered lines of a manifest that declare a dependency without leaving it to the workspace.
/// A table of its own (`[dependencies.name]`) is found by its head.
fn own_versions(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_dependencies = false;
    manifest.lines().map(str::trim).enumerate().filter_map(move |(index, line)| {
        let found = if let Some(head) = line.strip_prefix('[') {
            let head = head.trim_end_matches(']');
            in_dependencies = head.ends_with("dependencies");
            !in_dependencies && head.contains("dependencies.")
        } else {
            in_dependencies
                && !line.is_empty()
                && !line.starts_with('#')
                && !line.contains("workspace = true")
        };
        found.then_some((index + 1, line))
    })
}
