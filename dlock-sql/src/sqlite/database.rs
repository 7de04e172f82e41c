//! One database that is open: its connections, and whether the path still leads to it.
//!
//! ```text
//!                the path leads here          it leads elsewhere, or nowhere: `retire`
//!     open ---------------------------> same -----------------------------------------> retired
//!      |  ^                              |                                                 every hold is lost,
//!      |  | the files changed meanwhile  | `since`: another file under this name is open   then the mark goes
//!      +--+                              | `doubted`: perhaps leases of this boot under
//!                                        v  another name
//!                                       no grants, until every earlier lease has ended
//!                                       or the other file is open no more
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dlock_core::backend::{Mutex, Signal, sleep};
use dlock_core::{Failure, Holder, Key, Token};
use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions, Row};

use super::boot::{Boot, BootName};
use super::connections::{Connections, Until, Writer, connect_options};
use super::failure::{classify, of_file};
use super::file::{self, Files, Found, Identity};
use super::options::SqliteOptions;
use super::presence::{Mark, Presence};
use super::row::{self, Standing, understand};
use super::schema::{self, Wrong};
use super::statements::shares::parse;
use super::statements::{AT_ONCE, SqliteStatements};
use super::time;
use crate::failure::unchanged;
use crate::renewals::{self, Renewals};

/// The time for opening while other processes are in the way.
pub(super) const OPENING: Duration = Duration::from_secs(5);
/// The age at which the last look at the files is too old for a step to rely on it. Looking takes about 5 us.
const LOOK: Duration = Duration::from_millis(10);
/// The shortest lease that is assumed of processes that have an earlier file open.
const SHORTEST_QUARANTINE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Database {
    pub(super) connections: Connections,
    pub(super) statements: SqliteStatements,
    /// The name of the boot in rows.
    pub(super) boot: Vec<u8>,
    pub(super) renewals: Renewals,
    /// The moment at which this file was first seen at the path, if another one under the same name is open somewhere.
    since: Option<i64>,
    /// The moment at which this boot was taken for another one than that of earlier leases, if that is not certain.
    doubted: Option<i64>,
    holds: Mutex<Holds>,
    looked: AtomicI64,
}

/// The holds here, to be notified when the database is lost.
#[derive(Debug, Default)]
struct Holds {
    signals: HashMap<Token, Signal>,
    presence: Option<(Presence, Mark)>,
    /// The reason why nothing here is worth anything any more.
    retired: Option<&'static str>,
}

/// The file that the path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileState {
    /// This database.
    Same,
    /// Another one.
    Replaced,
    /// None.
    Gone,
}

impl Database {
    pub(super) async fn open(options: &SqliteOptions) -> Result<Arc<Self>, Failure> {
        let path =
            std::path::absolute(&options.path).map_err(|error| of_file(error, "finding", &options.path))?;
        // Once, and not in each round: a file that vanishes while it is opened is not replaced by an empty one.
        if options.makes {
            file::create(&path)?;
        }
        let boot = Boot::read(&options.boot_id)?;
        let until = time::now().saturating_add(time::nanos(OPENING));
        loop {
            // At once where the files changed meanwhile, and after a pause where another process is in the way.
            match Self::try_open(options, &path, &boot).await {
                Ok(Some(database)) => return Ok(database),
                Ok(None) if time::now() > until => {
                    return Err(Failure::unavailable(format!(
                        "{} is being replaced all the time",
                        path.display()
                    )));
                }
                Ok(None) => {}
                Err(wrong) if wrong.is_passing() && time::now() < until => {
                    sleep(Duration::from_millis(1)).await;
                }
                // However it failed, no lock was asked for.
                Err(wrong) => return Err(unchanged(wrong.into_failure(&path))),
            }
        }
    }

