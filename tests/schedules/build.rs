//! Has the engine use the locks and atomics of the scheduler.

fn main() {
    println!("cargo::rustc-cfg=dlock_schedules");
    // The engine's features that it has no use for.
    println!("cargo::rustc-check-cfg=cfg(feature, values(\"serde\"))");
    println!("cargo::rerun-if-changed=build.rs");
}
