//! Locks that several hold at a time, in PostgreSQL.
//!
//! Each step is one message of several statements, which the server carries out as one transaction, and takes back as a
//! whole where one of them fails: the first locks the row of the key, the last sees what stands there since then.
//! Values are written into it, so that nothing is prepared; or the last statement is known by its [name](super::named).

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::backend::{Mode, Occupancy, PERMITS_REMEMBERED, PREFERENCE, PREFERENCE_ALIVE};
use dlock_core::{Holder, Key, Token};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::answers::{bytes, holder};
use super::line::{Line, RANGE};
use super::named::Step;
use super::server::PostgresServer;
use super::statements::{
    asked, channel_of_first, is_wanted, kept_for_line, mark_of, standing, turn, unmarked, us,
};
use super::values::Value::{self, Bytes, Number, Text};
use crate::protocol::{Lease, SqlResult};
use crate::rows::ShareTable;
use crate::rows::line::{LineSeen, Places};
use crate::rows::shares::{Beside, Resized, ShareAsk, ShareTaken, free_in, kept};
use crate::server::Server;
use crate::stored::{self, SEVERAL, SHARED};
use crate::text::{hex, micros};
use crate::way::{ELSEWHERE, HELD_ELSEWHERE};

/// The isolation of each step. In another one the rows that are read would be of an earlier moment.
const ISOLATED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED";

fn later(from: &str, by: Duration) -> String {
    format!("{from} + {} * interval '1 microsecond'", micros(by))
}

impl PostgresServer {
    /// Carries out a step, and reads its last row.
    pub(super) async fn in_one_message(
        &self,
        on: &mut PgConnection,
        statements: &[String],
    ) -> SqlResult<Option<PgRow>> {
        let message = [&[ISOLATED.to_owned()], statements].concat().join("; ");
        // The last row is the answer of the last statement; those before it only lock and move rows.
        let mut rows = sqlx::raw_sql(AssertSqlSafe(message)).fetch_all(on).await?;
        Ok(rows.pop())
    }

