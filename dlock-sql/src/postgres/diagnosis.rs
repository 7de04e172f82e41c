//! The settings of PostgreSQL that endanger locks.

use dlock_core::backend::Finding;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::findings::{Facts, Judge, is_on, leading, unless};
use crate::protocol::SqlResult;
use crate::table::TableName;

/// The questions about settings. Each user that may connect may read all of these.
const FACTS: &str =
    "SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'fsync', 'full_page_writes', \
     'synchronous_commit', 'synchronous_standby_names', 'autovacuum', 'statement_timeout', 'max_connections')
     UNION ALL SELECT 'connections', count(*)::text FROM pg_stat_activity WHERE datid IS NOT NULL
     UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication";

pub(super) async fn facts(on: &mut PgConnection, table: &TableName) -> SqlResult<Facts> {
    let of_table = format!(
        "{FACTS} UNION ALL SELECT 'table', relpersistence::text FROM pg_class WHERE oid = '{table}'::regclass
        UNION ALL SELECT 'triggers', count(*)::text FROM pg_trigger
            WHERE tgrelid = '{table}'::regclass AND NOT tgisinternal AND tgenabled <> 'D'
        UNION ALL SELECT 'rules', count(*)::text FROM pg_rewrite
            WHERE ev_class = '{table}'::regclass AND ev_enabled <> 'D'
        UNION ALL SELECT 'row_security', row_security_active('{table}'::regclass)::text
        UNION ALL SELECT 'notifies', has_function_privilege('pg_notify(text, text)', 'EXECUTE')::text",
        table = table.quoted('"').replace('\'', "''")
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(of_table)).fetch_all(on).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

pub(super) const SETTINGS: &[(&str, Judge)] = &[
    ("table", |value, _| {
        let advice =
            "ALTER TABLE ... SET LOGGED: a crash empties the table, and what is held could be granted again";
        let finding = Finding::danger("table", "it is UNLOGGED", advice);
        if value == "u" { finding } else { Finding::fine("table", "it outlives a crash") }
    }),
    ("triggers", |value, _| {
        let advice = "look at the triggers of the table of the locks: one that changes or leaves out what is written can have \
                      locks lost, or granted twice";
        unless(value == "0", Finding::warning("triggers", value, advice))
    }),
    ("rules", |value, _| {
        let advice = "drop the rules of the table of the locks (DROP RULE): one that replaces what is written has grants \
                      answered that are not stored";
        unless(value == "0", Finding::danger("rules", value, advice))
    }),
    ("row_security", |value, _| {
        let advice = "ALTER TABLE ... DISABLE ROW LEVEL SECURITY, or give the user of the locks BYPASSRLS: with a policy a \
                      user may not see the row of a lock that is held, or not write it";
        unless(value == "false", Finding::danger("row_security", value, advice))
    }),
    ("notifies", |value, _| {
        let advice = "GRANT EXECUTE ON FUNCTION pg_notify(text, text): releases are refused without it, and \
                      locks last until their leases have ended";
        unless(value == "true", Finding::danger("pg_notify", value, advice))
    }),
    ("server_version", |value, _| {
        unless(leading(value) >= 12, Finding::danger("version", value, "dlock needs PostgreSQL 12 or later"))
    }),
    ("fsync", |value, _| {
        let advice =
            "set it to on: after a crash of the machine grants may be missing, or the whole database damaged";
        unless(is_on(value), Finding::danger("fsync", value, advice))
    }),
    ("full_page_writes", |value, _| {
        let advice = "set it to on, unless the file system never tears a page: a crash may damage the table of the locks";
        unless(is_on(value), Finding::danger("full_page_writes", value, advice))
    }),
    ("synchronous_commit", |value, facts| match value {
        "off" => Finding::danger(
            "synchronous_commit",
            value,
            "set it to on for the user of the locks (ALTER ROLE ... SET): grants of the last moments before a crash may \
             be missing, and be given again",
        ),
        "local" if !standbys(facts).is_empty() => Finding::warning(
            "synchronous_commit",
            value,
            "set it to on: grants do not wait for the synchronous standbys, and a failover may forget them",
        ),
        value => Finding::fine("synchronous_commit", value),
    }),
    ("standbys", |value, facts| {
        let names = standbys(facts);
        let found = format!("{value} are connected, synchronous_standby_names is {names:?}");
        let waits =
            facts.get("synchronous_commit").is_some_and(|commit| commit != "off" && commit != "local");
        match (value == "0", names.is_empty()) {
            (true, false) if waits => Finding::danger(
                "standbys",
                found,
                "bring a synchronous standby back, or take it out of synchronous_standby_names: until then no commit \
                 ends, and nothing is granted, renewed or released",
            ),
            (false, true) => Finding::warning(
                "standbys",
                found,
                "a failover may forget the newest grants, which are then given again: name synchronous standbys",
            ),
            _ => Finding::fine("standbys", found),
        }
    }),
    ("autovacuum", |value, _| {
        let advice = "set it to on: each acquire and release leaves a dead row";
        unless(is_on(value), Finding::warning("autovacuum", value, advice))
    }),
    ("statement_timeout", |value, _| match leading(value) {
        0 => Finding::fine("statement_timeout", "none"),
        milliseconds => {
            let advice = "give the user of the locks 1 s or more: a renewal that waits for the disk would be cancelled";
            let found = format!("{value} ms");
            unless(milliseconds >= 1_000, Finding::warning("statement_timeout", found, advice))
        }
    }),
];

fn standbys(facts: &Facts) -> &str {
    facts.get("synchronous_standby_names").map_or("", String::as_str)
}
