//! The migrations of this service.

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// How many there are.
pub(crate) const SIZE: usize = 4;

/// Returns the migrations, of which each works for about half a second.
///
/// sqlx's own lock is an advisory lock of the session, which a pooler such as PgBouncer gives to whoever comes next; it
/// is turned off, since the service has a lock of its own.
pub(crate) fn migrator(database: &str) -> Migrator {
    let slow = if database.starts_with("postgres") {
        "SELECT pg_sleep(0.5)"
    } else {
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT count(*) FROM n"
    };
    let changes = [
        ("rooms", "CREATE TABLE rooms (id INTEGER PRIMARY KEY, name TEXT NOT NULL)"),
        ("bookings", "CREATE TABLE bookings (room INTEGER NOT NULL, day INTEGER NOT NULL)"),
        ("guests", "ALTER TABLE bookings ADD COLUMN guest TEXT"),
        ("one booking a day", "CREATE UNIQUE INDEX one_a_day ON bookings (room, day)"),
    ];
    let migrations = (1..).zip(changes).map(|(version, (name, sql))| {
        let sql = sqlx::AssertSqlSafe(format!("{sql}; {slow};")).into_sql_str();
        Migration::new(version, name.into(), MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.set_locking(false);
    migrator
}
