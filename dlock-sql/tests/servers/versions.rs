//! Earlier statements beside this version's, on one table. They are those of dlock before fences of sections and the
//! notice to waiters on MariaDB; whoever changes what is stored sees here whom it keeps out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::Locks;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::sqlx::{self, Connection, MySqlConnection, PgConnection, Row};

use crate::support::Db;

const LEASE_MICROS: i64 = 2_000_000;
/// How many sections each side has to have.
const SECTIONS: u64 = 60;
const HOLDER: &str = "host=earlier pid=1";

/// What both sides enter.
#[derive(Default)]
struct Section {
    inside: AtomicU64,
    /// The fence of the last one that was inside.
    last: AtomicU64,
    ends: AtomicBool,
}

impl Section {
    async fn enter(&self, fence: u64) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
        let last = self.last.swap(fence, Ordering::SeqCst);
        assert!(last < fence, "{fence} after {last}");
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The statements of an earlier version.
trait Earlier: Db {
    type Connection: Connection + Send;

    fn open(url: &str) -> impl Future<Output = Self::Connection> + Send;
    /// The fence, if it is granted.
    fn take(on: &mut Self::Connection, token: &[u8; 16]) -> impl Future<Output = Option<u64>> + Send;
    /// Whether it was its own.
    fn renew(on: &mut Self::Connection, token: &[u8; 16]) -> impl Future<Output = bool> + Send;
    fn release(on: &mut Self::Connection, token: &[u8; 16]) -> impl Future<Output = bool> + Send;
}

impl Earlier for PostgresServer {
    type Connection = PgConnection;

    async fn open(url: &str) -> PgConnection {
        PgConnection::connect(url).await.unwrap()
    }

    async fn take(on: &mut PgConnection, token: &[u8; 16]) -> Option<u64> {
        let take = r#"WITH seen AS MATERIALIZED (
                SELECT token, fence, expires, holder FROM "dlock" WHERE key = $1::bytea
            ), taken AS (
                INSERT INTO "dlock" AS held (key, token, fence, expires, holder)
                SELECT $1, $2::bytea, greatest((extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
                    (SELECT fence + 1 FROM "dlock" WHERE key = '')),
                    clock_timestamp() + $3::bigint * interval '1 microsecond', $4::text
                WHERE NOT EXISTS (SELECT FROM seen
                    WHERE token IS NOT NULL AND expires > clock_timestamp() AND token <> $2)
                ON CONFLICT (key) DO UPDATE SET
                    fence = CASE WHEN held.token = excluded.token AND held.expires > clock_timestamp()
                        THEN held.fence ELSE greatest(held.fence + 1, excluded.fence) END,
                    token = excluded.token, expires = excluded.expires, holder = excluded.holder,
                    awaited = held.awaited AND held.token IS NOT NULL
                WHERE held.token IS NULL OR held.token = excluded.token OR held.expires <= clock_timestamp()
                RETURNING fence
            )
            SELECT fence FROM taken"#;
        let taken = sqlx::query(take).bind(&b"k"[..]).bind(&token[..]).bind(LEASE_MICROS).bind(HOLDER);
        let row = taken.fetch_optional(on).await.unwrap();
        row.map(|row| u64::try_from(row.get::<i64, _>(0)).unwrap())
    }

    async fn renew(on: &mut PgConnection, token: &[u8; 16]) -> bool {
        let renew = r#"WITH listed AS (
                SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[]) WITH ORDINALITY
                    AS listed (key, token, lease, place)
            )
            UPDATE "dlock" AS held SET expires = clock_timestamp() + listed.lease * interval '1 microsecond'
            FROM listed
            WHERE held.key = listed.key AND held.token = listed.token AND held.expires > clock_timestamp()
            RETURNING listed.place"#;
        let renewed = sqlx::query(renew).bind(vec![b"k".to_vec()]).bind(vec![token.to_vec()]);
        renewed.bind(vec![LEASE_MICROS]).fetch_optional(on).await.unwrap().is_some()
    }

    async fn release(on: &mut PgConnection, token: &[u8; 16]) -> bool {
        let release = r#"WITH freed AS (
                UPDATE "dlock" SET token = NULL WHERE key = $1::bytea AND token = $2::bytea
                RETURNING expires > clock_timestamp() AS running, awaited
            )
            SELECT running, CASE WHEN awaited THEN pg_notify($3::text, '') END FROM freed"#;
        // FNV-1a of the table and the key.
        let channel = b"dlock\0k".iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let released = sqlx::query(release).bind(&b"k"[..]).bind(&token[..]);
        let row = released.bind(format!("dlock_{channel:016x}")).fetch_optional(on).await.unwrap();
        row.is_some_and(|row| row.get(0))
    }
}

