//! Locks that are handed over: what the row keeps for those who wait, and what nobody takes over.

use sqlx::Row;

use crate::carried;
use crate::support::Site;

#[tokio::test]
async fn whoever_took_a_lock_over_is_told_of_those_who_wait_since_before() {
    let site = Site::new();
    let marks = "SELECT count(*) FROM dlock WHERE holder LIKE '% awaited'";
    let is_marked = async || site.number(marks).await == 1;
    let backends = (site.backend().await, site.backend().await);
    carried::whoever_took_a_lock_over_is_told_of_those_who_wait_since_before(backends, is_marked).await;
}

#[tokio::test]
async fn what_was_left_ends_at_the_earliest_time_that_was_asked_for() {
    let site = Site::new();
    carried::what_was_left_ends_at_the_earliest_time_that_was_asked_for(site.backend().await).await;
}

#[tokio::test]
async fn nothing_but_what_was_left_is_taken_over() {
    let site = Site::new();
    let all = "SELECT group_concat(concat_ws(' ', hex(key), hex(token), fence, hex(boot), expires, holder) ORDER BY key) FROM dlock";
    let rows = async || sqlx::query(all).fetch_one(&mut site.raw().await).await.unwrap().get::<String, _>(0);
    carried::nothing_but_what_was_left_is_taken_over(site.backend().await, rows).await;
}
