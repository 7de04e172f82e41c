//! The settings of MariaDB and MySQL that endanger locks.

use dlock_core::backend::Finding;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use crate::findings::{Facts, Judge, is_on, leading, unless};
use crate::protocol::SqlResult;
use crate::table::TableName;
use crate::text::hex;

/// The questions about settings. Each user that may connect may read all of these. A server answers for those that it
/// has.
const FACTS: [&str; 2] = [
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', \
     'autocommit', 'read_only', 'wait_timeout', 'max_connections', 'innodb_doublewrite', 'wsrep_on')",
    "SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected'",
];

pub(super) async fn facts(on: &mut MySqlConnection, table: &TableName) -> SqlResult<Facts> {
    let mut facts = Facts::new();
    for statement in FACTS {
        for row in sqlx::raw_sql(statement).fetch_all(&mut *on).await? {
            let text = |column: usize| {
                let bytes: Vec<u8> = row.try_get_unchecked(column)?;
                Ok::<_, sqlx::Error>(String::from_utf8_lossy(&bytes).into_owned())
            };
            let name = match text(0)?.as_str() {
                "Threads_connected" => "connections".to_owned(),
                name => name.to_owned(),
            };
            facts.insert(name, text(1)?);
        }
    }
    let literal = |schema: &str| format!("CAST(X'{}' AS CHAR)", hex(schema.as_bytes()));
    let schema = table.schema().map_or_else(|| "DATABASE()".to_owned(), literal);
    let triggers = format!(
        "SELECT COUNT(*) FROM information_schema.triggers
        WHERE event_object_schema = {schema} AND event_object_table = '{}'",
        table.name()
    );
    let row = sqlx::raw_sql(AssertSqlSafe(triggers)).fetch_one(on).await?;
    facts.insert("triggers".to_owned(), row.try_get::<i64, _>(0)?.to_string());
    Ok(facts)
}

pub(super) const SETTINGS: &[(&str, Judge)] = &[
    // A user that may not see triggers sees none.
    ("triggers", |value, _| {
        let advice = "look at the triggers of the table of the locks: one that changes what is written can have locks lost, or \
                      granted twice";
        unless(value == "0", Finding::warning("triggers", value, advice))
    }),
    ("version", |value, _| {
        let oldest = if value.contains("MariaDB") { 10 } else { 8 };
        let advice = "dlock needs MariaDB 10.3 or MySQL 8, or later";
        unless(leading(value) >= oldest, Finding::danger("version", value, advice))
    }),
    ("innodb_flush_log_at_trx_commit", |value, _| {
        let advice =
            "set it to 1: grants of the last second before a crash may be missing, and be given again";
        let finding = Finding::danger("innodb_flush_log_at_trx_commit", value, advice);
        unless(matches!(value, "1" | "3"), finding)
    }),
    ("innodb_doublewrite", |value, _| {
        let advice = "set it to on, unless the file system never tears a page: a crash may damage the table of the locks";
        let is_off = value.eq_ignore_ascii_case("off") || value == "0";
        unless(!is_off, Finding::danger("innodb_doublewrite", value, advice))
    }),
    ("sync_binlog", |value, facts| {
        let is_logged = facts.get("log_bin").is_some_and(|log| is_on(log));
        let advice = "set it to 1: after a crash replicas may have other grants than this server";
        unless(!is_logged || value == "1", Finding::warning("sync_binlog", value, advice))
    }),
    ("autocommit", |value, _| {
        let advice = "dlock sets it on connections of its own; a pool of the program is refused until its connections have \
                      it on";
        unless(is_on(value), Finding::warning("autocommit", value, advice))
    }),
    ("read_only", |value, _| {
        let can_be_written = !is_on(value) && !value.to_ascii_uppercase().starts_with("NO_LOCK");
        let advice = "connect to the primary: nothing can be locked on a replica";
        unless(can_be_written, Finding::warning("read_only", value, advice))
    }),
    ("wait_timeout", |value, _| {
        let advice =
            "give it a minute or more: connections that idle are ended, and a renewal has to open one first";
        unless(leading(value) >= 60, Finding::warning("wait_timeout", format!("{value} s"), advice))
    }),
    ("wsrep_on", |value, _| match is_on(value) {
        false => Finding::fine("wsrep_on", value),
        true => Finding::danger(
            "wsrep_on",
            "this is a node of a Galera cluster",
            "have all processes use one node at a time: named locks (mode=session) are known to one node only, and rows \
             are locked on one",
        ),
    }),
];
