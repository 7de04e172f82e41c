//! The change of a claim's key to another lease.
//!
//! ```text
//!  lease: of a waiter, or of a writer that becomes a reader
//!    | `next` is taken from the pool, or made
//!    | the key is put under it, if it has not changed since
//!    |-- carried out, also by an earlier request --> `lease` is `next`, and the one before goes to the pool
//!    |-- failed, or cut off -----------------------> `next` stays for the next try: the key may be under it
//!    `-- the key has yet another lease ------------> that one is adopted, and has to be renewed
//! ```
//!
//! A renewal may be dropped at any await: `next` is the claim's from the moment that it is there.

use std::sync::Arc;

use dlock_core::Failure;
use dlock_core::backend::Renewed;
use etcd_client::{Compare, CompareOp, Txn, TxnOp};

use crate::answer::{Answer, Entry, value};
use crate::claim::{EtcdClaim, PLACE};
use crate::error::LEASE_GONE;
use crate::lease::{Lease, seconds};
use crate::proof::prove;

impl EtcdClaim {
    /// Takes over the lease that the key has, if that is another one than the claim knows: it was put by another object
    /// with the token of this claim, or the answer to its going over was lost.
    pub(crate) fn adopts(&mut self, own: &Entry) -> bool {
        let is_other = own.lease != self.lease_id();
        if is_other {
            let (id, ttl) = (own.lease, PLACE.min(seconds(self.request.lease)));
            // The lease of an earlier going over, if it is that one: its proof is known, and its stream.
            let next = self.next.take_if(|next| next.id == id);
            self.lease = Some(next.unwrap_or(Lease { id, ttl, proven_at: None, stream: None }));
        }
        is_other
    }

    /// Goes over to another lease, of the full length, which runs in full from now on.
    pub(crate) async fn go_over(&mut self) -> Result<Renewed, Failure> {
        let (limit, shared) = (self.request.request_timeout, Arc::clone(&self.shared));
        let full = seconds(self.request.lease);
        let mut is_fresh = false;
        if self.next.is_none() {
            let (lease, is_made) = shared.servers.lease(full, limit).await?;
            (self.next, is_fresh) = (Some(lease), is_made);
        }
        let id = self.next.as_ref().map_or(0, |lease| lease.id);
        let put = self.put_as(value(self.mode, &self.line), id);
        // A lease that was made just now is proven by that.
        let renewed = self.next.iter_mut().filter(|_| !is_fresh).collect();
        // Only from what it is known to be: an earlier request of this kind may arrive after a later one.
        let same = Compare::mod_revision(&*self.key, CompareOp::Equal, self.changed);
        let look = TxnOp::get(&*self.key, None);
        let txn = Txn::new().when([same]).and_then([put]).or_else([look]);
        let answer = prove(&shared.servers, limit, txn, renewed, Vec::new()).await;
        // What has ended is the other lease, of the pool: the next try takes another one.
        let answer = answer.map_err(|failure| match failure.kind() {
            LEASE_GONE => {
                self.next = None;
                Failure::unavailable(failure.message().to_owned())
            }
            _ => failure,
        });
        let answer = Answer::of(&answer?, &self.number_key);
        match self.own(&answer) {
            _ if answer.succeeded => self.changed = answer.revision,
            // This request was sent twice, or one before it was carried out.
            Some(own) if own.lease == id && own.mode == self.mode => self.changed = own.changed,
            Some(own) => {
                self.changed = own.changed;
                // Whether it changed the lease does not matter: the next renewal proves whichever the claim has.
                let _ = self.adopts(own);
                return Err(Failure::unknown("the key of the claim was put by another request"));
            }
            None => return Ok(Renewed::Gone),
        }
        let next = self.next.take();
        // While an attempt may still put the key under the lease before, no other claim may have that lease.
        let before = std::mem::replace(&mut self.lease, next).filter(|_| !self.flight.account.may_arrive());
        before.into_iter().for_each(|before| shared.servers.pool.put(before));
        Ok(Renewed::Extended)
    }
}
