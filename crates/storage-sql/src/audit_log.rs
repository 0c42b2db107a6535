//! The audit log: who did what to whom, and what was found lost.

use sea_orm::sea_query::{Expr, InsertStatement, Query, SelectStatement};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait, DbBackend, EntityTrait as _, QueryFilter as _,
    QueryOrder as _, QuerySelect as _,
};

use crate::clock::now_ms;
use crate::entities::audit_log::{Column, Entity};
use crate::{Database, SqlFault};

/// One line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its number; a later line has a higher one.
    pub id: i64,
    /// When, by the database's clock: milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Who: an operator, or a program's consumer name.
    pub actor: String,
    /// What was done, such as `dead.requeue`.
    pub action: String,
    /// To what: an order's, entry's or sale's id.
    pub subject: String,
    /// With what result.
    pub detail: String,
}

/// Which lines of the audit log.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Only by this actor.
    pub actor: Option<String>,
    /// Only of this action.
    pub action: Option<String>,
    /// Only of this subject.
    pub subject: Option<String>,
    /// Only older than the line of this number.
    pub before: Option<i64>,
    /// At most so many, newest first.
    pub limit: u64,
}

fn insert(line: SelectStatement) -> InsertStatement {
    Query::insert()
        .into_table(Entity)
        .columns([Column::AtMs, Column::Actor, Column::Action, Column::Subject, Column::Detail])
        .select_from(line)
        .expect("as many values as columns")
        .to_owned()
}

fn audit_line(
    backend: DbBackend,
    actor: &str,
    action: &str,
    subject: &str,
    detail: &str,
) -> SelectStatement {
    let values: [Expr; 5] =
        [now_ms(backend), actor.into(), action.into(), subject.into(), detail.into()];
    Query::select().exprs(values).to_owned()
}

impl Database {
    /// Adds a line to the audit log.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn insert_audit(
        &self,
        actor: &str,
        action: &str,
        subject: &str,
        detail: &str,
    ) -> Result<(), SqlFault> {
        self.write_audit(&self.connection, actor, action, subject, detail).await
    }

    /// The same, as part of a transaction.
    pub(crate) async fn write_audit(
        &self,
        connection: &impl ConnectionTrait,
        actor: &str,
        action: &str,
        subject: &str,
        detail: &str,
    ) -> Result<(), SqlFault> {
        let line = audit_line(self.backend(), actor, action, subject, detail);
        connection.execute(&insert(line)).await?;
        Ok(())
    }

    /// Adds a line to the audit log, unless the same was done to the same subject before. Two callers
    /// at the same instant may both add it.
    ///
    /// # Errors
    /// When the database refuses or cannot be asked.
    pub async fn insert_audit_once(
        &self,
        actor: &str,
        action: &str,
        subject: &str,
        detail: &str,
    ) -> Result<(), SqlFault> {
        let before = Query::select()
            .expr(Expr::val(1))
            .from(Entity)
            .and_where(Column::Action.eq(action))
            .and_where(Column::Subject.eq(subject))
            .to_owned();
        let mut line = audit_line(self.backend(), actor, action, subject, detail);
        line.cond_where(Expr::not_exists(before));
        self.connection.execute(&insert(line)).await?;
        Ok(())
    }

    /// The latest lines of the audit log, newest first.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn list_audit(&self, limit: u64) -> Result<Vec<AuditEntry>, SqlFault> {
        self.find_audit(&AuditFilter { limit, ..AuditFilter::default() }).await
    }

    /// Lines of the audit log, newest first.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn find_audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, SqlFault> {
        let mut query = Entity::find().order_by_desc(Column::Id).limit(filter.limit);
        let wanted = [
            (Column::Actor, &filter.actor),
            (Column::Action, &filter.action),
            (Column::Subject, &filter.subject),
        ];
        for (column, text) in wanted {
            if let Some(text) = text {
                query = query.filter(column.eq(text.as_str()));
            }
        }
        if let Some(before) = filter.before {
            query = query.filter(Column::Id.lt(before));
        }
        let rows = query.all(&self.connection).await?;
        let entry = |row: crate::entities::audit_log::Model| AuditEntry {
            id: row.id,
            at_ms: row.at_ms,
            actor: row.actor,
            action: row.action,
            subject: row.subject,
            detail: row.detail,
        };
        Ok(rows.into_iter().map(entry).collect())
    }
}
