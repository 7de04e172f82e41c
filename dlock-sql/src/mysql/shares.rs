//! Locks that several hold at a time, in MariaDB and MySQL.
//!
//! Each step is one message of several statements, a transaction, which the server carries out to its end: the first
//! statement locks the row of the key, and the next sees what stands there since then. Its results are kept in
//! variables of the session, whose names begin with `dlock`, for the statements that follow.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use dlock_core::backend::{Mode, Occupancy, PERMITS_REMEMBERED, PREFERENCE, PREFERENCE_ALIVE};
use dlock_core::{Holder, Key, Token};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::answers::{bytes, holder};
use super::failure::{UNLOGGED, number};
use super::line::{Line, range};
use super::server::MysqlServer;
use super::statements::{
    ADOPTED, BUSY, CONFLICT, GRANTED, KEPT_OUT, LONGEST_LINE, NOW, SPARE, is_barred, is_wanted,
    kept_for_line, mark_of, permits, text, turn, unmarked,
};
use super::values::literal;
use crate::protocol::{Lease, SqlResult};
use crate::rows::ShareTable;
use crate::rows::line::{LineSeen, Places};
use crate::rows::shares::{Beside, Resized, ShareAsk, ShareTaken, free_in, kept};
use crate::server::Server;
use crate::stored::{self, SEVERAL, SHARED};
use crate::text::micros;
use crate::way::{ELSEWHERE, HELD_ELSEWHERE};

/// Returns the condition for the rows of all shares at this moment, as `held`.
pub(super) fn shares(beside: &Beside) -> String {
    let (from, to) = (literal(&beside.preferred), literal(&beside.beyond));
    format!("held.`key` > {from} AND held.`key` < {to} AND held.expires > {NOW}")
}

/// The setting that allows deleting rows by names that were looked up, which `sql_safe_updates` refuses. A connection
/// of a pool keeps the value that it had.
const UNSAFE: &str = "SET @dlock_safe = @@SESSION.sql_safe_updates, SESSION sql_safe_updates = 0";
const AS_BEFORE: &str = "SET SESSION sql_safe_updates = @dlock_safe";

impl MysqlServer {
    /// Carries out a step, and returns the rows of all its questions.
    pub(super) async fn in_one_message(
        &self,
        on: &mut MySqlConnection,
        statements: &[String],
    ) -> SqlResult<Vec<MySqlRow>> {
        loop {
            // Only the rows are locked, and not the places of some that are missing. Rows in a log of statements need
            // the other isolation.
            let is_logged = self.is_logged_by_statement();
            let isolation = if is_logged { "REPEATABLE READ" } else { "READ COMMITTED" };
            let message = format!(
                "{UNSAFE}; SET TRANSACTION ISOLATION LEVEL {isolation}; START TRANSACTION; {};
                COMMIT AND NO CHAIN NO RELEASE; {AS_BEFORE}",
                statements.join("; ")
            );
            match sqlx::raw_sql(AssertSqlSafe(message)).fetch_all(&mut *on).await {
                Err(error @ sqlx::Error::Database(_)) => {
                    // Whatever `completion_type` says: a connection of a pool must not go back with a transaction open.
                    let undo = format!("ROLLBACK AND NO CHAIN NO RELEASE; {AS_BEFORE}");
                    sqlx::raw_sql(AssertSqlSafe(undo)).execute(&mut *on).await?;
                    if is_logged || number(&error) != Some(UNLOGGED) {
                        return Err(error);
                    }
                    // Refused for its isolation, the step has changed nothing: once more in the other one, which all
                    // that follow take at once.
                    self.note_log_of_statements();
                }
                rows => return rows,
            }
        }
    }

