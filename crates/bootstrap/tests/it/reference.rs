//! Makes the reference of all settings of the commented document of defaults, which stays the only place
//! where a setting is described.
//!
//! What it asks of that document: a key's comment stands right above it, and counts for the keys that
//! follow without a line between; the programs that read a section, or a key, stand in brackets in its
//! comment; without them it is every program.

const PROGRAMS: [&str; 4] = ["gateway", "order-worker", "salectl", "rush"];

const NOTICE: &str = "\
<!-- Made of crates/bootstrap/src/defaults.toml by `make docs`: change the settings' comments there. -->";

/// Keys with one comment, and where they stand.
pub(crate) struct Group {
    section: Option<String>,
    pub(crate) comment: Vec<String>,
    pub(crate) settings: Vec<Setting>,
}

/// A key with its section, and its default as TOML has it.
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) default: String,
}

impl Setting {
    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("FLASHSALE__{}", self.key.replace('.', "__").to_uppercase())
    }
}

struct Section {
    name: String,
    comment: Vec<String>,
}

/// The document, taken apart.
pub(crate) struct Reference {
    head: Vec<String>,
    sections: Vec<Section>,
    pub(crate) groups: Vec<Group>,
}

impl Reference {
    pub(crate) fn of(document: &str) -> Self {
        let mut reference = Self { head: Vec::new(), sections: Vec::new(), groups: Vec::new() };
        let (mut comment, mut goes_on) = (Vec::new(), false);
        for line in document.lines() {
            if let Some(text) = line.strip_prefix('#') {
                comment.push(text.strip_prefix(' ').unwrap_or(text).to_owned());
                goes_on = false;
            } else if line.is_empty() {
                // The first comment is of no key: it says what the document is.
                if reference.head.is_empty() {
                    reference.head = std::mem::take(&mut comment);
                }
                assert!(comment.is_empty(), "a comment stands above nothing: {comment:?}");
                goes_on = false;
            } else if let Some(name) = line.strip_prefix('[') {
                let name = name.strip_suffix(']').expect("a section's line ends with ]").to_owned();
                reference.sections.push(Section { name, comment: std::mem::take(&mut comment) });
                goes_on = false;
            } else {
                let (key, default) = line.split_once(" = ").expect("one line a key: key = value");
                let section = reference.sections.last().map(|section| section.name.clone());
                let key = section.iter().map(String::as_str).chain([key]).collect::<Vec<_>>();
                let setting = Setting { key: key.join("."), default: default.to_owned() };
                if goes_on {
                    let group = reference.groups.last_mut().expect("a key stands above this one");
                    group.settings.push(setting);
                } else {
                    assert!(!comment.is_empty(), "{} has no comment", setting.key);
                    let comment = std::mem::take(&mut comment);
                    reference.groups.push(Group { section, comment, settings: vec![setting] });
                }
                goes_on = true;
            }
        }
        reference
    }

    /// As Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut page = format!("# Configuration\n\n{NOTICE}\n\n{}\n\n", as_markdown(&self.head));
        page.push_str("| section | read by |\n|---|---|\n");
        for section in &self.sections {
            let name = &section.name;
            page.push_str(&format!("| [`{name}`](#{name}) | {} |\n", readers(&section.comment)));
        }
        page.push('\n');
        self.write_groups(None, &mut page);
        for section in &self.sections {
            page.push_str(&format!("## {}\n\n", section.name));
            if !section.comment.is_empty() {
                page.push_str(&format!("{}\n\n", as_markdown(&section.comment)));
            }
            self.write_groups(Some(&section.name), &mut page);
        }
        page.truncate(page.trim_end().len());
        page.push('\n');
        page
    }

    fn write_groups(&self, section: Option<&str>, page: &mut String) {
        for group in self.groups.iter().filter(|group| group.section.as_deref() == section) {
            let keys: Vec<_> = group.settings.iter().map(|it| format!("`{}`", it.key)).collect();
            page.push_str(&format!(
                "### {}\n\n{}\n\n",
                keys.join(", "),
                as_markdown(&group.comment)
            ));
            for setting in &group.settings {
                let (variable, default) = (setting.variable(), &setting.default);
                page.push_str(&format!("- `{variable}`, default `{default}`\n"));
            }
            page.push('\n');
        }
    }
}

/// Which programs a comment names in brackets.
fn readers(comment: &[String]) -> String {
    let text = comment.join(" ");
    let mut brackets = text.split('(').skip(1).filter_map(|rest| rest.split(')').next());
    let are_programs = |text: &&str| text.split(", ").all(|word| PROGRAMS.contains(&word));
    brackets.find(are_programs).unwrap_or("every program").to_owned()
}

/// A comment's lines; a variable's name would be half bold without its backticks.
fn as_markdown(comment: &[String]) -> String {
    let mut in_code = false;
    let mut lines = Vec::new();
    for line in comment {
        let mut words = Vec::new();
        for word in line.split(' ') {
            let name_ends = word
                .find(|c: char| !(c.is_ascii_alphanumeric() || "_/:.=".contains(c)))
                .unwrap_or(word.len());
            let name = word[..name_ends].trim_end_matches(['.', ':']);
            if !in_code && name.starts_with("FLASHSALE_") {
                words.push(format!("`{name}`{}", &word[name.len()..]));
            } else {
                words.push(word.to_owned());
            }
            in_code ^= word.matches('`').count() % 2 == 1;
        }
        lines.push(words.join(" "));
    }
    lines.join("\n")
}
