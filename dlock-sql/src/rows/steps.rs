//! What is done on a connection.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::{Holder, Key, Token};

use super::{Answer, Ask, Conn, Lease, Server, Taken};

/// One thing to do on a connection. May be done again after an error that changed nothing.
pub(crate) trait Step<S: Server>: Send + Sync + 'static {
    type Reply: Send + 'static;

    fn perform(&self, server: &S, on: &mut Conn<S>) -> impl Future<Output = Answer<Self::Reply>> + Send;
}

macro_rules! steps {
    ($($name:ident($($field:ident: $type:ty),*) -> $reply:ty = $method:ident($($argument:expr),*);)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name($(pub(crate) $type),*);

        impl<S: Server> Step<S> for $name {
            type Reply = $reply;

            async fn perform(&self, server: &S, on: &mut Conn<S>) -> Answer<Self::Reply> {
                let Self($($field),*) = self;
                server.$method(on, $($argument),*).await
            }
        }
    )*};
}

steps! {
    Take(ask: Ask, contended: bool) -> Taken = take(ask, *contended);
    Release(key: Key, token: Token) -> Option<bool> = release(key, token);
    Renew(leases: Vec<Lease>) -> Option<HashSet<usize>> = renew(leases);
    Read(key: Key) -> Option<Holder> = read(key);
    List(after: Vec<u8>) -> Vec<(Vec<u8>, Holder)> = list(after);
    Force(key: Key) -> bool = force(key);
    Prune(unused: Duration) -> u64 = prune(*unused);
    AwaitRelease(key: Key) -> bool = await_release(key);
}