    async fn release_several(&self, on: &mut MySqlConnection, key: &Key, token: &Token) -> SqlResult<bool> {
        let (table, beside, line) = (self.quoted(), Beside::of(key), range(&Places::of(key)));
        let (key, own, token) = (literal(bytes(key)), literal(&beside.own(token)), literal(token.as_bytes()));
        let look = format!(
            "SELECT {NOW}, COALESCE(main.token = {SHARED} AND main.expires > {NOW}, FALSE), COALESCE({permits}, 0),
                own.`key` IS NOT NULL, beside.last, COALESCE(main.token = {token} AND main.expires > {NOW}, FALSE),
                HEX((SELECT held.token FROM {table} AS held WHERE {line} AND held.expires > {NOW} ORDER BY held.`key` LIMIT 1))
            INTO @dlock_now, @dlock_several, @dlock_permits, @dlock_own, @dlock_last, @dlock_alone, @dlock_next
            FROM (SELECT 1) AS one LEFT JOIN {table} AS main ON main.`key` = {key}
            LEFT JOIN {table} AS own ON own.`key` = {own} AND own.token = {token} AND own.expires > {NOW}
            LEFT JOIN (SELECT MAX(held.expires) AS last FROM {table} AS held
                WHERE {shares} AND held.`key` <> {own}) AS beside ON TRUE",
            SHARED = literal(&SHARED),
            permits = permits("main"),
            shares = shares(&beside),
        );
        // Looked at after the lock and before the deletions: `@dlock_last` and `@dlock_next` are those that are left.
        let statements = [
            self.lock(&key),
            look,
            format!("DELETE FROM {table} WHERE `key` = {own}"),
            format!("DELETE FROM {table} WHERE `key` = {} AND token = {token}", literal(&beside.preferred)),
            format!(
                "UPDATE {table} SET
                    expires = IF({turns}, @dlock_now + {kept_for_line},
                        IF(@dlock_several, IF(@dlock_permits > 0, GREATEST(@dlock_now + {}, COALESCE(@dlock_last, 0)),
                        COALESCE(@dlock_last, @dlock_now)), IF({wanted}, LEAST(expires, @dlock_now + {kept_for_line}), expires))),
                    token = IF(@dlock_several AND (@dlock_permits > 0 OR @dlock_last IS NOT NULL), token,
                        IF({turns} OR NOT @dlock_several AND {wanted}, {turn}, NULL)),
                    holder = IF({turns}, {mark_of_next}, holder)
                WHERE `key` = {key} AND (token = {token} OR @dlock_several AND @dlock_own)",
                micros(PERMITS_REMEMBERED),
                // The last reader leaves it to those in line.
                turns = "(@dlock_several AND @dlock_permits = 0 AND @dlock_last IS NULL AND @dlock_next IS NOT NULL)",
                mark_of_next = mark_of("UNHEX(@dlock_next)"),
                wanted = is_wanted(""),
                kept_for_line = kept_for_line(),
                turn = turn(),
            ),
            "SELECT CAST(@dlock_alone OR @dlock_several AND @dlock_own AS SIGNED)".to_owned(),
        ];
        let rows = self.in_one_message(on, &statements).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get::<i64, _>(0)? == 1)
    }

    /// Locks the row of a key, if there is one.
    pub(super) fn lock(&self, key: &str) -> String {
        format!("SELECT COUNT(*) INTO @dlock_count FROM {} WHERE `key` = {key} FOR UPDATE", self.quoted())
    }
}

