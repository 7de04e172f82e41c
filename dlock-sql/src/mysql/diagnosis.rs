//! Settings of MariaDB and MySQL that endanger locks.

use dlock_core::backend::Finding;
use sqlx::{MySqlConnection, Row};

use crate::diagnosis::{Facts, Judge, is_on, leading};
use crate::server::SqlResult;

/// Whoever may connect may read all of these. A server has those that it knows.
const FACTS: [&str; 2] = [
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', \
     'autocommit', 'read_only', 'wait_timeout', 'max_connections', 'innodb_doublewrite', 'wsrep_on')",
    "SHOW GLOBAL STATUS WHERE Variable_name = 'Threads_connected'",
];

pub(super) async fn facts(on: &mut MySqlConnection) -> SqlResult<Facts> {
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
    Ok(facts)
}

pub(super) const SETTINGS: &[(&str, Judge)] = &[
    ("version", |value, _| match (value.contains("MariaDB"), leading(value)) {
        (true, 10..) | (false, 8..) => Finding::fine("version", value),
        _ => Finding::danger("version", value, "dlock needs MariaDB 10.3 or MySQL 8, or later"),
    }),
    ("innodb_flush_log_at_trx_commit", |value, _| match value {
        "1" | "3" => Finding::fine("innodb_flush_log_at_trx_commit", value),
        value => Finding::danger(
            "innodb_flush_log_at_trx_commit",
            value,
            "set it to 1: grants of the last second before a crash may be missing, and be given again",
        ),
    }),
    ("innodb_doublewrite", |value, _| match value.eq_ignore_ascii_case("off") || value == "0" {
        false => Finding::fine("innodb_doublewrite", value),
        true => Finding::danger(
            "innodb_doublewrite",
            value,
            "set it to on, unless the file system never tears a page: a crash may damage the table of the locks",
        ),
    }),
    ("sync_binlog", |value, facts| match facts.get("log_bin").is_some_and(|log| is_on(log)) {
        true if value != "1" => Finding::warning(
            "sync_binlog",
            value,
            "set it to 1: after a crash replicas may have other grants than this server",
        ),
        _ => Finding::fine("sync_binlog", value),
    }),
    ("autocommit", |value, _| match is_on(value) {
        true => Finding::fine("autocommit", value),
        false => Finding::warning(
            "autocommit",
            value,
            "dlock sets it on connections of its own; a pool of the program is refused until its connections have it on",
        ),
    }),
    ("read_only", |value, _| match is_on(value) || value.to_ascii_uppercase().starts_with("NO_LOCK") {
        false => Finding::fine("read_only", value),
        true => {
            Finding::warning("read_only", value, "connect to the primary: nothing can be locked on a replica")
        }
    }),
    ("wait_timeout", |value, _| match leading(value) {
        60.. => Finding::fine("wait_timeout", format!("{value} s")),
        _ => Finding::warning(
            "wait_timeout",
            format!("{value} s"),
            "give it a minute or more: connections that idle are ended, and a renewal has to open one first",
        ),
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
