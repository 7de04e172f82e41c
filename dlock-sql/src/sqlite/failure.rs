//! The meaning of an error of SQLite for a lock: whether something was changed, and how the user can mend it.

use std::path::Path;

use dlock_core::Failure;
use sqlx::error::DatabaseError;

/// Returns the primary result code, and the extended one it comes from.
fn code(error: &dyn DatabaseError) -> Option<(i32, i32)> {
    let extended: i32 = error.code()?.parse().ok()?;
    Some((extended & 0xff, extended))
}

/// Returns `true` if another connection was in the way, and nothing was changed: worth another try at once.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL (a race at the start of a transaction).
    matches!(error, sqlx::Error::Database(error) if matches!(code(&**error), Some((5 | 6 | 15, _))))
}

/// Makes the failure of one statement, or of opening the database at `path`.
pub(super) fn classify(error: sqlx::Error, path: &Path) -> Failure {
    let path = path.display();
    let failure = match &error {
        sqlx::Error::Database(database) => match code(&**database) {
            // The statement waited for its turn and ended without one.
            Some((5 | 6 | 15, _)) => {
                Failure::unavailable(format!("other processes keep {path} busy; it is tried again"))
            }
            Some((13, _)) => Failure::unavailable(format!("the disk under {path} is full; make room on it")),
            Some((7, _)) => Failure::unavailable("SQLite is out of memory"),
            Some((8, _)) => Failure::denied(format!(
                "{path} cannot be written; give this process the right to write the file and its directory"
            )),
            Some((3 | 23, _)) => {
                Failure::denied(format!("this process has no right to {path}; give it read and write access"))
            }
            Some((14, _)) => Failure::denied(format!(
                "{path} cannot be opened; SQLite needs the right to write the file and to make files beside it"
            )),
            Some((11, _)) => Failure::invalid_config(format!(
                "{path} is damaged; stop all its users, then restore it or delete it together with its -wal and -shm \
                 files"
            )),
            Some((26, _)) => Failure::invalid_config(format!(
                "{path} is not a SQLite database; give the path of one, or of a file that does not exist yet"
            )),
            // A whole number that was counted above the last one is no whole number any more.
            Some((_, 3091)) => Failure::invalid_config(format!(
                "a fence in {path} has come to the end of its numbers (was the clock or a row set by hand?), and none is given twice; \
                 stop all users of the key and what checks its fences, and set `fence` of its row, or of the row of the empty key, to \
                 the time in microseconds"
            )),
            // Refused before anything was done: a table, column or mark is missing.
            Some((1 | 19 | 20, _)) => Failure::invalid_config(format!(
                "the lock table in {path} is not as it was made; migrate it again"
            )),
            // Reading or writing failed underneath SQLite; it is not known here what had been written by then.
            Some((10, _)) => {
                Failure::unknown(format!("the disk under {path} failed; check its space and health"))
            }
            _ => Failure::unknown(format!("a statement on {path} failed")),
        },
        // Before the file is looked at, the driver starts a thread.
        sqlx::Error::Io(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => Failure::unavailable(
            format!("no thread for the connection to {path} could be started; try again"),
        ),
        sqlx::Error::Io(_) => Failure::unavailable(format!("{path} cannot be opened")),
        sqlx::Error::WorkerCrashed => Failure::unknown(format!("the connection to {path} broke")),
        _ => Failure::unknown(format!("a statement on {path} failed")),
    };
    failure.with_source(error)
}

/// Makes the failure of looking at a file or making it.
pub(super) fn of_file(error: std::io::Error, doing: &str, path: &Path) -> Failure {
    use std::io::ErrorKind as Io;
    let what = format!("{doing} {}", path.display());
    let failure = match error.kind() {
        Io::PermissionDenied => Failure::denied(format!("no right of {what}; give this process access")),
        Io::ReadOnlyFilesystem => {
            Failure::denied(format!("{what} is not possible on a read-only file system"))
        }
        Io::NotFound => Failure::invalid_config(format!("{what} failed; make its directory first")),
        Io::NotADirectory | Io::IsADirectory | Io::InvalidFilename => {
            Failure::invalid_config(format!("{what} failed; give the path of a file"))
        }
        Io::StorageFull | Io::QuotaExceeded => {
            Failure::unavailable(format!("{what} failed; make room on the disk"))
        }
        _ => Failure::unavailable(format!("{what} failed")),
    };
    failure.with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;
    use sqlx::ConnectOptions;
    use sqlx::sqlite::SqliteConnectOptions;

    #[tokio::test]
    async fn a_full_database_changed_nothing_and_asks_for_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let mut connection = options.pragma("max_page_count", "3").connect().await.unwrap();
        let statement = "CREATE TABLE a (b); INSERT INTO a VALUES (zeroblob(20000))";
        let error = sqlx::raw_sql(statement).execute(&mut connection).await.unwrap_err();
        let failure = classify(error, &path);
        assert_eq!(failure.kind(), ErrorKind::Unavailable);
        assert!(failure.message().contains("make room"), "{failure}");
    }

    #[tokio::test]
    async fn a_database_that_is_busy_changed_nothing_and_is_worth_another_try() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let options = options.busy_timeout(std::time::Duration::ZERO);
        let (mut one, mut two) = (options.connect().await.unwrap(), options.connect().await.unwrap());
        sqlx::raw_sql("CREATE TABLE a (b); BEGIN IMMEDIATE").execute(&mut one).await.unwrap();
        let error = sqlx::raw_sql("INSERT INTO a VALUES (1)").execute(&mut two).await.unwrap_err();
        assert!(is_busy(&error));
        assert_eq!(classify(error, &path).kind(), ErrorKind::Unavailable);
        let error = sqlx::raw_sql("SELECT * FROM nothing").execute(&mut two).await.unwrap_err();
        assert!(!is_busy(&error));
        assert_eq!(classify(error, &path).kind(), ErrorKind::InvalidConfig);
    }
}
