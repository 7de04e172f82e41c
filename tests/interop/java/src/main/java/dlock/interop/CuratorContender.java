package dlock.interop;

import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Curator with the retries of its guide, and a quarter of the session to connect, as it is by default. */
final class CuratorContender implements Contender.Library {
    private final CuratorFramework client;
    /** Whether the session was as it should be ever since, as the connection's states tell. */
    private volatile boolean connected = true;

    CuratorContender(String url, int sessionMillis) throws InterruptedException {
        String servers = url.substring("zk://".length());
        client = CuratorFrameworkFactory.newClient(
            servers, sessionMillis, sessionMillis / 4, new ExponentialBackoffRetry(1000, 3));
        client.start();
        client.blockUntilConnected();
        client.getConnectionStateListenable().addListener((some, state) -> connected = state.isConnected());
    }

    @Override
    public Contender.Contended lock(String key, boolean fenced) {
        return new Taken(new Mutex(client, "/locks/" + key));
    }

    /** Tells which node is its own. */
    private static final class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        String node() {
            return getLockPath();
        }
    }

    private final class Taken implements Contender.Contended {
        private final Mutex mutex;

        Taken(Mutex mutex) {
            this.mutex = mutex;
        }

        @Override
        public boolean acquire(long waitMillis) throws Exception {
            if (waitMillis > 0) {
                return mutex.acquire(waitMillis, TimeUnit.MILLISECONDS);
            }
            mutex.acquire();
            return true;
        }

        @Override
        public Long fence() throws Exception {
            return client.checkExists().forPath(mutex.node()).getCzxid();
        }

        @Override
        public void release() throws Exception {
            mutex.release();
        }

        @Override
        public boolean held() {
            return connected && mutex.isAcquiredInThisProcess();
        }

        @Override
        public boolean listen(Consumer<String> tell) {
            client.getConnectionStateListenable().addListener((some, state) -> {
                if (state == ConnectionState.SUSPENDED) {
                    tell.accept("warned");
                } else if (state == ConnectionState.LOST) {
                    tell.accept("lost");
                }
            });
            return true;
        }
    }
}
