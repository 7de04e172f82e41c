//! Rights that a user lacks, and those that are granted again.

use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Backend, Error, ErrorKind, Lock, Locks, Result};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlRowLocks, MysqlSessions};

use crate::support::{Db, is_error, on_both, once, take, until};

const HOUR: Duration = Duration::from_secs(3_600);

fn locks(backend: impl Backend) -> Locks {
    let locks =
        Locks::builder(backend).with_lease(Duration::from_secs(12)).with_wait(Duration::from_secs(20));
    locks.build().unwrap()
}

/// The user whose rights are changed, for the statements that change them.
fn user<D: Db>() -> &'static str {
    if D::KEY == "key" { "app" } else { "app@'%'" }
}

async fn of_user<D: Db>(db: &D) -> Locks {
    locks(D::connect(&db.url_as("app", "right")).await.unwrap())
}

/// What programs do with a lock that is held alone, and what an administrator does.
async fn alone(ours: &Locks, theirs: &Locks) -> Result<()> {
    let guard = ours.lock("a").acquire().await?;
    assert!(theirs.lock("a").try_acquire().await?.is_none());
    assert!(theirs.inspect("a").await?.is_some() && theirs.holders().await?.len() == 1);
    let waiting = theirs.lock("a");
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    tokio::task::yield_now().await;
    guard.release().await?;
    waiter.await.unwrap()?.release().await?;
    ours.lock_all(["a", "b", "c"]).acquire().await?.release().await?;
    let ran = ours.once("job").with_window(HOUR).run(async { Ok::<_, Error>(()) }).await?;
    let again = theirs.once("job").with_window(HOUR).run(async { Ok::<_, Error>(()) }).await?;
    assert!(ran.ran().is_some() && again.is_skipped());
    let baton = ours.lock("a").acquire().await?.hand_over().await?;
    theirs.take_over(&baton).await?.release().await?;
    let forced = ours.lock("a").acquire().await?;
    assert!(theirs.force_release("a").await?);
    drop(forced);
    ours.ping().await
}

/// What shares a lock, or waits in line for it.
async fn shared<D: Db>(db: &D, ours: &Locks, theirs: &Locks) -> Result<()> {
    let reader = ours.lock("r").read().acquire().await?;
    theirs.lock("r").read().acquire().await?.release().await?;
    let baton = reader.hand_over().await?;
    theirs.take_over(&baton).await?.release().await?;
    let permits = ours.semaphore("s", 3).take(2).acquire().await?;
    theirs.resize_semaphore("s", 4).await?;
    assert_eq!(theirs.occupancy("s").await?.holders.len(), 1);
    permits.release().await?;
    let mut writer = ours.lock("r").acquire().await?;
    writer.downgrade().await?;
    assert_eq!(writer.mode(), Mode::Shared);
    writer.release().await?;
    let held = ours.lock("l").with_fairness(true).acquire().await?;
    let rows = || db.query("SELECT count(*) FROM dlock");
    let before = rows();
    let waiting = theirs.lock("l").with_fairness(true);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    until("the waiter's place", || rows() != before).await;
    held.release().await?;
    waiter.await.unwrap()?.release().await
}

on_both! {
    async fn the_documented_rights_are_enough_for_each_use_and_without_deletion_all_others_are_denied<D: Db>(db: D) {
        db.backend().await;
        db.make_user("app", "SELECT, INSERT, UPDATE");
        let (ours, theirs) = (of_user(&db).await, of_user(&db).await);
        alone(&ours, &theirs).await.unwrap();
        let names_it = |refused: Result<()>| drop(is_error(refused, ErrorKind::Denied, &["DELETE"]));
        names_it(once(&ours, "r").read().acquire().await.map(drop));
        names_it(ours.semaphore("s", 2).acquire().await.map(drop));
        let held = ours.lock("l").with_fairness(true).acquire().await.unwrap();
        names_it(theirs.lock("l").with_fairness(true).acquire().await.map(drop));
        held.release().await.unwrap();
        db.query(&format!("GRANT DELETE ON dlock TO {}", user::<D>()));
        shared(&db, &ours, &theirs).await.unwrap();
        D::prune(&D::connect(&db.url_as("app", "right")).await.unwrap(), Duration::ZERO).await.unwrap();
    }

    async fn a_downgrade_that_is_denied_leaves_the_lock_as_it_was<D: Db>(db: D) {
        db.backend().await;
        db.make_user("app", "SELECT, INSERT, UPDATE");
        let (ours, theirs) = (of_user(&db).await, of_user(&db).await);
        let mut guard = take(&ours, "a").await;
        is_error(guard.downgrade().await, ErrorKind::Denied, &["DELETE"]);
        let renewals = ours.stats().renewals;
        until("renewals", || ours.stats().renewals >= renewals + 2).await;
        guard.check().unwrap();
        is_error(once(&theirs, "a").acquire().await, ErrorKind::Busy, &[]);
        guard.release().await.unwrap();
        assert_eq!((db.held(), ours.stats().failed_renewals, ours.stats().lost), (0, 0, 0));

        let mut guard = take(&ours, "a").await;
        is_error(guard.downgrade().await, ErrorKind::Denied, &["DELETE"]);
        db.query(&format!("GRANT DELETE ON dlock TO {}", user::<D>()));
        let reads = |locks: &Locks| locks.lock("a").read().with_wait(Duration::from_secs(60));
        let other = reads(&theirs).acquire().await.unwrap();
        guard.check().unwrap();
        guard.release().await.unwrap();
        other.release().await.unwrap();
    }
}

