//! A lock on a majority of backends: what it takes to get it, to keep it, and to give it back.

mod administering;
mod administrators;
mod agreeing;
mod asking;
mod contending;
mod forgetting;
mod keeping;
mod leaving;
mod queueing;
mod requests;
mod support;
mod vouching;