    /// Tries to open the database. Returns `None` when the files changed in between.
    async fn try_open(options: &SqliteOptions, path: &Path, boot: &Boot) -> Result<Option<Arc<Self>>, Wrong> {
        file::check(path).map_err(Wrong::Table)?;
        let statements = SqliteStatements::of(&options.table);
        let files = Files::of(path).map_err(Wrong::Table)?;
        // Looked at before and after it is opened: a connection that was opened in between could be of either file.
        let look = || files.look().map_err(|error| Wrong::Table(of_file(error, "looking at", path)));
        let Found::Database(before) = look()? else { return Ok(None) };
        let how = connect_options(files.real());
        let mut writer = how.connect().await?;
        if options.makes {
            schema::migrate(&mut writer, &options.table, path).await?;
        }
        // Also after making it: a table of that name may have been there, and be no lock table.
        schema::verify(&mut writer, &options.table, &statements, path).await?;
        // The files stay as they are from here on, since a connection has them open: if they are those that the path
        // leads to.
        let Found::Database(identity) = look()? else { return Ok(None) };
        if !identity.is_file_of(&before) || Files::of(path).map_err(Wrong::Table)? != files {
            return Ok(None);
        }
        let (mut reader, mut renewer) = (how.connect().await?, how.connect().await?);
        // SQLite opens its other files at the first read.
        for connection in [&mut reader, &mut renewer] {
            sqlx::query(statements.mark.clone()).fetch_all(connection).await?;
        }
        // Read before the name is chosen, and compared with when it is replaced: two processes that open the database
        // at once agree on one name.
        let noted = Noted::read(&mut writer, &statements).await?;
        let marks = Presence::beside(files.real(), path);
        let mark_of = |name: &[u8]| Mark::of(&identity, &options.table, name);
        let is_used = |name: &[u8]| marks.as_ref().is_some_and(|marks| marks.has_equals(mark_of(name)));
        let mut name = boot.name(&noted.boot, is_used).map_err(Wrong::Table)?;
        // A doubt is about leases that may still run: without any there is nothing to wait for.
        if name.name != noted.name() && !noted.may_have_leases(&mut reader, &statements).await? {
            name.doubted = None;
        }
        let mark = mark_of(&name.name);
        let marks = marks.and_then(|marks| marks.show(mark));
        // Of two processes that choose different names, the second to leave its mark finds the other's.
        match &marks {
            Some(marks) if marks.has_strangers(mark) => return Err(Wrong::Passing(strangers(path))),
            None if boot.needs_marks(&name) => return Err(Wrong::Table(no_marks(path))),
            _ => {}
        }
        // Only now: a process that replaces the file later finds this mark.
        if look()? != Found::Database(identity) {
            return Ok(None);
        }
        let Some(since) = noted.replace(&mut writer, &statements, &identity, &name).await? else {
            return Ok(None);
        };
        let others = marks.as_ref().is_some_and(|marks| marks.has_others(mark));
        let connections = Connections::new(path.to_owned(), files, identity, [writer, reader, renewer]);
        let (renewals, inbox) = Renewals::new();
        let presence = marks.map(|marks| (marks, mark));
        let database = Arc::new(Self {
            connections,
            statements,
            boot: name.name,
            renewals,
            since: others.then_some(since),
            doubted: name.doubted,
            holds: Mutex::new(Holds { presence, ..Holds::default() }),
            looked: AtomicI64::new(0),
        });
        renewals::look_after(&database, inbox).map_err(Wrong::Table)?;
        Ok(Some(database))
    }

    /// Returns whether the path still led here a moment ago. If it does not, everything that is held here is lost from
    /// now on.
    ///
    /// While the file has another name too, this fails, so that nothing is granted and nothing renewed: processes that
    /// use the other name may hold the same locks.
    pub(super) fn file_state(&self) -> Result<FileState, Failure> {
        let now = time::now();
        if now.saturating_sub(self.looked.load(Ordering::Acquire)) < time::nanos(LOOK) {
            return Ok(FileState::Same);
        }
        if self.holds.lock().retired.is_some() {
            // Once given up it stays so: others may have taken over in the meantime.
            let found = self.connections.look().map(|(found, _)| found);
            return Ok(if matches!(found, Ok(Found::Nothing)) {
                FileState::Gone
            } else {
                FileState::Replaced
            });
        }
        match self.connections.look() {
            Ok((Found::Linked(_), true)) => Err(file::linked(self.connections.path())),
            Ok((_, true)) => {
                self.looked.store(now, Ordering::Release);
                Ok(FileState::Same)
            }
            Ok((Found::Nothing, _)) => {
                self.retire("the database file was deleted");
                Ok(FileState::Gone)
            }
            Ok((Found::Database(_) | Found::Linked(_), _)) => {
                self.retire("the database file was replaced");
                Ok(FileState::Replaced)
            }
            // Nothing is given up for that: the file may be there, and a mount or a right be gone for a moment.
            Err(error) => Err(of_file(error, "looking at", self.connections.path())),
        }
    }

