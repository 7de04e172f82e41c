//! Has the engine use the locks and atomics of the scheduler.

fn main() {
    println!("cargo::rustc-cfg=dlock_schedules");
    println!("cargo::rerun-if-changed=build.rs");
}
