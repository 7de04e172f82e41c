//! What goes wrong with real etcd servers, and what a lock makes of it.

mod support;

mod clusters;
mod foreign;
mod leases;
mod outcomes;
mod proofs;
mod rights;
