//! Locks that are handed over: what the row keeps for those who wait, and what nobody takes over.

use sqlx::Row;

use crate::carried;
use crate::support::{MARK_OF_WAITERS, Site};

#[tokio::test]
async fn whoever_took_a_lock_over_is_told_of_those_who_wait_since_before() {
    let site = Site::new();
    let is_marked = async || site.number(MARK_OF_WAITERS).await == 1;
    let backends = (site.backend().await, site.backend().await);
    carried::whoever_took_a_lock_over_is_told_of_those_who_wait_since_before(backends, is_marked).await;
}

#[tokio::test]
async fn what_was_left_ends_at_the_earliest_time_that_was_asked_for() {
    let site = Site::new();
    carried::what_was_left_ends_at_the_earliest_time_that_was_asked_for(site.backend().await).await;
}

/// All that is stored.
async fn rows(site: &Site) -> String {
    let all = "SELECT group_concat(concat_ws(' ', hex(key), hex(token), fence, hex(boot), expires, holder) ORDER BY key) FROM dlock";
    sqlx::query(all).fetch_one(&mut site.raw().await).await.unwrap().get(0)
}

#[tokio::test]
async fn nothing_but_what_was_left_is_taken_over() {
    let site = Site::new();
    carried::nothing_but_what_was_left_is_taken_over(site.backend().await, async || rows(&site).await).await;
}

#[tokio::test]
async fn a_late_request_for_a_share_changes_nothing() {
    let site = Site::new();
    carried::a_late_request_for_a_share_changes_nothing(site.backend().await, async || rows(&site).await)
        .await;
}

#[tokio::test]
async fn who_stands_in_line_behind_a_reader_comes_after_the_taker_or_the_end_of_the_baton() {
    let site = Site::new();
    let backend = site.backend().await;
    carried::who_stands_in_line_behind_a_reader_comes_after_the_taker_or_the_end_of_the_baton(backend).await;
}
