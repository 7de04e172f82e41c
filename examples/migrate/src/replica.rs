//! What one replica does before it serves anybody.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};
use dlock::Wait;
use sqlx::any::AnyPoolOptions;

use crate::{Service, millis, schema};

/// Makes the schema the newest one, or waits until another replica has.
pub(crate) async fn start(service: &Service) -> Result<()> {
    let (Some(database), Some(locks)) = (&service.database, &service.locks) else {
        unreachable!("a replica is given both");
    };
    sqlx::any::install_default_drivers();
    let pool = AnyPoolOptions::new().max_connections(1).connect_lazy(database).context("--database")?;
    let locks = dlock::connect(locks).await?;
    let lock = locks
        .lock("shop_schema")
        .with_lease(millis(service.lease))
        // Longer than all migrations take, and a lease for each replica that may die meanwhile.
        .with_wait(Wait::For(Duration::from_secs(60)));

    println!("waits for its turn");
    // A lock that is lost ends the migration, whose transaction is then rolled back.
    let applied = lock.run(migrate(&pool, database)).await??;
    println!("ready, after {applied} migrations of its own");
    pool.close().await;
    if let Err(late) = locks.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}");
    }
    Ok(())
}

/// Applies what is missing, one migration after the other, and returns how many these were.
async fn migrate(pool: &sqlx::AnyPool, database: &str) -> Result<usize> {
    let migrator = schema::migrator(database);
    // There is no version 0: this makes the table of migrations, if there is none.
    migrator.run_to(0, pool).await?;
    let done: Vec<(i64,)> =
        sqlx::query_as("SELECT version FROM _sqlx_migrations WHERE success").fetch_all(pool).await?;
    let done: HashSet<i64> = done.into_iter().map(|(version,)| version).collect();
    let mut applied = 0;
    for migration in migrator.iter().filter(|migration| !done.contains(&migration.version)) {
        let (version, what) = (migration.version, &migration.description);
        println!("applies {version} ({what})");
        migrator.run_to(version, pool).await?;
        println!("applied {version} ({what})");
        applied += 1;
    }
    Ok(applied)
}
