//! The statements by which sessions take names and rows, and count grants.

use sqlx::SqlStr;

use crate::postgres::values::Value;
use crate::text::sql;
use crate::way::{ELSEWHERE, HELD_ELSEWHERE, Way};

/// The server's time in microseconds, where fences start.
pub(in crate::postgres) const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
/// The advisory locks of this database: `parts` numbers are 1 of locks, and 2 of the turns of those that wait.
pub(in crate::postgres) const ADVISORY: &str =
    "SELECT pid::bigint AS session, (classid::bigint << 32) | objid::bigint AS number, mode = 'ShareLock' AS reads,
        objsubid AS parts FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid IN (1, 2)
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
/// The session of the connection.
const SESSION: &str = "pg_backend_pid()::bigint";
/// A setting of this transaction: no lock outlives a crash of the server, after which fences start at its clock.
const HASTE: &str = "set_config('synchronous_commit', 'off', true)";

/// Prepares the statements that lock a row, on the connection that does it again and again.
pub(in crate::postgres) fn lock_row(table: &str) -> SqlStr {
    let ours = format!("(SELECT $2 AS name, {SESSION} AS session, $3 AS whose FROM locked) AS ours");
    sql(format!(
        "PREPARE dlock_count (bytea, bytea, text) AS
            WITH locked AS MATERIALIZED (SELECT FROM {table} WHERE key = $1 FOR UPDATE SKIP LOCKED),
            counted AS ({})
            SELECT fence, 'counted' AS step FROM counted;
        PREPARE dlock_lock (bytea) AS SELECT 'locked' AS step FROM {table} WHERE key = $1 FOR UPDATE SKIP LOCKED;
        PREPARE dlock_look (bytea, bytea) AS
            SELECT fence, holder, {SESSION}, EXISTS (SELECT FROM {table} WHERE key = $1), token = int8send({SESSION}),
                'seen' AS step
            FROM (SELECT) AS one LEFT JOIN {table} ON key = $2",
        counting(table, &ours, Way::Row, TOKEN, "")
    ))
}

/// Returns the end in the row with the fence of a key that is locked in this way.
pub(in crate::postgres) fn state(way: Way) -> String {
    match way.state() {
        0 => "'-infinity'::timestamptz".to_owned(),
        seconds => format!("'1970-01-01 00:00:0{seconds}+00'::timestamptz"),
    }
}

/// The token of the row with the fence of a key that one session has alone.
const TOKEN: &str = "int8send(session)";

/// Counts a grant where both rows say that the key is locked in this way: the row, the session and the holder are
/// `name`, `session` and `whose`.
fn counting(table: &str, from: &str, way: Way, token: &str, only: &str) -> String {
    // One statement over both rows: a move of the key comes before it, and it counts nothing, or after it, and sees the
    // session's lock.
    format!(
        "UPDATE {table} AS held SET fence = greatest(held.fence + 1, {NOW}), token = {token}, holder = whose
        FROM {from} WHERE held.key = name AND held.expires = {}
            AND (SELECT main.token FROM {table} AS main WHERE main.key = substring(name FROM 2)) = {}{only}
        RETURNING held.fence, held.key, {HASTE}",
        state(way),
        Value::Bytes(&ELSEWHERE).literal()
    )
}

/// Counts grants as [`counting`] does, as a list of tables, of which `counted` has the fences, and the names of their
/// rows as `key`. Keys that no row knows are locked in this way from now on.
pub(in crate::postgres) fn counting_all(table: &str, from: &str, way: Way, reads: bool) -> String {
    let token = if reads { "NULL::bytea" } else { TOKEN };
    // Several readers count in one row: all lock these rows in one order.
    let (locked, only) = if reads {
        let lock = format!(
            "locked AS MATERIALIZED (
                SELECT held.key FROM {table} AS held JOIN {from} ON held.key = name ORDER BY held.key FOR UPDATE OF held
            ), "
        );
        (lock, " AND held.key IN (SELECT key FROM locked)")
    } else {
        (String::new(), "")
    };
    format!(
        "{}, {locked}old AS ({}), counted AS (SELECT fence, key FROM new UNION ALL SELECT fence, key FROM old)",
        first_of(table, from, way, token, "whose"),
        counting(table, from, way, token, only),
    )
}

