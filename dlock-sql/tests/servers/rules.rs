//! The statements against the rules of who may hold a lock: the same steps at the same times have the same answers.

#![expect(clippy::future_not_send, reason = "a test awaits it where it was made")]

use dlock_rig::rules::compare_histories;

use crate::support::{Db, on_stepped};

on_stepped! {
    async fn random_histories_have_the_answers_of_the_rules<D: Db>(db: D) {
        compare_histories(&db.backend().await, db.clock(), 2_000).await;
    }
}
