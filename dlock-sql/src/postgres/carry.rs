//! Shares that are handed over by a baton, in PostgreSQL.

use std::time::Duration;

use dlock_core::backend::{LEFT_BEHIND, Mode};
use dlock_core::{Key, Token};
use sqlx::{PgConnection, Row};

use super::answers::bytes;
use super::server::PostgresServer;
use super::statements::{asked, standing, us};
use super::values::Value::{Bytes, Number, Text};
use crate::protocol::SqlResult;
use crate::rows::shares::{Beside, ShareAsk};
use crate::server::Server;
use crate::stored::SEVERAL;
use crate::text::micros;

impl PostgresServer {
    /// Leaves a share for so long, or no longer than it is left already. Returns whether it was there.
    pub(super) async fn leave_several(
        &self,
        on: &mut PgConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<bool> {
        let (beside, left) = (Beside::of(key), token.left_behind());
        let (before, own) = (beside.own(token), beside.own(&left));
        let asked = asked(&[
            ("main", Bytes(bytes(key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(&own)),
            ("before", Bytes(&before)),
            ("beyond", Bytes(&beside.beyond)),
            ("token", Bytes(left.as_bytes())),
            ("kept_for", Number(micros(taken_for))),
        ]);
        // `moved` gives the share the name under which it is left, unless it has it already; `kept` keeps the row of
        // the key for as long as the longest of all shares, of which `others` are those that stay as they are.
        let (table, channel) = (self.quoted(), self.channel(key));
        let leave = format!(
            r"WITH {asked}, {standing}, moved AS (
                UPDATE {table} AS held SET key = asked.own, token = asked.token,
                    expires = CASE WHEN held.key = own THEN least(held.expires, {until}) ELSE {until} END,
                    holder = CASE WHEN held.key = own THEN held.holder
                        ELSE regexp_replace(held.holder, ' ', ' {LEFT_BEHIND}') END
                FROM asked, main WHERE several AND held.expires > now
                    AND held.key = CASE WHEN EXISTS (SELECT FROM shares WHERE is_own) THEN own ELSE before END
                RETURNING held.expires, held.fence
            ), others AS MATERIALIZED (
                SELECT max(held.expires) AS last FROM asked, {table} AS held
                WHERE held.key > preferred AND held.key < beyond AND held.key NOT IN (own, before)
            ), kept AS (
                UPDATE {table} AS held SET
                    expires = greatest(moved.expires, last, CASE WHEN permits > 0 THEN held.expires END),
                    holder = CASE WHEN held.fence = moved.fence AND left(held.holder, {length}) <> '{LEFT_BEHIND}'
                        THEN '{LEFT_BEHIND}' || held.holder ELSE held.holder END
                FROM asked, main, moved, others WHERE held.key = asked.main
            )
            SELECT EXISTS (SELECT FROM moved),
                CASE WHEN awaited AND EXISTS (SELECT FROM moved) THEN pg_notify({channel}, '') END
            FROM main",
            standing = standing(&table),
            until = "now + kept_for * interval '1 microsecond'",
            length = LEFT_BEHIND.len(),
            channel = Text(&channel).literal(),
        );
        let row = self.in_one_message(on, &[self.lock(key), leave]).await?;
        row.map_or(Ok(false), |row| row.try_get(0))
    }

    /// Makes the share that was left under this token that of the claim, which then adopts it, with a new fence.
    pub(super) fn move_share(&self, ask: &ShareAsk, left: &Token) -> String {
        let (table, beside) = (self.quoted(), Beside::of(&ask.key));
        let asked = asked(&[
            ("main", Bytes(bytes(&ask.key))),
            ("preferred", Bytes(&beside.preferred)),
            ("own", Bytes(&beside.own(left))),
            ("beyond", Bytes(&beside.beyond)),
        ]);
        // The fence of the key grows with the take-over, as with a grant: what the last holder still sends is refused.
        format!(
            r"WITH {asked}, {standing}, moved AS (
                UPDATE {table} AS held SET key = {own}, token = {token}, fence = greatest(main.fence + 1, {now})
                FROM asked, main WHERE held.key = asked.own AND several AND held.expires > now
                    AND held.holder LIKE '{take} {LEFT_BEHIND}%' AND (permits > 0) = {is_semaphore}
                RETURNING held.fence, permits
            )
            UPDATE {table} AS held SET fence = moved.fence, holder = {line} || ' {SEVERAL}=' || permits
            FROM asked, moved WHERE held.key = asked.main",
            line = Text(&ask.line).literal(),
            standing = standing(&table),
            own = Bytes(&beside.own(&ask.token)).literal(),
            token = Bytes(ask.token.as_bytes()).literal(),
            now = us("now"),
            take = ask.mode.taken(),
            is_semaphore = matches!(ask.mode, Mode::Permits { .. }),
        )
    }
}
