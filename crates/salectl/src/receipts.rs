//! Receipts as `rush` writes them: CSV with the header `order_id,buyer`. Nothing is quoted: ids are
//! digits, and a buyer's id goes from the first comma to the end of its line.

use std::path::Path;

use flashsale_domain::UserId;
use flashsale_operations::Receipt;

use crate::failure::Failure;

const HEADER: &str = "order_id,buyer";

/// Reads the file.
pub(crate) fn read(path: &Path) -> Result<Vec<Receipt>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::file(format!("--receipts: {} cannot be read: {error}", path.display()))
    })?;
    parse(&text).map_err(|what| Failure::file(format!("--receipts: {}: {what}", path.display())))
}

fn parse(text: &str) -> Result<Vec<Receipt>, String> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(format!("its first line is not `{HEADER}`"));
    }
    let parse_line = |line: &str| {
        let (order_id, buyer) = line.split_once(',')?;
        let (order_id, user_id) = (order_id.parse().ok()?, UserId::new(buyer).ok()?);
        Some(Receipt { order_id, user_id })
    };
    (2..)
        .zip(lines)
        .map(|(number, line)| {
            parse_line(line)
                .ok_or_else(|| format!("line {number} is not an order's id, a comma, and a buyer"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_read_line_by_line() {
        let receipts = parse("order_id,buyer\n41,b-0\n42,Smith, John\n").expect("valid");
        let read: Vec<_> =
            receipts.iter().map(|r| (r.order_id.to_string(), r.user_id.as_str())).collect();
        assert_eq!(read, [("41".to_owned(), "b-0"), ("42".to_owned(), "Smith, John")]);
        assert_eq!(parse("order_id,buyer\n").expect("an empty rush").len(), 0);
    }

    #[test]
    fn a_file_of_something_else_is_refused_by_line() {
        for (text, what) in [
            ("", "its first line"),
            ("buyer,order_id\n", "its first line"),
            ("order_id,buyer\n41\n", "line 2"),
            ("order_id,buyer\n41,b\n,b\n", "line 3"),
            ("order_id,buyer\n41,b\n0,b\n", "line 3"),
            ("order_id,buyer\n41,\n", "line 2"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(what), "{text:?}: {error}");
        }
    }
}