    /// Gives the database up. First all holders are notified, then the mark goes, which lets others begin.
    fn retire(&self, why: &'static str) {
        let mut holds = self.holds.lock();
        holds.retired = Some(why);
        // Before the age of the last look, so that a step that finds it too old finds the reason.
        self.looked.store(0, Ordering::Release);
        let signals = std::mem::take(&mut holds.signals);
        // A signal runs wakers and subscribers, which may come back to the database.
        drop(holds);
        for signal in signals.into_values() {
            signal.lost(why);
        }
        // Dropped last, and with it the mark: others may take the locks from here on.
        let presence = self.holds.lock().presence.take();
        drop(presence);
    }

    /// Notifies the holder of `signal` from now on when the database is lost.
    pub(super) fn granted(&self, token: Token, signal: Signal) {
        // Under one mutex with `retire`: each hold is notified by either of the two.
        let mut holds = self.holds.lock();
        let Some(why) = holds.retired else { return drop(holds.signals.insert(token, signal)) };
        drop(holds);
        signal.lost(why);
    }

    /// Returns `true` if this process and the others see by marks which processes have the database open.
    #[cfg(target_os = "linux")]
    pub(super) fn has_marks(&self) -> bool {
        self.holds.lock().presence.is_some()
    }

    pub(super) fn ended(&self, token: &Token) {
        self.holds.lock().signals.remove(token);
    }

    /// Checks that locks may be given out. They may not while others may still hold them in an earlier file, or by
    /// leases that are perhaps of this boot, under another name.
    pub(super) fn may_grant(&self, lease: Duration) -> Result<(), Failure> {
        let now = time::now();
        // Others may have taken a lock until their next look.
        let length = time::nanos(lease.max(SHORTEST_QUARANTINE) + LOOK * 2);
        let left = |since: Option<i64>| {
            let left = since?.saturating_add(length).saturating_sub(now);
            (left > 0).then(|| Duration::from_nanos(left.unsigned_abs()))
        };
        let path = self.connections.path().display();
        if let Some(left) = left(self.doubted) {
            return Err(Failure::unavailable(format!(
                "whether the machine has restarted since {path} was last open cannot be told in a container with a boot id of its own \
                 when the clock was set; locks are given out again when earlier leases have ended, in {left:.0?} at the latest"
            )));
        }
        let has_others =
            || self.holds.lock().presence.as_ref().is_some_and(|(marks, mark)| marks.has_others(*mark));
        // The marks last, and only while there is something to wait for: each look at them is a system call.
        match left(self.since) {
            Some(left) if has_others() => Err(Failure::unavailable(format!(
                "{path} replaced a database that other processes still have open; locks are given out again when they have \
                 noticed, in {left:.0?} at the latest"
            ))),
            _ => Ok(()),
        }
    }

