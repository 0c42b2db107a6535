//! What goes to standard output: text for people, or one JSON object on one line.
//!
//! JSON keeps the outside's rules: ids are strings, times RFC 3339 in UTC with milliseconds, states
//! and modes by their names.

use std::io::{self, ErrorKind, Write as _};

use serde::Serialize;

use crate::failure::Failure;

/// How results are printed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints `value` as JSON, or the text that says the same.
    pub(crate) fn print(
        self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let mut text = if self.json {
            serde_json::to_string(value).expect("our results have string keys, which JSON can hold")
        } else {
            text()
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        self.text(&text)
    }

    /// Prints `text` as it is.
    pub(crate) fn text(self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            // A reader that went away, as in `salectl sale list | head -1`, is no failure of ours.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::refused(format!("cannot write to standard output: {error}")))
            }
            _ => Ok(()),
        }
    }
}

/// Rows with their columns aligned, two spaces apart. The last column is not padded.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Named values, one a line.
pub(crate) fn fields<const N: usize>(fields: [(&str, String); N]) -> String {
    columns(&fields.map(|(name, value)| vec![name.to_owned(), value]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_spaces() {
        let rows = [vec!["id".into(), "title".into()], vec!["1000".into(), String::new()]];
        assert_eq!(columns(&rows), "id    title\n1000\n");
        assert_eq!(columns(&[]), "");
    }
}