    async fn release_several(&self, on: &mut PgConnection, key: &Key, token: &Token) -> SqlResult<bool> {
        let beside = Beside::of(key);
        let (own, channel, places) = (beside.own(token), self.channel(key), Places::of(key));
        let values = [
            ("main", Bytes(bytes(key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(&own)),
            ("beyond", Bytes(&beside.beyond)),
            ("token", Bytes(token.as_bytes())),
            ("low", Bytes(&places.low)),
            ("high", Bytes(&places.high)),
            ("channel", Text(&channel)),
        ];
        let table = self.quoted();
        // `gone` and `not_preferred` delete, `freed` decides on the row of the key by those that are left: all of them
        // see the rows as they were before, so that each leaves the claim's own rows out by itself.
        let release = format!(
            r"{standing}, others AS MATERIALIZED (
                SELECT max(expires) AS last FROM shares WHERE NOT is_own
            ), next_in_line AS MATERIALIZED (
                SELECT held.token AS next FROM asked, main, others, {table} AS held
                WHERE {line} AND held.expires > now AND several AND permits = 0 AND last IS NULL
                ORDER BY held.key LIMIT 1
            ), gone AS (
                DELETE FROM {table} AS held USING asked WHERE held.key = asked.own
            ), not_preferred AS (
                DELETE FROM {table} AS held USING asked
                WHERE held.key = asked.preferred AND held.token = asked.token RETURNING 1
            ), freed AS (
                UPDATE {table} AS held SET
                    token = CASE WHEN several AND (permits > 0 OR last IS NOT NULL) THEN held.token
                        WHEN next IS NOT NULL OR NOT several AND {wanted} THEN {turn} END,
                    holder = coalesce({mark_of_next}, held.holder), awaited = held.awaited OR next IS NOT NULL,
                    expires = CASE WHEN next IS NOT NULL THEN now + {kept_for_line}
                        WHEN NOT several AND {wanted} THEN least(held.expires, now + {kept_for_line})
                        WHEN NOT several THEN held.expires WHEN permits > 0 THEN greatest({remembered}, last)
                        ELSE coalesce(last, now) END
                FROM asked, main, others LEFT JOIN next_in_line ON true WHERE held.key = asked.main
                    AND (held.token = asked.token OR EXISTS (SELECT FROM shares WHERE is_own))
                RETURNING held.token IS NULL OR permits > 0 AS is_free, is_held,
                    CASE WHEN held.token = {turn} THEN {first} END AS first
            )
            SELECT EXISTS (SELECT FROM freed WHERE is_held),
                CASE WHEN EXISTS (SELECT FROM freed WHERE first IS NOT NULL) THEN pg_notify((SELECT first FROM freed), '')
                WHEN main.awaited AND (EXISTS (SELECT FROM freed WHERE is_free) OR EXISTS (SELECT FROM not_preferred))
                THEN pg_notify(channel, '') END
            FROM asked, main",
            standing = standing(&table),
            line = RANGE,
            mark_of_next = mark_of("next"),
            remembered = later("now", PERMITS_REMEMBERED),
            wanted = is_wanted("held."),
            turn = turn(),
            kept_for_line = kept_for_line(),
            first = channel_of_first("held."),
        );
        let row = self.by_name(on, &[self.lock(key)], &Step { values: &values, rest: release }).await?;
        row.map_or(Ok(false), |row| row.try_get(0))
    }

    /// Locks the row of a key, if there is one.
    pub(super) fn lock(&self, key: &Key) -> String {
        // Waits for the row. The statement that follows begins after that, and sees what others have left.
        let key = Bytes(bytes(key)).literal();
        format!("SELECT FROM {} WHERE key = {key} FOR UPDATE", self.quoted())
    }
}

impl ShareTable for PostgresServer {
    async fn take_share(&self, on: &mut PgConnection, ask: &ShareAsk) -> SqlResult<ShareTaken> {
        let beside = Beside::of(&ask.key);
        let own = beside.own(&ask.token);
        let is_alone = ask.mode == Mode::Exclusive;
        let number = |yes: bool| Number(i64::from(yes));
        let places = Places::of(&ask.key);
        let known = ask.stand.as_ref().and_then(|stand| stand.known).map(|place| places.at(place));
        // The text that follows depends on the kind of the attempt and on none of these, so that the server plans it
        // once.
        let values = [
            ("main", Bytes(bytes(&ask.key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(&own)),
            ("beyond", Bytes(&beside.beyond)),
            ("token", Bytes(ask.token.as_bytes())),
            ("lease", Number(micros(ask.lease))),
            ("kept", Number(micros(kept(ask.mode, ask.lease)))),
            ("line", Text(&ask.line)),
            ("share", Text(&ask.share)),
            ("of", Number(ask.of())),
            ("take", Number(i64::from(ask.mode.taken()))),
            ("alone", number(is_alone)),
            ("prefers", number(ask.prefers)),
            ("fences", Number(i64::from(ask.fences))),
            ("low", Bytes(&places.low)),
            ("high", Bytes(&places.high)),
            ("known", Bytes(known.as_deref().unwrap_or_default())),
        ];
        let table = self.quoted();
        let Line { seen: line, is_taken, is_not_its_turn, mark, is_wanted, changes, place } =
            Line::of_attempt(&table, ask);
        // Makes the row of a key that has none, from the highest fence of what was pruned: its first grant counts on
        // from there. On a row that is there it changes nothing, and locks it.
        let lock = format!(
            "INSERT INTO {table} AS held (key, token, fence, expires, holder)
            SELECT {}, NULL, coalesce(max(mark.fence), 0), 'epoch', '' FROM {table} AS mark WHERE mark.key = ''
            ON CONFLICT (key) DO UPDATE SET token = held.token WHERE false",
            Bytes(bytes(&ask.key)).literal()
        );
        // By now, what is taken over is the claim's own, or there is nothing to take. A preference ends with a grant to
        // one alone, also by the statement that knows nothing of it: the line about the last grant shows that.
        let (free, other_number, is_shown, has_it) = match ask.takes_over {
            Some(_) => ("busy", "(permits > 0) <> (of > 0)", "AND is_held", "false"),
            None => ("granted", "permits <> of", "", "total.own IS NOT NULL"),
        };
        // Read, then judged, then written: `judged` decides once, and all that follows depends on its verdict alone.
        let take = format!(
            r"{standing}, total AS MATERIALIZED (
                SELECT coalesce(sum(taken), 0) AS taken, min(expires) AS first,
                    max(expires) FILTER (WHERE NOT is_own) AS last, max(fence) FILTER (WHERE is_own) AS own FROM shares
            ), preferred AS MATERIALIZED (
                SELECT held.token = asked.token AS is_own, held.fence AS since, least(held.expires,
                    'epoch'::timestamptz + held.fence * interval '1 microsecond' + {preference} * interval '1 microsecond') AS until
                FROM asked JOIN {table} AS held ON held.key = asked.preferred JOIN main ON main.holder LIKE '% {SEVERAL}=%'
                WHERE held.token IS NOT NULL AND held.expires > now AND held.fence + 2 * {preference} > {now}
            ){line}, judged AS MATERIALIZED (
                SELECT CASE
                    WHEN {is_taken} AND NOT several THEN CASE WHEN of > 0 THEN 'conflict'
                        WHEN alone = 1 AND main.token = asked.token THEN 'adopted' ELSE 'busy' END
                    WHEN {has_it} THEN 'adopted'
                    WHEN several AND {other_number} AND (permits > 0 OR total.taken > 0) THEN 'conflict'
                    WHEN total.own IS NOT NULL THEN 'adopted'
                    WHEN CASE WHEN alone = 1 THEN total.taken > 0 ELSE of > 0 AND total.taken + take > of END THEN 'busy'
                    {is_not_its_turn}
                    WHEN {has_no_turn} AND EXISTS (SELECT FROM preferred WHERE NOT is_own AND until > now) THEN 'kept out'
                    ELSE '{free}' END AS verdict
                FROM asked, main, total
            ), changed AS (
                UPDATE {table} AS held SET
                    token = CASE WHEN alone = 1 THEN asked.token ELSE {shared} END,
                    fence = CASE WHEN verdict = 'adopted' THEN held.fence
                        ELSE greatest(held.fence + fences, {now} + fences - 1) END,
                    expires = CASE WHEN alone = 1 THEN now + lease * interval '1 microsecond'
                        ELSE greatest(now + kept * interval '1 microsecond', total.last) END,
                    holder = CASE WHEN verdict = 'adopted' THEN held.holder WHEN alone = 1 THEN line{mark}
                        ELSE line || ' {SEVERAL}=' || of END,
                    awaited = held.awaited AND held.token IS NOT NULL{is_wanted}
                FROM asked, judged, total WHERE held.key = asked.main AND verdict IN ('granted', 'adopted')
                RETURNING held.fence
            ), share AS (
                INSERT INTO {table} AS held (key, token, fence, expires, holder)
                SELECT asked.own, asked.token, coalesce(total.own, changed.fence),
                    now + lease * interval '1 microsecond', share
                FROM asked, total, changed WHERE alone = 0
                ON CONFLICT (key) DO UPDATE SET token = excluded.token, fence = excluded.fence,
                    expires = excluded.expires, holder = excluded.holder
            ), cleared AS (
                DELETE FROM {table} AS held USING asked, main, judged
                WHERE held.key > asked.preferred AND held.key < asked.beyond AND held.key <> asked.own
                    AND verdict = 'granted' AND (NOT several OR held.expires <= now)
            ), not_preferred AS (
                DELETE FROM {table} AS held USING asked, judged
                WHERE held.key = asked.preferred AND held.token = asked.token AND verdict IN ('granted', 'adopted')
            ), prefers AS (
                INSERT INTO {table} AS held (key, token, fence, expires, holder)
                SELECT asked.preferred, asked.token, coalesce((SELECT since FROM preferred), {now}), {alive}, ''
                FROM asked, main, judged WHERE verdict = 'busy' AND several AND prefers = 1
                    AND NOT EXISTS (SELECT FROM preferred WHERE NOT is_own)
                ON CONFLICT (key) DO UPDATE SET token = excluded.token, fence = excluded.fence,
                    expires = excluded.expires
                RETURNING 1
            ){changes}, seen AS (
                (SELECT 0, fence, expires, holder FROM main WHERE NOT several AND NOT is_turn {is_shown})
                UNION ALL (SELECT taken, fence, expires, holder FROM shares ORDER BY expires LIMIT 1)
            )
            SELECT verdict, coalesce(total.own, (SELECT fence FROM changed)), permits, several,
                EXISTS (SELECT FROM prefers), {left},
                seen.fence, {seen_left}, seen.holder, {place}
            FROM asked, main, total, judged LEFT JOIN seen ON true",
            standing = standing(&table),
            // The line alone says whose turn it is; a take-over asks for no turn.
            has_no_turn = ask.stand.is_none() && ask.takes_over.is_none(),
            shared = format_args!("decode('{}', 'hex')", hex(&SHARED)),
            preference = micros(PREFERENCE),
            now = us("now"),
            alive = later("now", PREFERENCE_ALIVE),
            left = us(
                "CASE WHEN verdict = 'kept out' THEN (SELECT until FROM preferred) WHEN several THEN total.first \
                 ELSE greatest(now, least(main.expires, now + interval '1 year')) END - now"
            ),
            seen_left = us("greatest(now, least(seen.expires, now + interval '1 year')) - now"),
        );
        // The move of a share that was left comes between: the row is locked by then, and the last statement finds the
        // share under the claim's token.
        let moved = ask.takes_over.map(|left| self.move_share(ask, &left));
        let before: Vec<_> = [lock].into_iter().chain(moved).collect();
        let step = Step { values: &values, rest: take };
        let row = self.by_name(on, &before, &step).await?.ok_or(sqlx::Error::RowNotFound)?;
        let permits = u32::try_from(row.try_get::<i64, _>(2)?).unwrap_or_default();
        let (verdict, several): (&str, bool) = (row.try_get(0)?, row.try_get(3)?);
        let line: Option<&str> = row.try_get(8)?;
        // A grant needs no look at the rest; of the other verdicts the row of another way comes first, since it looks
        // like a lock that is held.
        Ok(match verdict {
            "granted" | "adopted" => ShareTaken::Granted(stored::fence(row.try_get(1)?)),
            _ if line.is_some_and(|line| line.starts_with(HELD_ELSEWHERE)) => ShareTaken::Elsewhere,
            "conflict" if several => ShareTaken::Conflict(stored::several(permits)),
            "conflict" => ShareTaken::Conflict(Mode::Exclusive),
            _ => {
                // Of several holders the one whose share ends first, as that is when there may be room.
                let found = match row.try_get::<Option<i64>, _>(6)? {
                    None => None,
                    Some(_) if several => Some(share(&row, 6, permits)?),
                    Some(_) => Some(holder(&row, 6)?),
                };
                ShareTaken::Busy {
                    holder: found.map(Box::new),
                    free_in: free_in(row.try_get(5)?),
                    prefers: row.try_get(4)?,
                    place: row.try_get::<Option<i64>, _>(9)?.zip(row.try_get(10)?),
                }
            }
        })
    }

    async fn release_share(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        fair: bool,
    ) -> SqlResult<bool> {
        if fair { self.leave_line(on, key, token).await } else { self.release_several(on, key, token).await }
    }

    async fn look_in_line(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> SqlResult<Option<LineSeen>> {
        self.see_line(on, key, token, place).await
    }

    async fn renew_shares(
        &self,
        on: &mut PgConnection,
        leases: &[Lease],
    ) -> SqlResult<Option<HashSet<usize>>> {
        let (mut keys, mut owns, mut kepts) = (Vec::new(), Vec::new(), Vec::new());
        for lease in leases {
            keys.push(bytes(&lease.key));
            owns.push(Beside::of(&lease.key).own(&lease.token));
            kepts.push(micros(kept(lease.mode, lease.length)));
        }
        let lengths = leases.iter().map(|lease| micros(lease.length)).collect();
        let tokens = leases.iter().map(|lease| lease.token.as_bytes().as_slice()).collect();
        let (keys, shared) = (Value::ManyBytes(keys).literal(), Bytes(&SHARED).literal());
        let table = self.quoted();
        // In one order, so that renewals of different shares of one key do not wait for each other in a circle.
        let lock = format!(
            "SELECT 1 FROM {table} WHERE key = ANY ({keys}) AND token = {shared} ORDER BY key FOR UPDATE"
        );
        // `kept` lets the row of the key last as long as the longest of the shares that were renewed.
        let renew = format!(
            r"WITH asked AS MATERIALIZED (
                SELECT *, clock_timestamp() AS now FROM unnest({keys}, {owns}, {tokens}, {lengths}, {kepts})
                    WITH ORDINALITY AS asked (main, own, token, lease, kept, place)
            ), renewed AS (
                UPDATE {table} AS held SET expires = now + lease * interval '1 microsecond'
                FROM asked JOIN {table} AS main ON main.key = asked.main AND main.token = {shared} AND main.expires > now
                WHERE held.key = asked.own AND held.token = asked.token AND held.expires > now
                RETURNING asked.place, asked.main, now + asked.kept * interval '1 microsecond' AS until
            ), kept AS (
                UPDATE {table} AS held SET expires = greatest(held.expires, longest.until)
                FROM (SELECT main, max(until) AS until FROM renewed GROUP BY main) AS longest
                WHERE held.key = longest.main
            )
            SELECT array_agg(place) FROM renewed",
            owns = Value::ManyBytes(owns.iter().map(|own| &**own).collect()).literal(),
            tokens = Value::ManyBytes(tokens).literal(),
            lengths = Value::Numbers(lengths).literal(),
            kepts = Value::Numbers(kepts).literal(),
        );
        let row = self.in_one_message(on, &[lock, renew]).await?.ok_or(sqlx::Error::RowNotFound)?;
        let places = row.try_get::<Option<Vec<i64>>, _>(0)?.unwrap_or_default();
        if places.len() == leases.len() {
            return Ok(None);
        }
        Ok(Some(places.into_iter().filter_map(|place| usize::try_from(place - 1).ok()).collect()))
    }

    async fn downgrade(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> SqlResult<bool> {
        let beside = Beside::of(key);
        let (own, channel, table) = (beside.own(token), self.channel(key), self.quoted());
        let asked = asked(&[
            ("main", Bytes(bytes(key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(&own)),
            ("beyond", Bytes(&beside.beyond)),
            ("token", Bytes(token.as_bytes())),
        ]);
        // If the lock was held alone, all rows beside it are of earlier holders: `cleared` deletes them.
        let share = format!(
            r"WITH {asked}, {standing}, judged AS MATERIALIZED (
                SELECT coalesce(is_held AND NOT several AND main.token = asked.token, false) AS alone,
                    EXISTS (SELECT FROM shares WHERE is_own) AS shares_it, {until} AS until FROM asked, main
            ), changed AS (
                UPDATE {table} AS held SET token = {shared},
                    expires = CASE WHEN alone THEN until ELSE greatest(held.expires, until) END,
                    holder = CASE WHEN alone THEN {unmarked} || ' {SEVERAL}=0' ELSE held.holder END
                FROM asked, judged WHERE held.key = asked.main AND (alone OR shares_it)
                RETURNING held.fence
            ), share AS (
                INSERT INTO {table} AS held (key, token, fence, expires, holder)
                SELECT asked.own, asked.token, changed.fence, until, '1 ' || {unmarked_main}
                FROM asked, main, judged, changed
                ON CONFLICT (key) DO UPDATE SET expires = excluded.expires,
                    fence = CASE WHEN (SELECT alone FROM judged) THEN excluded.fence ELSE held.fence END,
                    holder = CASE WHEN (SELECT alone FROM judged) THEN excluded.holder ELSE held.holder END
            ), cleared AS (
                DELETE FROM {table} AS held USING asked, judged
                WHERE alone AND held.key >= asked.preferred AND held.key < asked.beyond AND held.key <> asked.own
            )
            SELECT alone OR shares_it, CASE WHEN alone AND awaited THEN pg_notify({channel}, '') END FROM main, judged",
            standing = standing(&table),
            until = later("now", lease),
            shared = Bytes(&SHARED).literal(),
            unmarked = unmarked("held."),
            unmarked_main = unmarked("main."),
            channel = Text(&channel).literal(),
        );
        let row = self.in_one_message(on, &[self.lock(key), share]).await?;
        row.map_or(Ok(false), |row| row.try_get(0))
    }

    async fn leave_share(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<bool> {
        self.leave_several(on, key, token, taken_for).await
    }

    async fn occupancy(&self, on: &mut PgConnection, key: &Key) -> SqlResult<Occupancy> {
        let beside = Beside::of(key);
        let asked = asked(&[
            ("main", Bytes(bytes(key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(b"")),
            ("beyond", Bytes(&beside.beyond)),
        ]);
        // One statement, so that all is of one moment.
        let all = format!(
            r"WITH {asked}, {standing}
            SELECT several, permits, coalesce(shares.fence, main.fence), {left}, coalesce(shares.holder, main.holder),
                NOT several OR shares.fence IS NOT NULL
            FROM asked, main LEFT JOIN shares ON true WHERE is_held AND main.token <> {elsewhere} ORDER BY shares.expires",
            standing = standing(&self.quoted()),
            elsewhere = Bytes(&ELSEWHERE).literal(),
            left = us("least(coalesce(shares.expires, main.expires), now + interval '1 year') - now"),
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(all)).fetch_all(on).await?;
        let (mut permits, mut holders) = (0, Vec::new());
        for row in rows {
            permits = u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or_default();
            if row.try_get(5)? {
                holders.push(if row.try_get(0)? { share(&row, 2, permits)? } else { holder(&row, 2)? });
            }
        }
        Ok(Occupancy::new(Some(permits).filter(|permits| *permits > 0), holders))
    }

    async fn resize(&self, on: &mut PgConnection, key: &Key, permits: u32) -> SqlResult<Resized> {
        let beside = Beside::of(key);
        let asked = asked(&[
            ("main", Bytes(bytes(key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(b"")),
            ("beyond", Bytes(&beside.beyond)),
        ]);
        let (table, channel) = (self.quoted(), self.channel(key));
        // Only a semaphore has a number that can be changed. Its waiters are notified, since there may be room now.
        let resize = format!(
            r"WITH {asked}, {standing}, changed AS (
                UPDATE {table} AS held
                SET holder = regexp_replace(held.holder, ' {SEVERAL}=[0-9]+$', ' {SEVERAL}={permits}')
                FROM asked, main WHERE held.key = asked.main AND several AND permits > 0
            )
            SELECT CASE WHEN several THEN permits ELSE 0 END, is_held AND NOT several OR EXISTS (SELECT FROM shares),
                CASE WHEN several AND permits > 0 AND awaited THEN pg_notify({channel}, '') END,
                main.token IS NOT DISTINCT FROM {elsewhere}
            FROM main",
            standing = standing(&table),
            elsewhere = Bytes(&ELSEWHERE).literal(),
            channel = Text(&channel).literal(),
        );
        let Some(row) = self.in_one_message(on, &[self.lock(key), resize]).await? else {
            return Ok(Resized::Missing);
        };
        let before = u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or_default();
        Ok(match before {
            0 if row.try_get(3)? => Resized::Elsewhere,
            0 if row.try_get(1)? => Resized::IsLock,
            0 => Resized::Missing,
            before => Resized::Was(before),
        })
    }
}

/// Reads one of several holders, by fence, remaining time and description from this column on.
fn share(row: &PgRow, from: usize, permits: u32) -> SqlResult<Holder> {
    let left = Duration::from_micros(row.try_get::<i64, _>(from + 1)?.max(0).unsigned_abs());
    let of = Some(permits).filter(|of| *of > 0);
    Ok(stored::share(row.try_get(from + 2)?, row.try_get(from)?, left, of))
}