const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

fn with_now(statement: &str) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(statement.replace("{NOW}", NOW))
}

impl Earlier for MysqlServer {
    type Connection = MySqlConnection;

    async fn open(url: &str) -> MySqlConnection {
        MySqlConnection::connect(url).await.unwrap()
    }

    /// The row is there.
    async fn take(on: &mut MySqlConnection, token: &[u8; 16]) -> Option<u64> {
        let take = "UPDATE `dlock` SET
                fence = LAST_INSERT_ID(IF(token = ? AND expires > {NOW}, fence, GREATEST(fence + 1, {NOW}))),
                token = ?, expires = {NOW} + ?, holder = ?
            WHERE `key` = ? AND (token IS NULL OR token = ? OR expires <= {NOW}) AND @@SESSION.autocommit";
        let token = &token[..];
        let taken = sqlx::query(with_now(take)).bind(token).bind(token).bind(LEASE_MICROS).bind(HOLDER);
        let done = taken.bind(&b"k"[..]).bind(token).execute(on).await.unwrap();
        (done.rows_affected() == 1).then_some(done.last_insert_id())
    }

    async fn renew(on: &mut MySqlConnection, token: &[u8; 16]) -> bool {
        let renew =
            "UPDATE `dlock` SET expires = {NOW} + ? WHERE `key` IN (?) AND token IN (?) AND expires > {NOW}";
        let renewed = sqlx::query(with_now(renew)).bind(LEASE_MICROS).bind(&b"k"[..]).bind(&token[..]);
        renewed.execute(on).await.unwrap().rows_affected() == 1
    }

    async fn release(on: &mut MySqlConnection, token: &[u8; 16]) -> bool {
        let release = "UPDATE `dlock` SET token = IF(LAST_INSERT_ID(expires > {NOW}) > 1, token, NULL)
            WHERE `key` = ? AND token = ?";
        let released =
            sqlx::query(with_now(release)).bind(&b"k"[..]).bind(&token[..]).execute(on).await.unwrap();
        released.rows_affected() == 1 && released.last_insert_id() == 1
    }
}

async fn earlier<D: Earlier>(url: String, number: u8, section: Arc<Section>, done: Arc<AtomicU64>) {
    let mut on = D::open(&url).await;
    for round in 0_u64.. {
        if section.ends.load(Ordering::SeqCst) {
            return;
        }
        let mut token = [number; 16];
        token[8..].copy_from_slice(&round.to_be_bytes());
        let Some(fence) = D::take(&mut on, &token).await else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        section.enter(fence).await;
        assert!(D::renew(&mut on, &token).await, "it is still its own");
        assert!(D::release(&mut on, &token).await, "it was its own");
        done.fetch_add(1, Ordering::SeqCst);
        // Whoever asks at once would leave nobody else a chance.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn todays(locks: Locks, section: Arc<Section>, done: Arc<AtomicU64>) {
    while !section.ends.load(Ordering::SeqCst) {
        let guard = locks.lock("k").with_wait(Duration::from_secs(30)).acquire().await.unwrap();
        section.enter(guard.fence().unwrap().get()).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        done.fetch_add(1, Ordering::SeqCst);
    }
}

async fn exclude_each_other<D: Earlier>() {
    let db = <D as Db>::start();
    // The columns that the earlier version made are those of today.
    Locks::new(db.backend().await).lock("k").acquire().await.unwrap().release().await.unwrap();
    let (section, old, new) = (Arc::new(Section::default()), Arc::default(), Arc::default());
    let mut tasks = Vec::new();
    for number in 1..=3 {
        let (of_old, of_new) = (Arc::clone(&section), Arc::clone(&section));
        tasks.push(tokio::spawn(earlier::<D>(db.url(), number, of_old, Arc::clone(&old))));
        let locks = Locks::new(D::connect(&db.url()).await.unwrap());
        tasks.push(tokio::spawn(todays(locks, of_new, Arc::clone(&new))));
    }
    let both = || old.load(Ordering::SeqCst).min(new.load(Ordering::SeqCst));
    while both() < SECTIONS && !tasks.iter().any(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    section.ends.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(db.held(), 0, "something was left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_statements_and_todays_exclude_each_other_on_postgresql_with_fences_that_grow() {
    exclude_each_other::<PostgresServer>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_statements_and_todays_exclude_each_other_on_mariadb_with_fences_that_grow() {
    exclude_each_other::<MysqlServer>().await;
}
