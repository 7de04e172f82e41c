//! Requests about leases, and the proof that one was renewed.
//!
//! A leader that was deposed and has not noticed still answers keep-alives (etcd 3.4 does not look), although its
//! answer is worth nothing: the lease runs by the clock of the new leader, from its election on. So a keep-alive counts
//! only together with a request that needs a majority, sent in the same step, and only if both answers have the same
//! term:
//!
//! * The server that answers the keep-alive writes its own term T into the answer before it has the lease renewed. So
//!   the leader that renewed it is one of T or of a later term.
//! * The other answer has the term T too. So a majority was still at T or below when it was carried out, which is after
//!   the step began: no leader of a later term had been elected before that.
//! * If the leader of T renewed the lease, it did so after the step began. Any later leader is elected after the step
//!   began, and lets all leases run in full from its election on.
//!
//! So the lease runs in full from the beginning of the step. A grant of a lease needs a majority by itself.
//!
//! | the transaction | the keep-alives | [`prove`] | the attempts that may put |
//! |---|---|---|---|
//! | answered | answered, all with its term | returns the answer; the leases are proven | are answered |
//! | answered | answered, one with another term | unknown; other streams are opened for the next | are over, unread |
//! | answered | failed | the lease is gone, or unknown | are over, unread |
//! | failed, and certainly changed nothing | any | that failure | took nothing |
//! | failed | any | that failure | are in flight |
//!
//! A proof counts for what comes soon after it too: an acquire under a lease of the pool that was proven within the
//! last eighth of its length asks for none, and its grant counts from that proof. So sections that follow each other
//! cost two transactions each.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{InFlight, by_then};
use dlock_core::{Clock, Failure};
use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp, TxnResponse};
use futures_util::future::try_join_all;

use crate::error::{LEASE_GONE, failure, is_nothing, lease_gone};
use crate::lease::Lease;
use crate::semaphore::{self, Number};
use crate::servers::{Servers, kv};

/// The attempts of a claim that may still put its key.
#[derive(Default)]
pub(crate) struct Flight {
    pub(crate) account: InFlight<(u64, i64)>,
    /// The number of the last attempt, and its lease.
    pub(crate) way: (u64, i64),
}

impl Flight {
    pub(crate) fn begin(&mut self) {
        self.way.0 += 1;
        self.account.begin(self.way);
    }
}

/// Carries out a transaction, together with the proof that these leases run in full from now on. Each of `flights` has
/// a key that it may put.
pub(crate) async fn prove(
    servers: &Servers,
    limit: Duration,
    txn: Txn,
    mut leases: Vec<&mut Lease>,
    mut flights: Vec<&mut Flight>,
) -> Result<TxnResponse, Failure> {
    // Where no server is reached, none begins.
    let before: Vec<u64> = flights.iter().map(|flight| flight.way.0).collect();
    let sent = Clock::system().now();
    let asked = servers.ask(limit, |client| {
        // In the closure, and so once for each server that is asked: each copy of the request may arrive by itself.
        flights.iter_mut().for_each(|flight| flight.begin());
        let txn = txn.clone();
        async move { kv(&client).txn(txn).await }
    });
    let kept = try_join_all(leases.iter_mut().map(|lease| servers.keep_alive(lease, limit)));
    // Sent together, and both waited for: the proof needs the two answers of one step.
    let (answer, kept) = tokio::join!(asked, kept);
    // etcd sends a header with each answer, and its terms begin with 1.
    let term = answer.as_ref().ok().and_then(TxnResponse::header).map_or(0, |header| header.raft_term());
    let is_proven = term > 0 && kept.as_ref().is_ok_and(|terms| terms.iter().all(|other| *other == term));
    for (Flight { account, way }, before) in flights.into_iter().zip(before) {
        match &answer {
            Ok(_) if is_proven => account.answered(way),
            // It was carried out, and nobody looks at what it says.
            Ok(_) => account.over_if(|other| other == way),
            Err(failure) if way.0 > before && is_nothing(failure) => account.took_nothing(way),
            Err(_) => {}
        }
    }
    // Only now, when the account of each attempt is settled: an error must not leave one in flight that was answered.
    let answer = answer?;
    match kept {
        Ok(_) if is_proven => {
            leases.iter_mut().for_each(|lease| lease.proven_at = Some(sent));
            Ok(answer)
        }
        Ok(_) => {
            // The next keep-alive goes where the next transaction goes.
            leases.iter_mut().for_each(|lease| lease.stream = None);
            Err(Failure::unknown("the servers elected another leader meanwhile"))
        }
        // The caller takes another lease: what was put under this one is gone with it.
        Err(failure) if failure.kind() == LEASE_GONE => Err(failure),
        // The transaction was carried out.
        Err(failure) => Err(Failure::unknown(failure.message().to_owned())),
    }
}

