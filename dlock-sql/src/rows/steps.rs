//! The steps on lease rows.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::backend::Occupancy;
use dlock_core::{Holder, Key, Token};

use super::lease_table::LeaseTable;
use super::line::LineSeen;
use super::shares::{Resized, ShareAsk, ShareTaken};
use crate::driver::Conn;
use crate::gateway::steps::{Step, steps};
use crate::protocol::{Ask, Lease, Pruned, Released, RowIdentity, SqlResult, Taken};
use crate::way::Way;

steps! { LeaseTable:
    TakeBack(key: Key) -> Option<Way> = take_back(key), false, false;
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
}
