package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	directory = "/locks/"
	// How many digits the servers number nodes with.
	digits = 10
)

type zooKeeper struct {
	conn *zk.Conn

	mutex     sync.Mutex
	listeners []func(string)
}

type silent struct{}

func (silent) Printf(string, ...interface{}) {}

func openZooKeeper(url string, session time.Duration) (library, error) {
	servers := []string{strings.TrimPrefix(url, "zk://")}
	conn, events, err := zk.Connect(servers, session, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	z := &zooKeeper{conn: conn}
	go z.listen(events)
	for conn.State() != zk.StateHasSession {
		time.Sleep(time.Millisecond)
	}
	return z, nil
}

// listen passes on what is told of the session.
func (z *zooKeeper) listen(events <-chan zk.Event) {
	for event := range events {
		what := ""
		switch event.State {
		case zk.StateDisconnected:
			what = "warned"
		case zk.StateExpired:
			what = "lost"
		default:
			continue
		}
		z.mutex.Lock()
		for _, listener := range z.listeners {
			listener(what)
		}
		z.mutex.Unlock()
	}
}

func (z *zooKeeper) acquire(ctx context.Context, key string, wait time.Duration, fenced bool) (lock, error) {
	if wait > 0 {
		return nil, errUnsupported
	}
	taken := &zooKeeperLock{z: z, lock: zk.NewLock(z.conn, directory+key, zk.WorldACL(zk.PermAll)), czxid: "-"}
	locked := make(chan error, 1)
	go func() { locked <- taken.lock.Lock() }()
	select {
	case <-ctx.Done():
		return nil, errUnsupported
	case err := <-locked:
		if err != nil || !fenced {
			return taken, err
		}
	}
	czxid, err := z.first(directory + key)
	taken.czxid = strconv.FormatInt(czxid, 10)
	return taken, err
}

// first returns the transaction that made the first node in line, which is the holder's: the library does not tell which it is.
func (z *zooKeeper) first(path string) (int64, error) {
	children, _, err := z.conn.Children(path)
	if err != nil {
		return 0, err
	}
	first := ""
	for _, child := range children {
		if first == "" || child[len(child)-digits:] < first[len(first)-digits:] {
			first = child
		}
	}
	there, stat, err := z.conn.Exists(path + "/" + first)
	if err == nil && !there {
		err = errors.New("the node is gone")
	}
	if err != nil {
		return 0, err
	}
	return stat.Czxid, nil
}

type zooKeeperLock struct {
	z     *zooKeeper
	lock  *zk.Lock
	czxid string
}

func (l *zooKeeperLock) fence() string { return l.czxid }

func (l *zooKeeperLock) release() error { return l.lock.Unlock() }

// held asks for the state of the session, since the lock itself cannot be asked.
func (l *zooKeeperLock) held() bool { return l.z.conn.State() == zk.StateHasSession }

func (l *zooKeeperLock) listen(tell func(string)) bool {
	l.z.mutex.Lock()
	defer l.z.mutex.Unlock()
	l.z.listeners = append(l.z.listeners, tell)
	return true
}
