//! `docs/configuration.md` is what the document of defaults says, and what it says is so.

use std::path::Path;

use flashsale_bootstrap::{DEFAULTS, Settings};

use crate::reference::Reference;

/// Set by `make docs`: the page is written, not compared.
const WRITE: &str = "FLASHSALE_WRITE_DOCS";

#[test]
fn the_configuration_page_is_made_of_the_default_settings() {
    let page = Reference::of(DEFAULTS).markdown();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is not what defaults.toml says: run `make docs`"
    );
}

#[test]
fn every_variable_of_the_page_is_understood() {
    let reference = Reference::of(DEFAULTS);
    let settings: Vec<_> = reference.groups.iter().flat_map(|group| &group.settings).collect();
    assert!(settings.len() > 40, "the keys are no longer found: {}", settings.len());
    for setting in settings {
        // What the environment has for the default: no quotes, and nothing for nothing.
        let value = setting.default.trim_matches('"');
        let value = if value == "[]" { "" } else { value };
        let variable = (setting.variable(), value.to_owned());
        if let Err(error) = Settings::from_sources(None, [variable]) {
            panic!("{}: {error}", setting.key);
        }
    }
}

/// What a comment says of a range, the refusal of nonsense says too: both are read by whoever sets a value.
#[test]
fn every_range_of_the_page_is_the_one_that_is_checked() {
    let reference = Reference::of(DEFAULTS);
    let mut compared = 0;
    for group in &reference.groups {
        let [setting] = group.settings.as_slice() else { continue };
        let comment = group.comment.join(" ");
        let Some((least, most)) = range_in(&comment) else { continue };
        let nonsense = (setting.variable(), "\0".to_owned());
        let refused = Settings::from_sources(None, [nonsense]).expect_err(&setting.key).to_string();
        let said = format!("{least} to {most}");
        assert!(refused.contains(&said), "{}: {said} is not in: {refused}", setting.key);
        compared += 1;
    }
    assert!(compared > 25, "the ranges are no longer found: {compared}");
}

/// The first `10ms to 1m` or `1 to 500` of a text.
fn range_in(text: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = text
        .split_whitespace()
        .map(|word| word.trim_matches(['(', ')', ',', '.', ':', ';']))
        .collect();
    let is_amount = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let is_range = |it: &&[&str]| it[1] == "to" && is_amount(it[0]) && is_amount(it[2]);
    words.windows(3).find(is_range).map(|it| (it[0], it[2]))
}

#[test]
fn a_document_is_taken_apart_as_it_is_meant() {
    let document = "# All of it. See FLASHSALE__A__B=1.\n#\n# FLASHSALE_CONFIG names a file.\n\n\
                    # First.\nprofile = \"x\"\n\n\
                    # Here (gateway, rush): both.\n[http]\n# One\n# thing, by `salectl x\n# FLASHSALE_Y`.\nlisten = 1\n\n\
                    # Two.\nmin = \"1s\"\nmax = \"2s\"\n\n[log]\n# Three (somewhere).\nlevel = []\n";
    let expected = "\
### `profile`

First.

- `FLASHSALE__PROFILE`, default `\"x\"`

## http

Here (gateway, rush): both.

### `http.listen`

One
thing, by `salectl x
FLASHSALE_Y`.

- `FLASHSALE__HTTP__LISTEN`, default `1`

### `http.min`, `http.max`

Two.

- `FLASHSALE__HTTP__MIN`, default `\"1s\"`
- `FLASHSALE__HTTP__MAX`, default `\"2s\"`

## log

### `log.level`

Three (somewhere).

- `FLASHSALE__LOG__LEVEL`, default `[]`
";
    let page = Reference::of(document).markdown();
    assert!(page.ends_with(expected), "{page}");
    assert!(page.contains("See `FLASHSALE__A__B=1`.\n\n`FLASHSALE_CONFIG` names"), "{page}");
    assert!(
        page.contains("| [`http`](#http) | gateway, rush |\n| [`log`](#log) | every program |")
    );
}
