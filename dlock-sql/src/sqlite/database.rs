//! One database that is open: its connections, and whether it still is what the path leads to.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::backend::Signal;
use dlock_core::{Failure, Holder, Key, Token};
use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions, Row};

use super::claim::{self, Standing, understand};
use super::connections::{Connections, Until, Writer, connect_options};
use super::failure::{classify, is_busy, of_file};
use super::file::{self, Files, Found, Identity};
use super::options::SqliteOptions;
use super::presence::Presence;
use super::schema::{self, Wrong};
use super::shares;
use super::statements::{AT_ONCE, SqliteStatements};
use super::time;
use crate::failure::unchanged;
use crate::renewals::{self, Renewals};

/// How long to go on opening while other processes are in the way.
pub(super) const OPENING: Duration = Duration::from_secs(5);
/// How old the last look at the files may be for a step to rely on it. Looking takes about 5 us.
const LOOK: Duration = Duration::from_millis(10);
/// No lease of those who have an earlier file open is taken to be shorter.
const SHORTEST_QUARANTINE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Database {
    pub(super) connections: Connections,
    pub(super) statements: SqliteStatements,
    pub(super) boot: Vec<u8>,
    pub(super) renewals: Renewals,
    /// When this file was first seen at the path, if another one under the same name is open somewhere.
    since: Option<i64>,
    holds: Mutex<Holds>,
    looked: AtomicI64,
}

/// What is held here, to be told when the database is lost.
#[derive(Debug, Default)]
struct Holds {
    signals: HashMap<Token, Signal>,
    presence: Option<Presence>,
    /// Why nothing here is worth anything any more.
    retired: Option<&'static str>,
}

/// What the path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileState {
    /// This database.
    Same,
    /// Another one.
    Replaced,
    /// Nothing.
    Gone,
}

impl Database {
    pub(super) async fn open(options: &SqliteOptions) -> Result<Arc<Self>, Failure> {
        let path =
            std::path::absolute(&options.path).map_err(|error| of_file(error, "finding", &options.path))?;
        if options.makes {
            file::create(&path)?;
        }
        file::check(&path)?;
        let boot = time::boot_id()?;
        let until = time::now().saturating_add(time::nanos(OPENING));
        loop {
            match Self::try_open(options, &path, &boot).await {
                Ok(Some(database)) => return Ok(database),
                Ok(None) if time::now() > until => {
                    return Err(Failure::unavailable(format!(
                        "{} is being replaced all the time",
                        path.display()
                    )));
                }
                Ok(None) => {}
                Err(Wrong::Sql(error)) if is_busy(&error) && time::now() < until => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(wrong) => return Err(wrong.into_failure(&path)),
            }
        }
    }

