//! What is done on a connection.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::{Holder, Key, Token};

use crate::server::{Ask, Conn, Lease, Pruned, Server, SqlResult, Taken};

/// One thing to do on a connection. May be done again after an error that changed nothing.
pub(crate) trait Step<S: Server>: Send + Sync + 'static {
    type Reply: Send + 'static;
    /// Whether it refuses by itself a connection on which it would not be a transaction by itself.
    const CHECKS: bool = false;

    fn perform(&self, server: &S, on: &mut Conn<S>) -> impl Future<Output = SqlResult<Self::Reply>> + Send;
}

macro_rules! steps {
    ($($name:ident($($field:ident: $type:ty),*) -> $reply:ty = $method:ident($($argument:expr),*), $checks:literal;)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name($(pub(crate) $type),*);

        impl<S: Server> Step<S> for $name {
            type Reply = $reply;
            const CHECKS: bool = $checks;

            async fn perform(&self, server: &S, on: &mut Conn<S>) -> SqlResult<Self::Reply> {
                let Self($($field),*) = self;
                server.$method(on, $($argument),*).await
            }
        }
    )*};
}

steps! {
    Mark() -> Option<String> = mark(), false;
    Take(ask: Ask, contended: bool) -> Taken = take(ask, *contended), true;
    Release(key: Key, token: Token) -> Option<bool> = release(key, token), false;
    TakeAll(asks: Vec<Ask>) -> Vec<Option<Taken>> = take_all(asks), true;
    ReleaseAll(held: Vec<(Key, Token)>) -> Vec<Option<bool>> = release_all(held), false;
    Renew(leases: Vec<Lease>) -> Option<HashSet<usize>> = renew(leases), false;
    Read(key: Key) -> Option<Holder> = read(key), false;
    List(after: Vec<u8>) -> Vec<(Vec<u8>, Holder)> = list(after), false;
    Force(key: Key) -> bool = force(key), false;
    Prune(unused: Duration, after: Vec<u8>) -> Pruned = prune(*unused, after), false;
    AwaitRelease(key: Key) -> bool = await_release(key), false;
}
