//! The steps for sessions on connections that keep no locks.

use dlock_core::Fence;

use super::name::Name;
use super::protocol::Wanted;
use super::session_server::SessionServer;
use crate::driver::Conn;
use crate::gateway::steps::{Step, steps};
use crate::protocol::SqlResult;
use crate::way::Way;

steps! { SessionServer:
    Cancel(session: i64) -> () = cancel(*session), false, false;
    End(session: i64) -> () = end(*session), false, false;
    MakeRow(name: Name) -> bool = make_row(name), false, false;
    Count(wanted: Wanted, session: i64) -> Result<Fence, Way> = count(wanted, *session, Way::Row), false, false;
}