    /// `None` when the files changed in between.
    async fn try_open(options: &SqliteOptions, path: &Path, boot: &[u8]) -> Result<Option<Arc<Self>>, Wrong> {
        let statements = SqliteStatements::of(&options.table);
        let how = connect_options(path);
        let mut writer = how.connect().await?;
        if options.makes {
            schema::migrate(&mut writer, &options.table, path).await?;
        }
        schema::verify(&mut writer, &options.table, &statements, path).await?;
        // The files stay as they are from here on, since a connection has them open.
        let files = Files::of(path);
        let look = || files.look().map_err(|error| Wrong::Table(of_file(error, "looking at", path)));
        let Found::Database(identity) = look()? else { return Ok(None) };
        let presence = Presence::show(path, &identity);
        let (mut reader, mut renewer) = (how.connect().await?, how.connect().await?);
        for connection in [&mut reader, &mut renewer] {
            sqlx::query(statements.mark.clone()).fetch_all(connection).await?;
        }
        // Only now: whoever replaces the file later finds our mark.
        if look()? != Found::Database(identity) {
            return Ok(None);
        }
        let since = identify(&mut writer, &statements, &identity, boot).await?;
        let others = presence.as_ref().is_some_and(Presence::has_others);
        let connections = Connections::new(path.to_owned(), files, identity, [writer, reader, renewer]);
        let (renewals, inbox) = Renewals::new();
        let database = Arc::new(Self {
            connections,
            statements,
            boot: boot.to_vec(),
            renewals,
            since: others.then_some(since),
            holds: Mutex::new(Holds { presence, ..Holds::default() }),
            looked: AtomicI64::new(0),
        });
        renewals::look_after(&database, inbox).map_err(Wrong::Table)?;
        Ok(Some(database))
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the path still led here a moment ago. When it does not, everything that is held here is lost from now
    /// on.
    pub(super) fn file_state(&self) -> Result<FileState, Failure> {
        let now = time::now();
        if now.saturating_sub(self.looked.load(Ordering::Acquire)) < time::nanos(LOOK) {
            return Ok(FileState::Same);
        }
        if self.holds().retired.is_some() {
            // Once given up it stays so: others may have taken over in the meantime.
            let found = self.connections.look().map(|(found, _)| found);
            return Ok(if matches!(found, Ok(Found::Nothing)) {
                FileState::Gone
            } else {
                FileState::Replaced
            });
        }
        match self.connections.look() {
            Ok((_, true)) => {
                self.looked.store(now, Ordering::Release);
                Ok(FileState::Same)
            }
            Ok((Found::Nothing, _)) => {
                self.retire("the database file was deleted");
                Ok(FileState::Gone)
            }
            Ok((Found::Database(_), _)) => {
                self.retire("the database file was replaced");
                Ok(FileState::Replaced)
            }
            Err(error) => Err(of_file(error, "looking at", self.connections.path())),
        }
    }

    /// First all holders are notified, then our mark goes, which lets others begin.
    fn retire(&self, why: &'static str) {
        let mut holds = self.holds();
        holds.retired = Some(why);
        self.looked.store(0, Ordering::Release);
        for (_, signal) in holds.signals.drain() {
            signal.lost(why);
        }
        holds.presence = None;
    }

    /// From now on the holder of `signal` is notified when the database is lost.
    pub(super) fn granted(&self, token: Token, signal: Signal) {
        let mut holds = self.holds();
        match holds.retired {
            Some(why) => signal.lost(why),
            None => drop(holds.signals.insert(token, signal)),
        }
    }

    pub(super) fn ended(&self, token: &Token) {
        self.holds().signals.remove(token);
    }

    /// Whether locks may be given out. Not while others may still hold them in an earlier file.
    pub(super) fn may_grant(&self, lease: Duration) -> Result<(), Failure> {
        let Some(since) = self.since else { return Ok(()) };
        // Those others may have taken a lock until their next look.
        let ends = since.saturating_add(time::nanos(lease.max(SHORTEST_QUARANTINE) + LOOK * 2));
        let now = time::now();
        if now >= ends || !self.holds().presence.as_ref().is_some_and(Presence::has_others) {
            return Ok(());
        }
        let left = Duration::from_nanos((ends - now).unsigned_abs());
        Err(Failure::unavailable(format!(
            "{} replaced a database that other processes still have open; locks are given out again when they have \
             noticed, in {left:.0?} at the latest",
            self.connections.path().display()
        )))
    }

    /// Deletes free rows whose last lease ended before `ended_before`, some at a time.
    pub(super) async fn prune(&self, older_than: Duration) -> Result<u64, Failure> {
        let mut after: Vec<u8> = Vec::new();
        let mut deleted = 0;
        loop {
            let until = Until::after(OPENING);
            let (mut turn, _) = self.connections.writer(Writer::Any, until).await?;
            let answer = turn
                .run(until, |now| {
                    sqlx::query(self.statements.prune.clone())
                        .bind(self.boot.clone())
                        .bind(now)
                        .bind(now.saturating_sub(time::nanos(older_than)))
                        .bind(after.clone())
                })
                .await
                .map_err(|error| classify(error, self.connections.path()))?;
            drop(turn);
            let rows = answer.rows;
            deleted += rows.len() as u64;
            for row in &rows {
                let key: Vec<u8> =
                    row.try_get(0).map_err(|error| classify(error, self.connections.path()))?;
                after = after.max(key);
            }
            if rows.len() < AT_ONCE {
                return Ok(deleted);
            }
        }
    }

    /// All locks that are held, in order.
    pub(super) async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let failed = |error| unchanged(classify(error, self.connections.path()));
        let mut all = Vec::new();
        // Those that several hold, with the number of permits. Their rows come after those of all keys.
        let mut shared: HashMap<Key, Option<u32>> = HashMap::new();
        let mut after: Vec<u8> = Vec::new();
        loop {
            let until = Until::after(OPENING);
            let mut turn = self.connections.reader(until).await?;
            let answer = turn
                .run(until, |now| {
                    let list = sqlx::query(self.statements.list.clone());
                    list.bind(after.clone()).bind(self.boot.clone()).bind(now)
                })
                .await
                .map_err(failed)?;
            drop(turn);
            let now = time::now();
            for row in &answer.rows {
                after = row.try_get(5).map_err(failed)?;
                let standing = understand(row, &self.boot, now).map_err(failed)?;
                // A row with another key is none of ours.
                let key = std::str::from_utf8(&after).ok().and_then(|key| Key::new(key).ok());
                match (key, standing) {
                    (Some(key), Standing::Held(holder)) => all.push((key, *holder)),
                    (Some(key), Standing::Shared) => {
                        shared.insert(key, None);
                    }
                    (None, Standing::Held(_) | Standing::Shared) => {
                        let Some((key, is_common)) = shares::parse(&after) else { continue };
                        let Some((key, of)) = shared.get_key_value(key) else { continue };
                        if is_common {
                            let permits = row.try_get::<i64, _>(1).map_err(failed)?;
                            let permits = u32::try_from(permits).ok().filter(|permits| *permits > 0);
                            shared.insert(key.clone(), permits);
                        } else {
                            let holder = shares::holder(row, [1, 3, 4], *of, now).map_err(failed)?;
                            all.push((key.clone(), holder));
                        }
                    }
                    (_, Standing::Free) => {}
                }
            }
            if answer.rows.len() < AT_ONCE {
                return Ok(all);
            }
        }
    }

