//! Receipts as `rush` writes them: CSV with the header `order_id,buyer`. Nothing is quoted: ids are
//! digits, and a buyer's id goes from the first comma to the end of its line.
//!
//! The file is read line by line, and both a line and their number have a limit: whatever is named as
//! the file, a device or somebody's backup, costs neither all memory nor all day.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use flashsale_domain::UserId;
use flashsale_operations::Receipt;

use crate::failure::Failure;

const HEADER: &str = "order_id,buyer";

/// At least 19 digits, a comma, the longest buyer's id, and the end of a line: bytes.
const LINE_MAX: u64 = 256;

/// All are in memory at once, about 100 bytes each.
const RECEIPTS_MAX: usize = 5_000_000;

/// Reads the file.
pub(crate) fn read(path: &Path) -> Result<Vec<Receipt>, Failure> {
    let file = File::open(path).map_err(|error| {
        Failure::file(format!("--receipts: {} cannot be read: {error}", path.display()))
    })?;
    parse(BufReader::new(file), RECEIPTS_MAX)
        .map_err(|what| Failure::file(format!("--receipts: {}: {what}", path.display())))
}

fn parse(mut text: impl BufRead, receipts_max: usize) -> Result<Vec<Receipt>, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    if next_line(&mut text).map_err(unreadable)?.as_deref() != Some(HEADER.as_bytes()) {
        return Err(format!("its first line is not `{HEADER}`"));
    }
    let mut receipts = Vec::new();
    while let Some(line) = next_line(&mut text).map_err(unreadable)? {
        if receipts.len() == receipts_max {
            return Err(format!("it has more than {receipts_max} receipts: split it"));
        }
        let receipt = parse_line(&line).ok_or_else(|| {
            let number = receipts.len() + 2;
            format!("line {number} is not an order's id, a comma, and a buyer")
        })?;
        receipts.push(receipt);
    }
    Ok(receipts)
}

/// The next line without its end; of one that is too long only the beginning, which is no receipt.
fn next_line(text: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    text.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop_if(|last| *last == b'\n').is_some() {
        line.pop_if(|last| *last == b'\r');
    }
    Ok(Some(line))
}

fn parse_line(line: &[u8]) -> Option<Receipt> {
    let (order_id, buyer) = str::from_utf8(line).ok()?.split_once(',')?;
    Some(Receipt { order_id: order_id.parse().ok()?, user_id: UserId::new(buyer).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_read_line_by_line() {
        let parse = |text: &str| parse(text.as_bytes(), 10);
        let receipts = parse("order_id,buyer\r\n41,b-0\n42,Smith, John").expect("valid");
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
            let error = parse(text.as_bytes(), 10).expect_err(text);
            assert!(error.contains(what), "{text:?}: {error}");
        }
    }
    #[test]
    fn the_longest_receipt_is_read_and_a_line_without_end_is_not() {
        let order_id = i64::MAX;
        let buyer = "b".repeat(128);
        let longest = format!("{HEADER}\n{order_id},{buyer}\n");
        assert_eq!(parse(longest.as_bytes(), 10).expect("valid").len(), 1);
        // Neither reader ever ends; who reads a line to its end does not come back.
        let error = parse(BufReader::new(io::repeat(0)), 10).expect_err("no header");
        assert!(error.contains("its first line"), "{error}");
        let endless = format!("{HEADER}\n41,").into_bytes();
        let endless = BufReader::new(io::Cursor::new(endless).chain(io::repeat(b'b')));
        let error = parse(endless, 10).expect_err("no end");
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn more_receipts_than_fit_in_memory_are_refused() {
        let text = format!("{HEADER}\n{}", "41,b\n".repeat(3));
        assert_eq!(parse(text.as_bytes(), 3).expect("as many as allowed").len(), 3);
        let error = parse(text.as_bytes(), 2).expect_err("one too many");
        assert!(error.contains("more than 2 receipts"), "{error}");
    }
}