/// Makes the rows of keys that have none, locked in this way: the rows with the fences are `new`, and their names
/// `name`.
pub(in crate::postgres) fn first_of(table: &str, from: &str, way: Way, token: &str, whose: &str) -> String {
    // Only the session whose insert made the row of the key makes the row with the fence. If that row is there already,
    // as of leases, nothing is counted.
    format!(
        "elsewhere AS (
            INSERT INTO {table} (key, token, fence, expires, holder)
            SELECT substring(name FROM 2), {}, 0, 'infinity', '{HELD_ELSEWHERE}' FROM {from}
            WHERE NOT EXISTS (SELECT FROM {table} WHERE key = name) ORDER BY name ON CONFLICT DO NOTHING RETURNING key
        ), new AS (
            INSERT INTO {table} (key, token, fence, expires, holder)
            SELECT name, {token}, greatest({NOW}, (SELECT fence + 1 FROM {table} WHERE key = '')), {}, {whose}
            FROM {from} JOIN elsewhere ON elsewhere.key = substring(name FROM 2)
            ON CONFLICT DO NOTHING RETURNING fence, key, {HASTE}
        )",
        Value::Bytes(&ELSEWHERE).literal(),
        state(way)
    )
}

/// The names that the session got, of those that were asked for.
const GOT: &str = "(SELECT * FROM asked WHERE got) AS ours";
/// The names that the session got, and did not count: the key is not locked by sessions.
const UNCOUNTED: &str = "UNION ALL SELECT NULL, NULL, session, number, place FROM asked
    WHERE got AND NOT EXISTS (SELECT FROM counted WHERE key = name)";

/// number, row of the fence, holder: the fence, or that and the holder of another session, or neither where the key is
/// not locked by sessions; the session; the number, by which the answer is that to this question.
pub(in crate::postgres) fn take_name(table: &str) -> SqlStr {
    // Each table is looked up by values, and only where the session got the lock.
    let ours = format!(
        "(SELECT {SESSION} AS session, $2::bytea AS name, $3::text AS whose WHERE (SELECT got FROM asked)) AS ours"
    );
    // `asked` is carried out once, and before any table is looked at: the names are had first, and counted then.
    sql(format!(
        "WITH asked AS MATERIALIZED (
            SELECT pg_try_advisory_lock($1) AS got
        ), {}
        SELECT fence, NULL::text, {SESSION}, $1 FROM counted
        UNION ALL
        SELECT fence, coalesce(holder, ''), {SESSION}, $1 FROM asked LEFT JOIN {table} ON key = $2 WHERE NOT got
        UNION ALL
        SELECT NULL, NULL, {SESSION}, $1 FROM asked WHERE got AND NOT EXISTS (SELECT FROM counted)",
        counting_all(table, &ours, Way::Session, false)
    ))
}

/// Takes names as [`take_name`] does, of many, in their order.
pub(in crate::postgres) fn take_names(table: &str) -> SqlStr {
    sql(format!(
        "WITH asked AS MATERIALIZED (
            SELECT place, number, pg_try_advisory_lock(number) AS got, {SESSION} AS session, name, whose
            FROM unnest($1::bigint[], $2::bytea[], $3::text[]) WITH ORDINALITY
                AS listed (number, name, whose, place)
        ), {}
        SELECT fence, NULL::text, {SESSION}, number, place FROM counted JOIN asked ON key = name
        UNION ALL
        SELECT fence, coalesce(holder, ''), {SESSION}, number, place FROM asked LEFT JOIN {table} ON key = name WHERE NOT got
        {UNCOUNTED}
        ORDER BY place",
        counting_all(table, GOT, Way::Session, false)
    ))
}

