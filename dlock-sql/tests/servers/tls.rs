//! TLS with an authority of one's own.

use dlock_core::{ErrorKind, Locks};

use crate::support::{Db, is_error, on_both_kinds, take};

/// The URL with another host.
fn at(url: &str, host: &str) -> String {
    url.replace("localhost", host)
}

/// The URL without the authority.
fn without_authority(url: &str) -> String {
    url.split_once("sslrootcert=")
        .or_else(|| url.split_once("ssl-ca="))
        .map(|(front, _)| front.trim_end_matches('&').to_owned())
        .unwrap()
}

on_both_kinds! {
    async fn a_server_that_proves_who_it_is_is_trusted<D: Db>() {
        let db = D::start_with_tls();
        db.backend().await;
        let locks = Locks::new(D::connect(&db.tls_url()).await.unwrap());
        let guard = take(&locks, "a").await;
        assert_eq!(db.held(), 1);
        guard.release().await.unwrap();
    }

    async fn a_server_that_does_not_prove_who_it_is_is_refused<D: Db>() {
        let db = D::start_with_tls();
        db.backend().await;
        let url = db.tls_url();
        // An authority that nobody trusts, and a certificate for another name.
        is_error(D::connect(&without_authority(&url)).await, ErrorKind::InvalidConfig, &["TLS", "certificate"]);
        is_error(D::connect(&at(&url, "127.0.0.1")).await, ErrorKind::InvalidConfig, &["TLS", "certificate"]);
    }

    async fn a_server_without_tls_is_refused_where_it_is_wanted<D: Db>() {
        let db = D::start();
        db.backend().await;
        let plain = db.url();
        let plain = plain.split_once('?').map_or(&*plain, |(front, _)| front);
        let mode = if D::KEY == "key" { "sslmode=require" } else { "ssl-mode=required" };
        is_error(D::connect(&format!("{plain}?{mode}")).await, ErrorKind::InvalidConfig, &["TLS"]);
    }
}