    /// Deletes free rows whose last lease ended `older_than` ago, some at a time.
    pub(super) async fn prune(&self, older_than: Duration) -> Result<u64, Failure> {
        let mut after: Vec<u8> = Vec::new();
        let mut deleted = 0;
        loop {
            let until = Until::after(OPENING);
            // Returned after each page: an operator's request must not keep the writer from attempts for long.
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
                // Compared here, since the rows of a `DELETE ... RETURNING` come in no certain order.
                after = after.max(key);
            }
            // Each page is a statement, and so a transaction: other writers come in between.
            if rows.len() < AT_ONCE {
                return Ok(deleted);
            }
        }
    }

    /// Returns all locks that are held, in order.
    pub(super) async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        let failed = |error| unchanged(classify(error, self.connections.path()));
        let mut all = Vec::new();
        // Locks that several hold, with the number of permits. Their rows come after those of all keys.
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
                // A row with another key is not dlock's.
                let key = std::str::from_utf8(&after).ok().and_then(|key| Key::new(key).ok());
                match (key, standing) {
                    (Some(key), Standing::Held(holder)) => all.push((key, *holder)),
                    (Some(key), Standing::Shared) => {
                        shared.insert(key, None);
                    }
                    (None, Standing::Held(_) | Standing::Shared) => {
                        let Some((key, is_common)) = parse(&after) else { continue };
                        // Pages are read at different moments: the lock of this share was held by several only after
                        // its row was read.
                        let Some((key, of)) = shared.get_key_value(key) else { continue };
                        if is_common {
                            let permits = row.try_get::<i64, _>(1).map_err(failed)?;
                            let permits = u32::try_from(permits).ok().filter(|permits| *permits > 0);
                            shared.insert(key.clone(), permits);
                        } else {
                            let holder = row::share(row, [1, 3, 4], *of, now).map_err(failed)?;
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

    /// Closes the connections, after which nothing is granted or renewed here. Then the mark goes too, although handles
    /// may be left: the last connection takes the log and the lock area with it, so that the next process that opens
    /// the database finds another identity, and would wait for this mark.
    pub(super) async fn close(&self) {
        if self.connections.close().await {
            // Only if all are closed: a connection that is still open may change a lock.
            self.holds.lock().presence = None;
        }
    }

    /// Reports that nothing can be taken here.
    pub(super) fn deleted(&self) -> Failure {
        Failure::unavailable(format!(
            "{} was deleted while it was open; connect again to make a new one, or put the file back and restart",
            self.connections.path().display()
        ))
    }
}

/// The file and the boot, as the table's own row names them.
struct Noted {
    identity: Option<Vec<u8>>,
    boot: Vec<u8>,
    since: i64,
}

impl Noted {
    async fn read(writer: &mut SqliteConnection, statements: &SqliteStatements) -> Result<Self, sqlx::Error> {
        let row = sqlx::query(statements.mark.clone()).fetch_one(writer).await?;
        Ok(Self {
            identity: row.try_get("token")?,
            boot: row.try_get("boot")?,
            since: row.try_get("expires")?,
        })
    }

    fn name(&self) -> Vec<u8> {
        BootName::parse(&self.boot).name
    }

    /// Returns `true` if there are leases that would run if this were still the same boot.
    async fn may_have_leases(
        &self,
        reader: &mut SqliteConnection,
        statements: &SqliteStatements,
    ) -> Result<bool, sqlx::Error> {
        let list = sqlx::query(statements.list.clone()).bind(Vec::new()).bind(self.name()).bind(time::now());
        Ok(!list.fetch_all(reader).await?.is_empty())
    }

    /// Notes which file this is and how its boot is named, and returns since when that has been so; `None` where
    /// another process has noted something meanwhile. Writes in any case, so that a database that can only be read is
    /// found out now.
    async fn replace(
        self,
        writer: &mut SqliteConnection,
        statements: &SqliteStatements,
        identity: &Identity,
        name: &BootName,
    ) -> Result<Option<i64>, sqlx::Error> {
        let (identity, boot) = (identity.to_bytes(), name.to_bytes());
        let is_same = self.identity.as_ref() == Some(&identity) && self.name() == name.name;
        // Kept while nothing changes, since a quarantine counts from the first process that saw this file.
        let since = if is_same { self.since } else { time::now() };
        let noted = sqlx::query(statements.identify.clone())
            .bind(identity)
            .bind(boot)
            .bind(since)
            // Compared with what was read: of two processes that note something, the second begins anew.
            .bind(self.identity)
            .bind(self.boot)
            .bind(self.since)
            .execute(writer)
            .await?;
        Ok((noted.rows_affected() == 1).then_some(since))
    }
}

/// Reports why a database is not opened whose users would not see each other's leases.
fn strangers(path: &Path) -> Failure {
    Failure::unavailable(format!(
        "other processes have {} open and note another name of this boot in it than it has now (was it restored meanwhile?); stop \
         all of them, and connect again",
        path.display()
    ))
}

fn no_marks(path: &Path) -> Failure {
    Failure::invalid_config(format!(
        "no lock can be set on a file .NAME.dlock beside {}, without which processes in containers with a boot id of their own do not \
         see each other; give this process the right to write that file, or show the container the kernel's \
         /proc/sys/kernel/random/boot_id",
        path.display()
    ))
}
