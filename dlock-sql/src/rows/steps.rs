//! What is done on a connection.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::backend::Occupancy;
use dlock_core::{Fence, Holder, Key, Token};

use super::line::LineSeen;
use super::shares::{Resized, ShareAsk, ShareTaken};
use crate::server::{Ask, Conn, Lease, Pruned, Released, RowIdentity, Server, SqlResult, Taken};
use crate::session::{Name, Wanted};

/// One thing to do on a connection. May be done again after an error that changed nothing.
pub(crate) trait Step<S: Server>: Send + Sync + 'static {
    type Reply: Send + 'static;
    /// Whether it refuses by itself a connection on which it would not be a transaction by itself.
    const CHECKS: bool = false;
    /// Whether it changes nothing, and is asked again when its connection broke.
    const ASKS: bool = false;

    fn perform(&self, server: &S, on: &mut Conn<S>) -> impl Future<Output = SqlResult<Self::Reply>> + Send;
}

macro_rules! steps {
    ($(
        $name:ident($($field:ident: $type:ty),*) -> $reply:ty = $method:ident($($argument:expr),*),
        $checks:literal, $asks:literal;
    )*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name($(pub(crate) $type),*);

        impl<S: Server> Step<S> for $name {
            type Reply = $reply;
            const CHECKS: bool = $checks;
            const ASKS: bool = $asks;

            async fn perform(&self, server: &S, on: &mut Conn<S>) -> SqlResult<Self::Reply> {
                let Self($($field),*) = self;
                server.$method(on, $($argument),*).await
            }
        }
    )*};
}

steps! {
    Mark() -> Option<String> = mark(), false, true;
    Take(ask: Ask, contended: bool) -> Taken = take(ask, *contended), true, false;
    TakeOver(ask: Ask, left: Token) -> Taken = take_over(ask, left), false, false;
    Release(key: Key, token: Token) -> Option<Released> = release(key, token), false, false;
    Leave(key: Key, token: Token, taken_for: Duration) -> Option<Released> = leave_taken(key, token, *taken_for), false, false;
    TakeAll(asks: Vec<Ask>) -> Vec<Option<Taken>> = take_all(asks), true, false;
    ReleaseAll(held: Vec<(Key, Token)>) -> Vec<Option<Released>> = release_all(held), false, false;
    Renew(leases: Vec<Lease>) -> Option<HashSet<usize>> = renew(leases), false, false;
    TakeShare(ask: ShareAsk) -> ShareTaken = take_share(ask), false, false;
    ReleaseShare(key: Key, token: Token, fair: bool) -> bool = release_share(key, token, *fair), false, false;
    Downgrade(key: Key, token: Token, lease: Duration) -> bool = downgrade(key, token, *lease), false, false;
    LeaveShare(key: Key, token: Token, taken_for: Duration) -> bool = leave_share(key, token, *taken_for), false, false;
    RenewShares(leases: Vec<Lease>) -> Option<HashSet<usize>> = renew_shares(leases), false, false;
    LookInLine(key: Key, token: Token, place: i64) -> Option<LineSeen> = look_in_line(key, token, *place), false, true;
    Occupy(key: Key) -> Occupancy = occupancy(key), false, true;
    Resize(key: Key, permits: u32) -> Resized = resize(key, *permits), false, false;
    Read(key: Key) -> Option<Holder> = read(key), false, true;
    List(after: Vec<u8>) -> Vec<(Vec<u8>, Holder)> = list(after), false, true;
    Identify(key: Key) -> Option<RowIdentity> = identify(key), false, true;
    Force(key: Key, only: Option<RowIdentity>) -> bool = force(key, only.as_ref()), false, false;
    Prune(unused: Duration, after: Vec<u8>) -> Pruned = prune(*unused, after), false, false;
    AwaitRelease(key: Key) -> bool = await_release(key), false, false;
    Ping() -> i64 = ping(), false, true;
    Cancel(session: i64) -> () = cancel(*session), false, false;
    End(session: i64) -> () = end(*session), false, false;
    MakeRow(name: Name) -> bool = make_row(name), false, false;
    Count(wanted: Wanted, session: i64) -> Fence = count(wanted, *session), false, false;
}
