// Command contender uses redsync or go-zookeeper's lock as it is told: orders on standard input, answers on standard output,
// one a line. tests/compare/src/contender.rs has the orders.
//
//	arguments: redsync|zookeeper url lease-millis
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// errUnsupported says that a library has no such thing.
var errUnsupported = errors.New("unsupported")

// errTimeout says that an acquire has waited for as long as it was to.
var errTimeout = errors.New("timeout")

// library is what is compared.
type library interface {
	// acquire waits for the lock, up to wait where that is not 0.
	acquire(ctx context.Context, key string, wait time.Duration, fenced bool) (lock, error)
}

// lock is one that is held.
type lock interface {
	// fence is a number that grows with each holder, or none.
	fence() string
	release() error
	// held is what the library answers whom it asks.
	held() bool
	// listen calls tell with what the library tells; false where there is nothing to listen to.
	listen(tell func(string)) bool
}

type contender struct {
	library library
	mutex   sync.Mutex
	cancel  map[string]context.CancelFunc
	held    map[string]lock
}

var output sync.Mutex

func tell(id, words string) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(id, strings.ReplaceAll(words, "\n", " "))
}

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(arguments []string) error {
	if len(arguments) != 3 {
		return errors.New("three arguments are needed")
	}
	millis, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	lease := time.Duration(millis) * time.Millisecond
	c := &contender{cancel: map[string]context.CancelFunc{}, held: map[string]lock{}}
	switch arguments[0] {
	case "redsync":
		c.library, err = openRedsync(arguments[1], lease)
	case "zookeeper":
		c.library, err = openZooKeeper(arguments[1], lease)
	default:
		err = fmt.Errorf("no library is called %s", arguments[0])
	}
	if err != nil {
		return err
	}
	tell("0", "ready")
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		words := strings.Fields(orders.Text())
		if len(words) == 3 && words[1] == "cancel" {
			c.mutex.Lock()
			if cancel := c.cancel[words[2]]; cancel != nil {
				cancel()
			}
			c.mutex.Unlock()
			continue
		}
		go func() {
			if err := c.carryOut(words[0], words[1:]); err != nil {
				tell(words[0], "error "+err.Error())
			}
		}()
	}
	return orders.Err()
}

func (c *contender) carryOut(id string, words []string) error {
	switch words[0] {
	case "acquire":
		return c.acquire(id, words[1], words[2], words[3] == "1")
	case "turns":
		return c.turns(id, words[1], words[2])
	}
	c.mutex.Lock()
	lock := c.held[words[1]]
	c.mutex.Unlock()
	if lock == nil {
		return errors.New("it is not held")
	}
	switch words[0] {
	case "release":
		if err := lock.release(); err != nil {
			return err
		}
		tell(id, "released")
	case "check":
		if lock.held() {
			tell(id, "held")
		} else {
			tell(id, "gone")
		}
	case "watch":
		if lock.listen(func(what string) { tell(id, what) }) {
			tell(id, "watching")
		} else {
			tell(id, "deaf")
		}
	default:
		return fmt.Errorf("no order: %v", words)
	}
	return nil
}

func (c *contender) acquire(id, key, wait string, fenced bool) error {
	millis, err := strconv.Atoi(wait)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.mutex.Lock()
	c.cancel[id] = cancel
	c.mutex.Unlock()
	lock, err := c.library.acquire(ctx, key, time.Duration(millis)*time.Millisecond, fenced)
	c.mutex.Lock()
	delete(c.cancel, id)
	if err == nil {
		c.held[id] = lock
	}
	c.mutex.Unlock()
	switch {
	case err == nil:
		tell(id, "acquired "+lock.fence())
	case errors.Is(err, errUnsupported):
		tell(id, "unsupported")
	case errors.Is(err, errTimeout):
		tell(id, "timeout")
	case ctx.Err() != nil:
		tell(id, "cancelled")
	default:
		return err
	}
	return nil
}

func (c *contender) turns(id, key, count string) error {
	number, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	failed := make(chan bool, number)
	for i := 0; i < number; i++ {
		go func() {
			lock, err := c.library.acquire(context.Background(), key, 0, false)
			if err == nil {
				err = lock.release()
			}
			failed <- err != nil
		}()
	}
	failures := 0
	for i := 0; i < number; i++ {
		if <-failed {
			failures++
		}
	}
	tell(id, fmt.Sprintf("turned %d", failures))
	return nil
}
