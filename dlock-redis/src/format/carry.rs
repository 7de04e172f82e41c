//! Locks that are left for a baton and taken over, in dlock's own format. Rarely used, so that servers need not keep
//! the scripts.

use dlock_core::Token;
use dlock_core::backend::{LEFT_BEHIND, Mode};
use redis::{Cmd, Value};

use super::plain::{LEAVE, TAKE_OVER, hex};
use super::{plain, shares};
use crate::request::{Answer, CallNumber, Request, Step};

const SHARES: &str = concat!(include_str!("head.lua"), include_str!("shares_carry.lua"));

/// Makes the call that releases a lock and leaves its key taken for this many milliseconds.
pub(super) fn call_leave(request: &Request, millis: u64, number: CallNumber) -> Cmd {
    let (lock, token) = (&*request.names.lock, &request.token);
    let (ours, left_behind) = (hex(token), hex(&token.left_behind()));
    let mut call = redis::cmd("EVAL");
    if request.mode == Mode::Exclusive {
        call.arg(LEAVE).arg(1).arg(lock).arg(&ours).arg(&left_behind);
        call.arg(LEFT_BEHIND).arg(millis).arg(number.0);
    } else {
        call.arg(SHARES).arg(1).arg(lock).arg(number.0).arg("leave");
        call.arg(&ours).arg(&left_behind).arg(millis).arg(LEFT_BEHIND);
    }
    call
}

/// Makes the call that takes over the lock that was left under the token `left`.
pub(super) fn call_take_over(request: &Request, left: &Token, number: CallNumber) -> Cmd {
    let mut call = redis::cmd("EVAL");
    let Step::Acquire { lease, who, .. } = &request.step else { return call };
    let (names, ours, left, mode) = (&request.names, hex(&request.token), hex(left), request.mode);
    let mut line = Vec::new();
    who.write(&mut line);
    let script = if mode == Mode::Exclusive { TAKE_OVER } else { SHARES };
    call.arg(script).arg(2).arg(&*names.lock).arg(&*names.counter).arg(number.0);
    if mode == Mode::Exclusive {
        call.arg(&ours).arg(&left).arg(*lease);
    } else {
        let permits = mode.permits().map_or(0, |_| mode.taken());
        call.arg("take").arg(&ours).arg(&left).arg(*lease).arg(permits);
    }
    call.arg(line);
    call
}

/// Reads the result of a take-over; `None` if it is malformed.
pub(super) fn read_take_over(result: Value, mode: Mode) -> Option<Answer> {
    match result {
        result if mode != Mode::Exclusive => shares::taken(result, mode),
        Value::Int(fence @ 1..) => Some(Answer::Granted(fence.unsigned_abs())),
        result => plain::answer(result),
    }
}