impl Servers {
    /// Takes a lease from the pool, or has one made. Returns whether it was made, so that it runs in full from now on.
    pub(crate) async fn lease(&self, ttl: i64, limit: Duration) -> Result<(Lease, bool), Failure> {
        match self.pool.take(ttl) {
            Some(lease) => Ok((lease, false)),
            None => Ok((self.grant(ttl, limit).await?, true)),
        }
    }

    pub(crate) async fn grant(&self, ttl: i64, limit: Duration) -> Result<Lease, Failure> {
        // Before the send: the lease runs on the servers from a later moment.
        let sent = Clock::system().now();
        let granted =
            self.ask(limit, |client| async move { client.lease_client().grant(ttl, None).await }).await?;
        // The servers may raise it to their least length. A shorter one would end before the local deadline of its
        // claim.
        if granted.ttl() < ttl {
            return Err(Failure::invalid_config(format!("the servers grant {} s of {ttl} s", granted.ttl())));
        }
        Ok(Lease { id: granted.id(), ttl, proven_at: Some(sent), stream: None })
    }

    /// Renews a lease, and returns the term of the server that answered.
    ///
    /// # Errors
    ///
    /// [`LEASE_GONE`] when the lease has ended.
    pub(crate) async fn keep_alive(&self, lease: &mut Lease, limit: Duration) -> Result<u64, Failure> {
        let id = lease.id;
        let keeping = async {
            loop {
                // Taken out, and returned only with an answer: if this is dropped in an await, the stream ends with it.
                let open = lease.stream.take();
                let was_open = open.is_some();
                let (mut keeper, mut answers, place) = match open {
                    Some((keeper, answers, place)) => (keeper, answers, Some(place)),
                    // The library reads the first answer, and does not show it.
                    None => {
                        let opening = self
                            .ask(limit, |client| async move { client.lease_client().keep_alive(id).await });
                        let (keeper, answers) = opening.await?;
                        (keeper, answers, None)
                    }
                };
                let asked = async {
                    keeper.keep_alive().await?;
                    answers.message().await
                };
                match asked.await {
                    // The servers answer for a lease that is not there as well, with a length of zero.
                    Ok(Some(answer)) if answer.ttl() <= 0 => return Err(lease_gone()),
                    Ok(Some(answer)) if answer.ttl() >= lease.ttl => {
                        // Without a place the stream is dropped here, and the next keep-alive opens another one.
                        let place = place.or_else(|| Arc::clone(&self.streams).try_acquire_owned().ok());
                        lease.stream = place.map(|place| (keeper, answers, place));
                        return Ok(answer.header().map_or(0, |header| header.raft_term()));
                    }
                    // The connection of an open stream may be an old one.
                    Ok(None) | Err(_) if was_open => {}
                    Err(error) => return Err(failure(error)),
                    Ok(_) => return Err(Failure::unknown("the lease was not renewed in full")),
                }
            }
        };
        by_then(tokio::time::Instant::now() + limit, keeping)
            .await
            .unwrap_or_else(|| Err(Failure::unknown("no answer to a keep-alive")))
    }

    /// Ends a lease, with all keys under it. Nothing that is put under it later is stored.
    pub(crate) async fn revoke(&self, id: i64, limit: Duration) -> Result<(), Failure> {
        match self.ask(limit, |client| async move { client.lease_client().revoke(id).await }).await {
            // A lease that is not there has ended already, which is what was wanted.
            Err(failure) if failure.kind() != LEASE_GONE => Err(failure),
            _ => Ok(()),
        }
    }

    /// Stores another number of permits, unless the number has changed since `before`. Returns whether it was stored.
    /// It keeps its lease, which runs in full again.
    pub(crate) async fn replace_number(
        &self,
        limit: Duration,
        key: &str,
        before: Number,
        permits: u32,
    ) -> Result<bool, Failure> {
        let lease = before.lease;
        // Another program may have stored the number without one.
        if lease != 0 {
            match self.ask(limit, |client| async move { client.lease_client().keep_alive(lease).await }).await
            {
                Err(failure) if failure.kind() == LEASE_GONE => return Ok(false),
                renewed => drop(renewed?),
            }
        }
        // The key keeps the lease that it has, which was renewed above.
        let options = PutOptions::new().with_ignore_lease();
        let put = TxnOp::put(key, semaphore::text(permits), Some(options));
        let same = Compare::mod_revision(key, CompareOp::Equal, before.changed);
        Ok(self.txn(limit, Txn::new().when([same]).and_then([put])).await?.succeeded())
    }
}
