//! The steps on a connection.

use dlock_core::Key;

use crate::driver::Conn;
use crate::protocol::SqlResult;
use crate::server::Server;

/// A step on a connection. It may be performed again after an error that changed nothing.
pub(crate) trait Step<S: Server>: Send + Sync + 'static {
    type Reply: Send + 'static;
    /// Is `true` if it refuses by itself a connection on which it would not be a transaction by itself.
    const CHECKS: bool = false;
    /// Is `true` if it changes nothing, and is asked again when its connection broke.
    const ASKS: bool = false;

    fn perform(&self, server: &S, on: &mut Conn<S>) -> impl Future<Output = SqlResult<Self::Reply>> + Send;
}

/// Makes steps of methods of a trait whose servers have them. The two flags are [`Step::CHECKS`] and [`Step::ASKS`].
macro_rules! steps {
    ($table:ident: $(
        $name:ident($($field:ident: $type:ty),*) -> $reply:ty = $method:ident($($argument:expr),*),
        $checks:literal, $asks:literal;
    )*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name($(pub(crate) $type),*);

        impl<S: $table> Step<S> for $name {
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
pub(crate) use steps;

steps! { Server:
    Mark() -> Option<String> = mark(), false, true;
    Ping() -> i64 = ping(), false, true;
    Announce(key: Key) -> () = announce(key), false, false;
}