/// MariaDB remembers for a connection which rights its user had on the database when it was entered, and on all
/// databases when it was opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_on_a_whole_database_and_on_all_that_are_given_back_are_found_by_connections_of_before() {
    let db = <MysqlServer as Db>::start();
    db.backend().await;
    let database = db.query("SELECT DATABASE()");
    for on in [format!("`{}`.*", database.trim()), "*.*".to_owned()] {
        let change =
            |change: &str| db.query(&format!("{} app@'%'", change.replace("ON", &format!("ON {on}"))));
        db.query("CREATE USER app@'%' IDENTIFIED BY 'right'");
        change("GRANT SELECT, INSERT, UPDATE ON TO");
        let url = db.url_as("app", "right");
        let rows = of_user(&db).await;
        let sessions = locks(MysqlSessions::connect(&url).await.unwrap());
        let locked_rows = locks(MysqlRowLocks::connect(&url).await.unwrap());
        let read = |locks: &Locks| once(locks, "read").read();
        let new = |number: usize, locks: &Locks| once(locks, &format!("new {number} by {on}"));
        let refused = async |lock: Lock| {
            is_error(lock.acquire().await, ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE"]);
        };
        refused(read(&rows)).await;
        change("GRANT DELETE ON TO");
        until_granted(&on, || read(&rows)).await;
        for (number, locks) in [&rows, &sessions, &locked_rows].into_iter().enumerate() {
            change("REVOKE INSERT ON FROM");
            db.disconnect_all();
            let _ = once(locks, "before").acquire().await;
            refused(new(number, locks)).await;
            refused(new(number, locks)).await;
            change("GRANT INSERT ON TO");
            until_granted(&on, || new(number, locks)).await;
        }
        db.query("DROP USER app@'%'");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_user_has_no_rights_any_more_refuses_what_is_new_and_keeps_what_it_holds() {
    let db = <MysqlServer as Db>::start();
    db.backend().await;
    db.make_user("app", "SELECT, INSERT, UPDATE");
    let sessions = locks(MysqlSessions::connect(&db.url_as("app", "right")).await.unwrap());
    let guard = take(&sessions, "kept").await;
    // Without any right to it the database cannot be entered either.
    db.query("REVOKE SELECT, INSERT, UPDATE ON dlock FROM app@'%'");
    let refused = once(&sessions, "new").acquire().await;
    is_error(refused, ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE"]);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Rights on the database count at once; a connection that knows nothing of those on all is replaced.
async fn until_granted(on: &str, lock: impl Fn() -> Lock) {
    let mut refusals = 0;
    while let Err(error) = lock().acquire().await {
        assert!(error.kind() == ErrorKind::Denied && on == "*.*" && refusals < 9, "{on}: {error}");
        refusals += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_connect_to_the_database_learns_which_right_is_missing() {
    let db = <PostgresServer as Db>::start();
    db.backend().await;
    db.make_user("app", "SELECT, INSERT, UPDATE");
    let locks = of_user(&db).await;
    db.query("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC");
    db.disconnect_all();
    let connected = <PostgresServer as Db>::connect(&db.url_as("app", "right")).await;
    let error = is_error(connected, ErrorKind::Denied, &["GRANT CONNECT ON DATABASE"]);
    assert!(!error.to_string().contains("GRANT SELECT"), "{error}");
    let mut campaign = locks.election("leader").campaign();
    let candidate = tokio::spawn(async move { campaign.next().await.is_some() });
    until("a refusal", || db.output().matches("permission denied for database").count() > 2).await;
    db.query("GRANT CONNECT ON DATABASE postgres TO PUBLIC");
    assert!(candidate.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_whom_mariadb_blocks_for_wrong_passwords_is_denied_and_leads_once_it_is_let_in() {
    let db = <MysqlServer as Db>::start();
    db.backend().await;
    db.make_user("app", "SELECT, INSERT, UPDATE");
    let locks = of_user(&db).await;
    db.query("SET GLOBAL max_password_errors = 1");
    let wrong = <MysqlServer as Db>::connect(&db.url_as("app", "wrong")).await;
    is_error(wrong, ErrorKind::Denied, &["refused the user or the password"]);
    let blocked = <MysqlServer as Db>::connect(&db.url_as("app", "right")).await;
    is_error(blocked, ErrorKind::Denied, &["refused the user or the password", "FLUSH PRIVILEGES"]);
    db.disconnect_all();
    let mut campaign = locks.election("leader").campaign();
    let candidate = tokio::spawn(async move { campaign.next().await.is_some() });
    let _ = once(&locks, "a").acquire().await;
    is_error(once(&locks, "a").acquire().await, ErrorKind::Denied, &[]);
    db.query("FLUSH PRIVILEGES");
    assert!(candidate.await.unwrap());
}
