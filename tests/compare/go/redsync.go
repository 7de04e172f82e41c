package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncLibrary struct {
	redsync *redsync.Redsync
	lease   time.Duration
}

func openRedsync(url string, lease time.Duration) (library, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return &redsyncLibrary{redsync.New(goredis.NewPool(redis.NewClient(options))), lease}, nil
}

// acquire tries again and again, which by default ends after 32 tries, with the default delays.
func (l *redsyncLibrary) acquire(ctx context.Context, key string, wait time.Duration, _ bool) (lock, error) {
	outer := ctx
	if wait > 0 {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		ctx = limited
	}
	mutex := l.redsync.NewMutex(key, redsync.WithExpiry(l.lease), redsync.WithTries(math.MaxInt32))
	if err := mutex.LockContext(ctx); err != nil {
		if ctx.Err() != nil && outer.Err() == nil {
			return nil, errTimeout
		}
		return nil, err
	}
	return redsyncLock{mutex}, nil
}

type redsyncLock struct{ mutex *redsync.Mutex }

func (redsyncLock) fence() string { return "-" }

func (l redsyncLock) release() error {
	released, err := l.mutex.Unlock()
	if err == nil && !released {
		err = errors.New("the lock was gone")
	}
	return err
}

// held asks as the documentation says, by the time until which the lock is valid.
func (l redsyncLock) held() bool { return time.Now().Before(l.mutex.Until()) }

func (redsyncLock) listen(func(string)) bool { return false }
