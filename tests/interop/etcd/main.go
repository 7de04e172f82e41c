// Command worker locks with the concurrency package of etcd's own client as it is told: one command a line on standard input,
// one answer a line on standard output.
//
//	arguments: url lease-millis process-number clock-offset-nanos history-file
//
//	clock                                                        now
//	acquire KIND NAME                                            invoked returned fence
//	try KIND NAME WAIT-MILLIS                                    true|false
//	release KIND NAME                                            invoked returned
//	sections KIND NAME COUNTER COUNT HOLD-MICROS PAUSE-MICROS    count
//	force NAME                                                   true|false
//	leader NAME                                                  what the leader said when it was elected
//	observe NAME                                                 observing
//	observed NAME TEXT                                           the next leader who says TEXT
//	bench KIND PREFIX TASKS MILLIS                               pairs p50-nanos p99-nanos processor-micros
//
// The kind is none for no lock, latch for an Election, and else a Mutex. Times are CLOCK_MONOTONIC plus the offset, which makes
// them those of the other processes. A fence is the revision that made the key of the lock. An answer that begins with "error"
// tells what went wrong.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
)

const (
	lockPrefix    = "dlock/"
	counterPrefix = "counters/"
)

// held is a lock that can be released.
type held func(context.Context) error

type worker struct {
	client   *clientv3.Client
	session  *concurrency.Session
	process  int64
	offset   int64
	history  *bufio.Writer
	hold     int64
	locks    map[string]held
	observed map[string]<-chan *clientv3.GetResponse
}

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(arguments []string) error {
	if len(arguments) != 5 {
		return errors.New("five arguments are needed")
	}
	var numbers [3]int64
	for i := range numbers {
		number, err := strconv.ParseInt(arguments[i+1], 10, 64)
		if err != nil {
			return err
		}
		numbers[i] = number
	}
	file, err := os.OpenFile(arguments[4], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	// The time to dial bounds what is waited for an answer to the first request.
	servers := strings.Split(strings.TrimPrefix(arguments[0], "etcd://"), ",")
	client, err := clientv3.New(clientv3.Config{Endpoints: servers, DialTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int((numbers[0]+999)/1000)))
	if err != nil {
		return err
	}
	w := &worker{
		client:   client,
		session:  session,
		process:  numbers[1],
		offset:   numbers[2],
		history:  bufio.NewWriter(file),
		locks:    map[string]held{},
		observed: map[string]<-chan *clientv3.GetResponse{},
	}
	fmt.Println("ready")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		answer, err := w.answer(context.Background(), strings.Fields(commands.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		if err := w.history.Flush(); err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return errors.Join(commands.Err(), session.Close())
}

func (w *worker) now() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano() + w.offset, err
}

func (w *worker) record(name, operation string, invoked, returned int64, fence string) error {
	_, err := fmt.Fprintf(w.history,
		`{"process":%d,"hold":%d,"key":%q,"op":%q,"invoked":%d,"returned":%d,"outcome":"ok","fence":%s,"valid_until":null}`+"\n",
		w.process, w.hold, name, operation, invoked, returned, fence)
	return err
}

func (w *worker) answer(ctx context.Context, words []string) (string, error) {
	switch {
	case len(words) == 1 && words[0] == "clock":
		now, err := w.now()
		return strconv.FormatInt(now, 10), err
	case len(words) == 3 && words[0] == "acquire":
		return w.acquire(ctx, words[1], words[2])
	case len(words) == 4 && words[0] == "try":
		return w.try(ctx, words[1], words[2], words[3])
	case len(words) == 3 && words[0] == "release":
		return w.release(ctx, words[1], words[2])
	case len(words) == 7 && words[0] == "sections":
		return w.sections(ctx, words[1], words[2], words[3], words[4:])
	case len(words) == 2 && words[0] == "force":
		return w.force(ctx, words[1])
	case len(words) == 2 && words[0] == "leader":
		leader, err := w.election(words[1]).Leader(ctx)
		if err != nil {
			return "", err
		}
		return string(leader.Kvs[0].Value), nil
	case len(words) == 2 && words[0] == "observe":
		w.observed[words[1]] = w.election(words[1]).Observe(ctx)
		return "observing", nil
	case len(words) == 3 && words[0] == "observed":
		return w.sees(words[1], words[2])
	case len(words) == 5 && words[0] == "bench":
		return w.bench(ctx, words[2], words[3:])
	}
	return "", fmt.Errorf("no command: %v", words)
}

func (w *worker) election(name string) *concurrency.Election {
	return concurrency.NewElection(w.session, lockPrefix+name)
}

// lock takes a lock, and returns how it is released and its fence.
func (w *worker) lock(ctx context.Context, kind, name string) (held, string, error) {
	switch kind {
	case "none":
		return func(context.Context) error { return nil }, "null", nil
	case "latch":
		election := w.election(name)
		if err := election.Campaign(ctx, fmt.Sprintf("go-%d", w.process)); err != nil {
			return nil, "", err
		}
		return election.Resign, strconv.FormatInt(election.Rev(), 10), nil
	}
	mutex := concurrency.NewMutex(w.session, lockPrefix+name)
	if err := mutex.Lock(ctx); err != nil {
		return nil, "", err
	}
	own, err := w.client.Get(ctx, mutex.Key())
	if err == nil && len(own.Kvs) == 0 {
		err = fmt.Errorf("%s is gone", mutex.Key())
	}
	if err != nil {
		return nil, "", err
	}
	return mutex.Unlock, strconv.FormatInt(own.Kvs[0].CreateRevision, 10), nil
}

func (w *worker) acquire(ctx context.Context, kind, name string) (string, error) {
	invoked, err := w.now()
	if err != nil {
		return "", err
	}
	lock, fence, err := w.lock(ctx, kind, name)
	if err != nil {
		return "", err
	}
	returned, err := w.now()
	if err != nil {
		return "", err
	}
	w.locks[name] = lock
	w.hold++
	return fmt.Sprintf("%d %d %s", invoked, returned, fence), w.record(name, "acquire", invoked, returned, fence)
}

// try waits for a lock for so long. What it takes is not part of the history.
func (w *worker) try(ctx context.Context, kind, name, wait string) (string, error) {
	millis, err := strconv.Atoi(wait)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(millis)*time.Millisecond)
	defer cancel()
	lock, _, err := w.lock(ctx, kind, name)
	if errors.Is(err, context.DeadlineExceeded) {
		return "false", nil
	}
	if err != nil {
		return "", err
	}
	w.locks[name] = lock
	return "true", nil
}

func (w *worker) release(ctx context.Context, kind, name string) (string, error) {
	lock := w.locks[name]
	if lock == nil {
		return "", fmt.Errorf("%s is not held", name)
	}
	delete(w.locks, name)
	invoked, err := w.now()
	if err != nil {
		return "", err
	}
	if err := lock(ctx); err != nil {
		return "", err
	}
	returned, err := w.now()
	if err != nil {
		return "", err
	}
	// Up to here it believed that it had the lock.
	if err := w.record(name, "check", invoked, invoked, "null"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %d", invoked, returned), w.record(name, "release", invoked, returned, "null")
}

// sections adds one to a counter again and again, by reading and writing it, which only the lock makes safe.
func (w *worker) sections(ctx context.Context, kind, name, counter string, words []string) (string, error) {
	var numbers [3]int
	for i, word := range words {
		number, err := strconv.Atoi(word)
		if err != nil {
			return "", err
		}
		numbers[i] = number
	}
	for i := 0; i < numbers[0]; i++ {
		if _, err := w.acquire(ctx, kind, name); err != nil {
			return "", err
		}
		if err := w.add(ctx, counterPrefix+counter, time.Duration(numbers[1])*time.Microsecond); err != nil {
			return "", err
		}
		if _, err := w.release(ctx, kind, name); err != nil {
			return "", err
		}
		time.Sleep(time.Duration(numbers[2]) * time.Microsecond)
	}
	return words[0], nil
}

func (w *worker) add(ctx context.Context, key string, hold time.Duration) error {
	read, err := w.client.Get(ctx, key)
	if err != nil {
		return err
	}
	before := 0
	if len(read.Kvs) > 0 {
		if before, err = strconv.Atoi(string(read.Kvs[0].Value)); err != nil {
			return err
		}
	}
	time.Sleep(hold)
	_, err = w.client.Put(ctx, key, strconv.Itoa(before+1))
	return err
}

// force takes a lock away from its holder.
func (w *worker) force(ctx context.Context, name string) (string, error) {
	first, err := w.client.Get(ctx, lockPrefix+name+"/", clientv3.WithFirstCreate()...)
	if err != nil || len(first.Kvs) == 0 {
		return "false", err
	}
	deleted, err := w.client.Delete(ctx, string(first.Kvs[0].Key))
	if err != nil {
		return "", err
	}
	return strconv.FormatBool(deleted.Deleted == 1), nil
}

// sees waits until the observer of an election is told of a leader who says so.
func (w *worker) sees(name, text string) (string, error) {
	end := time.After(20 * time.Second)
	for {
		select {
		case leader, open := <-w.observed[name]:
			if !open {
				return "", errors.New("the observation has ended")
			}
			if said := string(leader.Kvs[0].Value); strings.Contains(said, text) {
				return said, nil
			}
		case <-end:
			return "", fmt.Errorf("no leader says %s", text)
		}
	}
}

// bench makes pairs in so many tasks, each with a lock of its own, all of one session.
func (w *worker) bench(ctx context.Context, prefix string, words []string) (string, error) {
	tasks, err := strconv.Atoi(words[0])
	if err != nil {
		return "", err
	}
	millis, err := strconv.Atoi(words[1])
	if err != nil {
		return "", err
	}
	used, err := processorTime()
	if err != nil {
		return "", err
	}
	start := time.Now()
	end := start.Add(time.Duration(millis) * time.Millisecond)
	nanos := make([][]int64, tasks)
	failures := make([]error, tasks)
	var running sync.WaitGroup
	for task := range tasks {
		running.Go(func() {
			mutex := concurrency.NewMutex(w.session, fmt.Sprintf("%s%s%d", lockPrefix, prefix, task))
			for begin := time.Now(); begin.Before(end); {
				if failures[task] = errors.Join(mutex.Lock(ctx), mutex.Unlock(ctx)); failures[task] != nil {
					return
				}
				now := time.Now()
				nanos[task] = append(nanos[task], now.Sub(begin).Nanoseconds())
				begin = now
			}
		})
	}
	running.Wait()
	took := time.Since(start)
	if err := errors.Join(failures...); err != nil {
		return "", err
	}
	usedSince, err := processorTime()
	if err != nil {
		return "", err
	}
	all := slices.Concat(nanos...)
	slices.Sort(all)
	if len(all) == 0 {
		return "", errors.New("there was no time for a pair")
	}
	// As many as in the time that was asked for.
	pairs := float64(len(all)) * float64(millis) / float64(took.Milliseconds())
	used = usedSince - used
	return fmt.Sprintf("%f %d %d %f", pairs, all[len(all)/2], all[len(all)*99/100], float64(used.Nanoseconds())/1e3/float64(len(all))), nil
}

func processorTime() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now)
	return time.Duration(now.Nano()), err
}
