//! Shares that are handed over by a baton, in MariaDB and MySQL.

use std::time::Duration;

use dlock_core::backend::{LEFT_BEHIND, Mode};
use dlock_core::{Key, Token};
use sqlx::{MySqlConnection, Row};

use super::answers::bytes;
use super::server::MysqlServer;
use super::statements::{NOW, permits, text};
use super::values::literal;
use crate::protocol::SqlResult;
use crate::rows::shares::{Beside, ShareAsk};
use crate::server::Server;
use crate::stored::{SEVERAL, SHARED};
use crate::text::micros;

impl MysqlServer {
    /// Leaves a share for so long, or no longer than it is left already. Returns whether it was there.
    pub(super) async fn leave_several(
        &self,
        on: &mut MySqlConnection,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> SqlResult<bool> {
        let (table, beside, left) = (self.quoted(), Beside::of(key), token.left_behind());
        let (before, own) = (literal(&beside.own(token)), literal(&beside.own(&left)));
        let (key, token, left) = (literal(bytes(key)), literal(token.as_bytes()), literal(left.as_bytes()));
        let is_there = |name: &str, token: &str| {
            format!(
                "EXISTS (SELECT 1 FROM {table} AS held WHERE held.`key` = {name} AND held.token = {token}
                    AND held.expires > {NOW})"
            )
        };
        let look = format!(
            "SELECT {NOW} + {}, {is_left}, {is_ours} OR {is_left} INTO @dlock_until, @dlock_kept, @dlock_own
            FROM (SELECT 1) AS one JOIN {table} AS main
                ON main.`key` = {key} AND main.token = {shared} AND main.expires > {NOW}",
            micros(taken_for),
            is_left = is_there(&own, &left),
            is_ours = is_there(&before, &token),
            shared = literal(&SHARED),
        );
        // The row of the key is locked before the look, and all changes follow from what that found. The variables are
        // of the session, so that they are cleared first.
        let statements = [
            "SET @dlock_own = NULL".to_owned(),
            self.lock(&key),
            look,
            format!("UPDATE {table} SET expires = LEAST(expires, @dlock_until) WHERE `key` = {own} AND @dlock_own AND @dlock_kept"),
            format!(
                "UPDATE {table} SET `key` = {own}, token = {left}, expires = @dlock_until,
                    holder = CONCAT(SUBSTRING_INDEX(holder, ' ', 1), ' {LEFT_BEHIND}', SUBSTRING(holder, LOCATE(' ', holder) + 1))
                WHERE `key` = {before} AND @dlock_own AND NOT @dlock_kept"
            ),
            // Also the shares that have ended by now.
            format!(
                "SELECT MAX(held.expires), MAX(IF(held.`key` = {own}, held.fence, NULL)) INTO @dlock_last, @dlock_left
                FROM {table} AS held WHERE held.`key` > {} AND held.`key` < {}",
                literal(&beside.preferred),
                literal(&beside.beyond)
            ),
            // The line about the last grant says of the key what the share's says.
            format!(
                "UPDATE {table} SET expires = IF({} > 0, GREATEST(expires, @dlock_last), @dlock_last),
                    holder = IF(fence = @dlock_left AND NOT @dlock_kept, CONCAT('{LEFT_BEHIND}', holder), holder)
                WHERE `key` = {key} AND @dlock_own",
                permits(&table)
            ),
            "SELECT CAST(COALESCE(@dlock_own, 0) AS SIGNED)".to_owned(),
        ];
        let rows = self.in_one_message(on, &statements).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get::<i64, _>(0)? == 1)
    }

    /// Makes the share that was left under this token that of the claim, which then adopts it, with a new fence.
    pub(super) fn move_share(&self, ask: &ShareAsk, left: &Token) -> [String; 4] {
        let (table, beside) = (self.quoted(), Beside::of(&ask.key));
        let (key, before) = (literal(bytes(&ask.key)), literal(&beside.own(left)));
        let (own, token) = (literal(&beside.own(&ask.token)), literal(ask.token.as_bytes()));
        let look = format!(
            "SELECT GREATEST(main.fence + 1, {NOW}) INTO @dlock_moved FROM {table} AS main JOIN {table} AS held
                ON held.`key` = {before} AND held.token = {left} AND held.expires > {NOW}
                    AND held.holder LIKE '{take} {LEFT_BEHIND}%'
            WHERE main.`key` = {key} AND main.token = {shared} AND main.expires > {NOW}
                AND ({permits} > 0) = {is_semaphore}",
            left = literal(left.as_bytes()),
            take = ask.mode.taken(),
            shared = literal(&SHARED),
            permits = permits("main"),
            is_semaphore = matches!(ask.mode, Mode::Permits { .. }),
        );
        [
            "SET @dlock_moved = NULL".to_owned(),
            look,
            format!(
                "UPDATE {table} SET `key` = {own}, token = {token}, fence = @dlock_moved
                WHERE `key` = {before} AND @dlock_moved IS NOT NULL"
            ),
            format!(
                "UPDATE {table} SET fence = @dlock_moved, holder = CONCAT({}, ' {SEVERAL}=', {})
                WHERE `key` = {key} AND @dlock_moved IS NOT NULL",
                text(&ask.line),
                permits(&table)
            ),
        ]
    }
}
