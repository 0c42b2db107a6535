//! What goes wrong between us and the database, and whose fault it is.

use sea_orm::sqlx::Error as SqlxError;
use sea_orm::{DbErr, RuntimeErr};

/// The database could not be asked, or did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum SqlFault {
    /// The statement failed, or its answer did not come.
    #[error("database: {0}")]
    Database(#[from] DbErr),
    /// The URL is none that the driver understands. It is not shown: it may carry a password.
    #[error("the database's URL cannot be understood")]
    Url,
    /// A row holds what no row of ours can hold.
    #[error("table {table}, row {id}: column {column} holds a value that it cannot have")]
    Row {
        /// The table.
        table: &'static str,
        /// The row's primary key.
        id: i64,
        /// The column.
        column: &'static str,
    },
}

impl SqlFault {
    pub(crate) const fn row(table: &'static str, id: i64, column: &'static str) -> Self {
        Self::Row { table, id, column }
    }

    /// The database's own code for the error: SQLSTATE, or SQLite's extended result code.
    pub fn code(&self) -> Option<String> {
        let Self::Database(error) = self else { return None };
        let (DbErr::Conn(error) | DbErr::Exec(error) | DbErr::Query(error)) = error else {
            return None;
        };
        let RuntimeErr::SqlxError(error) = error else { return None };
        match &**error {
            SqlxError::Database(error) => error.code().map(|code| code.into_owned()),
            _ => None,
        }
    }

    /// True when the *data* was refused, so that sending it again would be refused again. Everything
    /// else is infrastructure: it passes, and no order pays for it.
    pub fn is_data(&self) -> bool {
        self.code().is_some_and(|code| is_data_code(&code))
    }

    /// True when a unique constraint refused a row, on PostgreSQL.
    pub(crate) fn is_duplicate(&self) -> bool {
        self.code().is_some_and(|code| code == "23505")
    }
}

/// SQLSTATE classes 22 (data exception) and 23 (constraint violation); of SQLite's primary result
/// codes (the low 8 bits) 18 TOOBIG, 19 CONSTRAINT, 20 MISMATCH and 25 RANGE.
///
/// A SQLSTATE has five characters and SQLite's codes have at most four, so one cannot be taken for
/// the other.
fn is_data_code(code: &str) -> bool {
    if code.len() == 5 {
        return code.starts_with("22") || code.starts_with("23");
    }
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 18 | 19 | 20 | 25))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refused_data_counts_as_data() {
        let data = [
            "22001", "22P02", "22021", "23505", "23514", "23502", "19", "275", "2067", "1555",
            "18", "20",
        ];
        for code in data {
            assert!(is_data_code(code), "{code}");
        }
        let infrastructure = [
            "08006", "08001", "25006", "25P03", "40001", "40P01", "53100", "53300", "55P03",
            "57014", "57P01", "57P03", "58030", "42P01", "42501", "XX000", "28P01", "5", "261",
            "517", "6", "10", "778", "11", "13", "14", "8", "",
        ];
        for code in infrastructure {
            assert!(!is_data_code(code), "{code}");
        }
    }
}
