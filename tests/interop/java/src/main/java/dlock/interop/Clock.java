package dlock.interop;

/**
 * The clock that all processes of a run share. {@link System#nanoTime} is CLOCK_MONOTONIC on Linux; the harness tells by
 * how much its own clock is ahead, and checks with the command {@code clock} that this holds.
 */
final class Clock {
    private final long offsetNanos;

    Clock(long offsetNanos) {
        this.offsetNanos = offsetNanos;
    }

    long now() {
        return System.nanoTime() + offsetNanos;
    }
}
