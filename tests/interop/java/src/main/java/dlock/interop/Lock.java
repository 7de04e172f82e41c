package dlock.interop;

/** A lock, or none, as the commands name them. */
interface Lock {
    /** Waits for the lock. Returns its fencing token, null where it has none. */
    Long acquire() throws Exception;

    /** Waits up to {@code millis}; whether the lock was taken. */
    boolean acquireWithin(long millis) throws Exception;

    void release() throws Exception;

    /** Excludes nobody: shows that the counter loses updates without a lock. */
    Lock NONE = new Lock() {
        @Override
        public Long acquire() {
            return null;
        }

        @Override
        public boolean acquireWithin(long millis) {
            return true;
        }

        @Override
        public void release() {
        }
    };
}
