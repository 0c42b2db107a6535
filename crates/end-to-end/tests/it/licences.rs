//! Every dependency may be shipped: its licence is permissive.

use cargo_metadata::MetadataCommand;

const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    // Notice-keeping terms for data tables, and for file-level changes of the roots that TLS trusts.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

#[test]
fn every_dependency_has_a_permissive_licence() {
    let metadata = MetadataCommand::new().exec().expect("cargo metadata answers");
    let mut refused = Vec::new();
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("none named");
        if !is_permissive(licence) {
            refused.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// One alternative of the expression must consist of permissive licences alone. Parentheses only
/// group here, and the few expressions that have them read the same without.
fn is_permissive(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], "").replace('/', " OR ");
    flat.split(" OR ").any(|alternative| {
        alternative.split(" AND ").all(|licence| PERMISSIVE.contains(&licence.trim()))
    })
}

#[test]
fn an_expression_is_read_as_alternatives_of_sums() {
    for good in ["MIT", "MIT OR GPL-3.0", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_permissive(good), "{good}");
    }
    for bad in ["GPL-3.0-or-later", "MIT AND GPL-3.0", "none named", "AGPL-3.0 OR SSPL-1.0"] {
        assert!(!is_permissive(bad), "{bad}");
    }
}