    /// Frees the lock whoever has it; whether anybody did.
    pub(super) async fn force(&self, key: &Key) -> Result<bool, Failure> {
        let until = Until::after(OPENING);
        let is_shared = matches!(claim::read(self, key, until).await?, Standing::Shared);
        // The row of a semaphore seems to be held also while it is only remembered.
        let held = !is_shared || !self.occupancy(key).await?.holders.is_empty();
        let (mut turn, _) = self.connections.writer(Writer::Any, until).await?;
        let answer = turn
            .run(until, |now| {
                sqlx::query(self.statements.force.clone())
                    .bind(key.as_str().as_bytes().to_vec())
                    .bind(self.boot.clone())
                    .bind(now)
            })
            .await
            .map_err(|error| classify(error, self.connections.path()))?;
        Ok(held && answer.changed == 1)
    }

    pub(super) async fn close(&self) {
        self.connections.close().await;
    }

    /// Why nothing can be taken here.
    pub(super) fn deleted(&self) -> Failure {
        Failure::unavailable(format!(
            "{} was deleted while it was open; connect again to make a new one, or put the file back and restart",
            self.connections.path().display()
        ))
    }
}

/// Notes which file this is, and says since when it has been. Writes in any case, so that a database that can only be
/// read is found out now.
async fn identify(
    writer: &mut SqliteConnection,
    statements: &SqliteStatements,
    identity: &Identity,
    boot: &[u8],
) -> Result<i64, sqlx::Error> {
    sqlx::query(statements.identify.clone())
        .bind(identity.to_bytes())
        .bind(boot.to_vec())
        .bind(time::now())
        .execute(&mut *writer)
        .await?;
    sqlx::query(statements.mark.clone()).fetch_one(writer).await?.try_get("expires")
}