impl ShareTable for MysqlServer {
    async fn take_share(&self, on: &mut MySqlConnection, ask: &ShareAsk) -> SqlResult<ShareTaken> {
        let (table, beside) = (self.quoted(), Beside::of(&ask.key));
        let (key, token) = (literal(bytes(&ask.key)), literal(ask.token.as_bytes()));
        let (preferred, own) = (literal(&beside.preferred), literal(&beside.own(&ask.token)));
        let is_alone = ask.mode == Mode::Exclusive;
        let (of, take, fences) = (ask.of(), ask.mode.taken(), ask.fences);
        let (lease, preference) = (micros(ask.lease), micros(PREFERENCE));
        let shared = literal(&SHARED);
        // Makes the row of a key that has none, from the highest fence of what was pruned, and locks it in any case.
        let lock = format!(
            "INSERT INTO {table} (`key`, token, fence, expires, holder)
            SELECT {key}, NULL, COALESCE(MAX(mark.fence), 0), 0, X'' FROM {table} AS mark WHERE mark.`key` = X''
            ON DUPLICATE KEY UPDATE {table}.fence = {table}.fence"
        );
        let has_no_room = match ask.mode {
            Mode::Exclusive => "taken > 0".to_owned(),
            Mode::Permits { .. } => format!("taken + {take} > {of}"),
            _ => "FALSE".to_owned(),
        };
        let (is_semaphore, is_alone_too) = (of > 0, if is_alone { "is_mine" } else { "FALSE" });
        let Line { look, is_taken, is_not_its_turn, mark, changes, place } = Line::of_attempt(&table, ask);
        // The line alone says whose turn it is; a take-over asks for no turn.
        let has_no_turn = if ask.stand.is_some() || ask.takes_over.is_some() { "FALSE" } else { "TRUE" };
        let takes_over = if ask.takes_over.is_some() { "TRUE" } else { "FALSE" };
        // By now, what is taken over is the claim's own, or there is nothing to take. A preference ends with a grant to
        // one alone, also by the statement that knows nothing of it: the line about the last grant shows that.
        let (free, other_number, is_shown, has_it) = match ask.takes_over {
            Some(_) => (BUSY, format!("(permits > 0) <> ({of} > 0)"), "AND @dlock_is_held", "FALSE"),
            None => (GRANTED, format!("permits <> {of}"), "", "own IS NOT NULL"),
        };
        // Judged once, into a variable; all changes that follow depend on that alone, and not on rows that the ones
        // before have changed.
        let judge = format!(
            "SELECT now, several, permits, since, last, CASE
                    WHEN {is_taken} AND NOT several THEN IF({is_semaphore}, {CONFLICT}, IF({is_alone_too}, {ADOPTED}, {BUSY}))
                    WHEN {has_it} THEN {ADOPTED}
                    WHEN several AND {other_number} AND (permits > 0 OR taken > 0) THEN {CONFLICT}
                    WHEN own IS NOT NULL THEN {ADOPTED}
                    WHEN {has_no_room} {is_not_its_turn} THEN {BUSY}
                    WHEN {has_no_turn} AND NOT prefers AND keeps_out > now THEN {KEPT_OUT}
                    ELSE {free} END AS came_to,
                CASE WHEN own IS NOT NULL THEN own WHEN {is_taken} AND NOT several THEN fence
                    ELSE GREATEST(fence + {fences}, now + {fences} - 1) END AS fence_of_it,
                IF(since IS NULL, TRUE, prefers), CASE WHEN several AND ({has_no_room} OR {takes_over}) THEN first - now
                    WHEN {has_no_turn} AND NOT prefers AND keeps_out > now AND (several OR NOT {is_taken}) THEN keeps_out - now
                    WHEN several THEN keeps_out - now ELSE expires - now END, is_held, is_turn
            INTO @dlock_now, @dlock_several, @dlock_permits, @dlock_since, @dlock_last, @dlock_came_to, @dlock_fence,
                @dlock_may_prefer, @dlock_left, @dlock_is_held, @dlock_is_turn
            FROM (SELECT {NOW} AS now, main.fence, main.expires, COALESCE(main.token = {token}, FALSE) AS is_mine,
                    main.token IS NOT NULL AND main.token <> {turn} AND main.expires > {NOW} AS is_held,
                    COALESCE({barred}, FALSE) AS is_barred, COALESCE(main.token = {turn}, FALSE) AS is_turn,
                    COALESCE(main.token = {shared}, FALSE) AND main.expires > {NOW} AS several, {permits} AS permits,
                    IF(main.token = {shared} AND main.expires > {NOW}, own.fence, NULL) AS own,
                    IF(main.token = {shared} AND main.expires > {NOW}, COALESCE(beside.taken, 0), 0) AS taken,
                    beside.first, beside.last, preferred.fence AS since, COALESCE(preferred.token = {token}, FALSE) AS prefers,
                    COALESCE(LEAST(preferred.expires, preferred.fence + {preference}), 0) AS keeps_out
                FROM {table} AS main
                LEFT JOIN {table} AS own ON own.`key` = {own} AND own.token = {token} AND own.expires > {NOW}
                LEFT JOIN {table} AS preferred ON preferred.`key` = {preferred} AND preferred.token IS NOT NULL
                    AND preferred.expires > {NOW} AND preferred.fence + 2 * {preference} > {NOW}
                    AND main.holder LIKE '% {SEVERAL}=%'
                LEFT JOIN (SELECT CAST(SUM(CAST(SUBSTRING_INDEX(held.holder, ' ', 1) AS SIGNED)) AS SIGNED) AS taken,
                        MIN(held.expires) AS first, MAX(IF(held.`key` = {own}, NULL, held.expires)) AS last
                    FROM {table} AS held WHERE {shares}) AS beside ON TRUE
                WHERE main.`key` = {key}) AS seen",
            permits = permits("main"),
            shares = shares(&beside),
            turn = turn(),
            barred = is_barred("main."),
        );
        let line = text(&ask.line);
        let (new_token, expires, line) = if is_alone {
            (
                &token,
                format!("@dlock_now + {lease}"),
                if mark.is_empty() { line } else { format!("CONCAT({line}{mark})") },
            )
        } else {
            let kept = micros(kept(ask.mode, ask.lease));
            let until = format!("GREATEST(@dlock_now + {kept}, COALESCE(@dlock_last, 0))");
            (&shared, until, format!("CONCAT({line}, ' {SEVERAL}={of}')"))
        };
        let is_ours = format!("@dlock_came_to <= {ADOPTED}");
        let change = format!(
            "UPDATE {table} SET token = {new_token}, fence = IF(@dlock_came_to = {ADOPTED}, fence, @dlock_fence),
                expires = {expires}, holder = IF(@dlock_came_to = {ADOPTED}, holder, {line})
            WHERE `key` = {key} AND {is_ours}"
        );
        let share = format!(
            "INSERT INTO {table} (`key`, token, fence, expires, holder)
            SELECT {own}, {token}, @dlock_fence, @dlock_now + {lease}, {} FROM DUAL WHERE {is_ours}
            ON DUPLICATE KEY UPDATE token = VALUES(token), fence = VALUES(fence), expires = VALUES(expires),
                holder = VALUES(holder)",
            text(&ask.share)
        );
        // The rows that are looked for are not locked by that.
        let clear = format!(
            "DELETE held FROM {table} AS held JOIN (SELECT old.`key` AS name FROM {table} AS old
                WHERE old.`key` > {preferred} AND old.`key` < {} AND old.`key` <> {own}
                    AND @dlock_came_to = {GRANTED} AND (NOT @dlock_several OR old.expires <= @dlock_now)
                LIMIT 1000) AS old ON held.`key` = old.name",
            literal(&beside.beyond)
        );
        let prefer_no_more =
            format!("DELETE FROM {table} WHERE `key` = {preferred} AND token = {token} AND {is_ours}");
        let prefer = format!(
            "INSERT INTO {table} (`key`, token, fence, expires, holder)
            SELECT {preferred}, {token}, COALESCE(@dlock_since, @dlock_now), @dlock_now + {}, X'' FROM DUAL
            WHERE @dlock_came_to = {BUSY} AND @dlock_several AND @dlock_may_prefer
            ON DUPLICATE KEY UPDATE token = VALUES(token), fence = VALUES(fence), expires = VALUES(expires)",
            micros(PREFERENCE_ALIVE)
        );
        let answer = format!(
            "SELECT CAST(@dlock_came_to AS SIGNED), CAST(@dlock_fence AS SIGNED), CAST(@dlock_permits AS SIGNED),
                CAST(@dlock_several AS SIGNED), CAST(@dlock_may_prefer AS SIGNED), CAST(@dlock_left AS SIGNED),
                found.fence, CAST(found.expires - @dlock_now AS SIGNED), found.holder, {place}
            FROM (SELECT 1) AS one LEFT JOIN (SELECT held.fence, held.expires, held.holder FROM {table} AS held
                WHERE @dlock_came_to > {ADOPTED} AND (@dlock_several AND {} OR NOT @dlock_several AND held.`key` = {key} AND NOT @dlock_is_turn {is_shown})
                ORDER BY held.expires LIMIT 1) AS found ON TRUE",
            shares(&beside)
        );
        // The result of an earlier step of this connection is no answer to this one.
        // In this order: the row is locked, a share that was left is moved, the line is read, and only then is it
        // judged.
        let mut statements = vec!["SET @dlock_came_to = NULL".to_owned(), lock];
        statements.extend(ask.takes_over.iter().flat_map(|left| self.move_share(ask, left)));
        statements.extend(look);
        statements.extend([judge, change]);
        // Each statement takes time while the row is locked: those that this attempt cannot need are left out.
        if !is_alone {
            statements.push(share);
        }
        statements.extend([clear, prefer_no_more]);
        if ask.prefers {
            statements.push(prefer);
        }
        // A grant needs no look at the rest; of the other verdicts the row of another way comes first, since it looks
        // like a lock that is held.
        statements.extend(changes);
        statements.push(answer);
        let rows = self.in_one_message(on, &statements).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        let permits = u32::try_from(row.try_get::<i64, _>(2)?).unwrap_or_default();
        let (came_to, several): (i64, bool) = (row.try_get(0)?, row.try_get::<i64, _>(3)? == 1);
        let line: Option<&[u8]> = row.try_get(8)?;
        Ok(match came_to {
            GRANTED | ADOPTED => ShareTaken::Granted(stored::fence(row.try_get(1)?)),
            _ if line.is_some_and(|line| line.starts_with(HELD_ELSEWHERE.as_bytes())) => {
                ShareTaken::Elsewhere
            }
            CONFLICT if several => ShareTaken::Conflict(stored::several(permits)),
            CONFLICT => ShareTaken::Conflict(Mode::Exclusive),
            _ => {
                // Of several holders the one whose share ends first, as that is when there may be room.
                let found = match row.try_get::<Option<i64>, _>(6)? {
                    None => None,
                    Some(_) if several => Some(share_of(row, 6, permits)?),
                    Some(_) => Some(holder(row, 6)?),
                };
                ShareTaken::Busy {
                    holder: found.map(Box::new),
                    free_in: free_in(row.try_get(5)?),
                    prefers: came_to == BUSY && several && ask.prefers && row.try_get::<i64, _>(4)? == 1,
                    place: row.try_get::<Option<i64>, _>(9)?.zip(row.try_get(10)?),
                }
            }
        })
    }

    async fn release_share(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        fair: bool,
    ) -> SqlResult<bool> {
        if fair { self.leave_line(on, key, token).await } else { self.release_several(on, key, token).await }
    }

    async fn look_in_line(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> SqlResult<Option<LineSeen>> {
        self.see_line(on, key, token, place).await
    }

    async fn renew_shares(
        &self,
        on: &mut MySqlConnection,
        leases: &[Lease],
    ) -> SqlResult<Option<HashSet<usize>>> {
        let (table, shared) = (self.quoted(), literal(&SHARED));
        let mains: Vec<_> = leases.iter().map(|lease| literal(bytes(&lease.key))).collect();
        // In the order of the index, so that renewals of different shares of one key do not wait for each other in a
        // circle.
        let mut statements = vec![format!(
            "SELECT COUNT(*) INTO @dlock_count FROM {table} FORCE INDEX (PRIMARY)
            WHERE `key` IN ({}) AND token = {shared} FOR UPDATE",
            mains.join(", ")
        )];
        // One statement for each pair of lengths, which are written into it.
        let mut by_length: HashMap<(Duration, Duration), Vec<usize>> = HashMap::new();
        for (place, lease) in leases.iter().enumerate() {
            by_length.entry((lease.length, kept(lease.mode, lease.length))).or_default().push(place);
        }
        let mut found = Vec::new();
        for ((length, kept), places) in by_length {
            let own = |place: &usize| literal(&Beside::of(&leases[*place].key).own(&leases[*place].token));
            let owns = places.iter().map(own).collect::<Vec<_>>().join(", ");
            let mains = places.iter().map(|place| &*mains[*place]).collect::<Vec<_>>().join(", ");
            let held = format!(
                "{table} AS held FORCE INDEX (PRIMARY) STRAIGHT_JOIN {table} AS main FORCE INDEX (PRIMARY)
                    ON main.`key` = ELT(FIELD(held.`key`, {owns}), {mains})"
            );
            let is_ours = format!(
                "held.`key` IN ({owns}) AND held.expires > {NOW} AND main.token = {shared} AND main.expires > {NOW}"
            );
            statements.push(format!(
                "UPDATE {held} SET held.expires = {NOW} + {}, main.expires = GREATEST(main.expires, {NOW} + {})
                WHERE {is_ours}",
                micros(length),
                micros(kept)
            ));
            found.push(format!("SELECT held.token FROM {held} WHERE {is_ours}"));
        }
        // The questions come after all changes, in the same transaction: they are answered as of the changes.
        statements.extend(found);
        let rows = self.in_one_message(on, &statements).await?;
        let ours = rows.iter().map(|row| row.try_get::<Vec<u8>, _>(0)).collect::<SqlResult<HashSet<_>>>()?;
        let places: HashSet<_> = leases
            .iter()
            .enumerate()
            .filter(|(_, lease)| ours.contains(lease.token.as_bytes().as_slice()))
            .map(|(place, _)| place)
            .collect();
        Ok((places.len() < leases.len()).then_some(places))
    }

    async fn downgrade(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> SqlResult<bool> {
        let (table, beside, lease) = (self.quoted(), Beside::of(key), micros(lease));
        let (own, preferred) = (literal(&beside.own(token)), literal(&beside.preferred));
        let (key, token, shared) = (literal(bytes(key)), literal(token.as_bytes()), literal(&SHARED));
        let look = format!(
            "SELECT {NOW}, COALESCE(main.token = {token} AND main.expires > {NOW}, FALSE),
                COALESCE(main.token = {shared} AND main.expires > {NOW}, FALSE) AND own.`key` IS NOT NULL
            INTO @dlock_now, @dlock_alone, @dlock_own
            FROM (SELECT 1) AS one LEFT JOIN {table} AS main ON main.`key` = {key}
            LEFT JOIN {table} AS own ON own.`key` = {own} AND own.token = {token} AND own.expires > {NOW}"
        );
        let line = unmarked("");
        // If the lock was held alone, all rows beside it are of earlier holders: they go before the share is made.
        let statements = [
            self.lock(&key),
            look,
            format!(
                "DELETE held FROM {table} AS held JOIN (SELECT old.`key` AS name FROM {table} AS old
                    WHERE old.`key` >= {preferred} AND old.`key` < {} AND old.`key` <> {own} AND @dlock_alone
                    LIMIT 1000) AS old ON held.`key` = old.name",
                literal(&beside.beyond)
            ),
            format!(
                "INSERT INTO {table} (`key`, token, fence, expires, holder)
                SELECT {own}, {token}, seen.fence, @dlock_now + {lease}, seen.line
                FROM (SELECT fence, LEFT(CONCAT('1 ', {line}), {LONGEST_LINE}) AS line FROM {table}
                    WHERE `key` = {key} AND @dlock_alone) AS seen
                ON DUPLICATE KEY UPDATE token = VALUES(token), fence = VALUES(fence), expires = VALUES(expires),
                    holder = VALUES(holder)"
            ),
            format!("UPDATE {table} SET expires = @dlock_now + {lease} WHERE `key` = {own} AND @dlock_own"),
            format!(
                "UPDATE {table} SET token = {shared},
                    expires = IF(@dlock_alone, @dlock_now + {lease}, GREATEST(expires, @dlock_now + {lease})),
                    holder = IF(@dlock_alone, CONCAT(LEFT({line}, {LONGEST_LINE} - {SPARE}), ' {SEVERAL}=0'), holder)
                WHERE `key` = {key} AND (@dlock_alone OR @dlock_own)"
            ),
            "SELECT CAST(@dlock_alone OR @dlock_own AS SIGNED)".to_owned(),
        ];
        let rows = self.in_one_message(on, &statements).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get::<i64, _>(0)? == 1)
    }

    async fn leave_share(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<bool> {
        self.leave_several(on, key, token, taken_for).await
    }

    async fn occupancy(&self, on: &mut MySqlConnection, key: &Key) -> SqlResult<Occupancy> {
        let (table, shared) = (self.quoted(), literal(&SHARED));
        // One statement, so that all is of one moment.
        let all = format!(
            "SELECT CAST(main.token = {shared} AS SIGNED), CAST({permits} AS SIGNED), COALESCE(held.fence, main.fence),
                CAST(COALESCE(held.expires, main.expires) - {NOW} AS SIGNED), COALESCE(held.holder, main.holder),
                CAST(main.token <> {shared} OR held.fence IS NOT NULL AS SIGNED)
            FROM {table} AS main LEFT JOIN {table} AS held ON main.token = {shared} AND {shares}
            WHERE main.`key` = {key} AND main.token NOT IN ({turn}, {elsewhere}) AND main.expires > {NOW} ORDER BY held.expires",
            permits = permits("main"),
            shares = shares(&Beside::of(key)),
            key = literal(bytes(key)),
            turn = turn(),
            elsewhere = literal(&ELSEWHERE),
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(all)).fetch_all(on).await?;
        let (mut permits, mut holders) = (0, Vec::new());
        for row in &rows {
            let several = row.try_get::<i64, _>(0)? == 1;
            if several {
                permits = u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default();
            }
            if row.try_get::<i64, _>(5)? == 1 {
                holders.push(if several { share_of(row, 2, permits)? } else { holder(row, 2)? });
            }
        }
        Ok(Occupancy::new(Some(permits).filter(|permits| *permits > 0), holders))
    }

    async fn resize(&self, on: &mut MySqlConnection, key: &Key, permits_wanted: u32) -> SqlResult<Resized> {
        let (table, shared, beside) = (self.quoted(), literal(&SHARED), Beside::of(key));
        let key = literal(bytes(key));
        let look = format!(
            "SELECT COALESCE(IF(main.token = {shared} AND main.expires > {NOW}, {permits}, 0), 0),
                CASE WHEN main.token = {elsewhere} THEN 2
                    ELSE COALESCE(main.token IS NOT NULL AND main.expires > {NOW} AND main.token <> {shared}, FALSE)
                        OR beside.taken > 0 END
            INTO @dlock_permits, @dlock_is_lock
            FROM (SELECT 1) AS one LEFT JOIN {table} AS main ON main.`key` = {key}
            LEFT JOIN (SELECT COUNT(*) AS taken FROM {table} AS held WHERE {shares}) AS beside ON TRUE",
            elsewhere = literal(&ELSEWHERE),
            permits = permits("main"),
            shares = shares(&beside),
        );
        let statements = [
            self.lock(&key),
            look,
            format!(
                "UPDATE {table} SET holder = CONCAT(SUBSTRING_INDEX(holder, ' {SEVERAL}=', 1), ' {SEVERAL}={permits_wanted}')
                WHERE `key` = {key} AND @dlock_permits > 0"
            ),
            "SELECT CAST(@dlock_permits AS SIGNED), CAST(@dlock_is_lock AS SIGNED)".to_owned(),
        ];
        let rows = self.in_one_message(on, &statements).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(match u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default() {
            0 => match row.try_get(1)? {
                2_i64 => Resized::Elsewhere,
                1 => Resized::IsLock,
                _ => Resized::Missing,
            },
            before => Resized::Was(before),
        })
    }
}

/// Reads one of several holders, by fence, remaining time and description from this column on.
fn share_of(row: &MySqlRow, from: usize, permits: u32) -> SqlResult<Holder> {
    let left = Duration::from_micros(row.try_get::<i64, _>(from + 1)?.max(0).unsigned_abs());
    let line: &[u8] = row.try_get(from + 2)?;
    let of = Some(permits).filter(|of| *of > 0);
    Ok(stored::share(&String::from_utf8_lossy(line), row.try_get(from)?, left, of))
}