/// Counts a grant to a reader, and writes it down in the row `own`. The right to delete that later is needed now.
pub(in crate::postgres) fn counting_reader(table: &str, from: &str, way: Way) -> String {
    format!(
        "{}, noted AS ({}), allowed AS (DELETE FROM {table} WHERE false)",
        counting_all(table, from, way, true),
        noting(
            table,
            &format!("SELECT own, session, counted.fence, whose FROM {from} JOIN counted ON key = name")
        )
    )
}

/// Writes a reader down: the row, the session, the fence and the holder.
fn noting(table: &str, from: &str) -> String {
    // Its lease has ended from the start, so that the row is never taken for one.
    format!(
        "INSERT INTO {table} (key, token, fence, expires, holder)
        SELECT own, int8send(session), fence, '-infinity', whose FROM ({from}) AS noted (own, session, fence, whose)
        ON CONFLICT (key) DO UPDATE SET token = excluded.token, fence = excluded.fence, holder = excluded.holder
        RETURNING 1"
    )
}

/// numbers, the two numbers of each turn, whether it is the session's own, whether the session has the number, rows of
/// the fences, rows of the readers, holders: as `take_names`.
pub(in crate::postgres) fn read_names(table: &str, counts: bool) -> SqlStr {
    // The turn before the name: with the name, the reader would already be in the way of the writer that has the turn.
    let asked = format!(
        "asked AS MATERIALIZED (
            SELECT place, number, {SESSION} AS session, name, own, whose, CASE
                WHEN NOT (ours OR pg_try_advisory_xact_lock_shared(turn, of)) THEN false
                ELSE beside OR pg_try_advisory_lock_shared(number) END AS got
            FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::boolean[], $5::boolean[], $6::bytea[], $7::bytea[],
                $8::text[]) WITH ORDINALITY AS listed (number, turn, of, ours, beside, name, own, whose, place)
        )"
    );
    // Without fences the name is all that there is to a grant: nothing is written.
    if !counts {
        return sql(format!(
            "WITH {asked} SELECT NULL::bigint, CASE WHEN NOT got THEN '' END, session, number FROM asked ORDER BY place"
        ));
    }
    sql(format!(
        "WITH {asked}, {}
        SELECT fence, NULL::text, session, number, place FROM counted JOIN asked ON key = name
        UNION ALL
        SELECT fence, coalesce(holder, ''), session, number, place FROM asked LEFT JOIN {table} ON key = name
        WHERE NOT got
        {UNCOUNTED}
        ORDER BY place",
        counting_reader(table, GOT, Way::Session)
    ))
}

/// number, row of the fence, row of the reader, fence, holder: the session. The right to delete rows later is needed
/// now. Only the session that has the lock alone asks for it to be read, and those that wait for the lock do not keep
/// it waiting.
pub(in crate::postgres) fn downgrading(table: &str, counts: bool) -> String {
    let noted = noting(table, &format!("VALUES ($3::bytea, {SESSION}, $4::bigint, $5::text)"));
    let moves = format!(
        "WITH noted AS ({noted}), moved AS (
            UPDATE {table} SET token = NULL WHERE key = $2::bytea AND token = int8send({SESSION}) RETURNING 1
        ), allowed AS (DELETE FROM {table} WHERE false)"
    );
    let (moves, after) = if counts {
        (&*moves, "FROM (SELECT count(*) FROM noted) AS one, (SELECT count(*) FROM moved) AS two")
    } else {
        ("", "")
    };
    format!(
        "{moves} SELECT {SESSION}, pg_advisory_lock_shared($1)::text, pg_advisory_unlock($1) AS freed {after}"
    )
}

/// Returns the holders of a lock, by `owners`, which are sessions and whether they read: the fence, the holder and the
/// session, for the row of the fence and for the prefix of the rows of the readers.
pub(in crate::postgres) fn owning(table: &str, owners: &str) -> String {
    format!(
        "SELECT held.fence, held.holder, session, reads FROM ({owners}) AS owners
        LEFT JOIN (
            SELECT * FROM {table} WHERE key = $1 OR key > $2 AND key < $2 || decode('{}', 'hex')
        ) AS held ON held.token = int8send(session) AND (held.key = $1) <> reads",
        "ff".repeat(17)
    )
}
