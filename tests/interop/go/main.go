// Command worker locks with go-zookeeper as it is told: one command a line on standard input, one answer a line on standard
// output.
//
//	arguments: url lease-millis process-number clock-offset-nanos history-file
//
//	clock                                                        now
//	acquire KIND NAME                                            invoked returned fence
//	release KIND NAME                                            invoked returned
//	sections KIND NAME COUNTER COUNT HOLD-MICROS PAUSE-MICROS    count
//
// Times are CLOCK_MONOTONIC plus the offset, which makes them those of the other processes. A fence is the transaction that
// made the node of the lock. An answer that begins with "error" tells what went wrong.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sys/unix"
)

const (
	lockPath    = "/dlock/"
	counterPath = "/counters/"
	// How many digits the servers number nodes with.
	digits = 10
)

type worker struct {
	conn    *zk.Conn
	process int64
	offset  int64
	history *bufio.Writer
	hold    int64
	locks   map[string]*zk.Lock
}

type silent struct{}

func (silent) Printf(string, ...interface{}) {}

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
	servers := []string{strings.TrimPrefix(arguments[0], "zk://")}
	conn, _, err := zk.Connect(servers, time.Duration(numbers[0])*time.Millisecond, zk.WithLogger(silent{}))
	if err != nil {
		return err
	}
	defer conn.Close()
	w := &worker{
		conn:    conn,
		process: numbers[1],
		offset:  numbers[2],
		history: bufio.NewWriter(file),
		locks:   map[string]*zk.Lock{},
	}
	fmt.Println("ready")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		answer, err := w.answer(strings.Fields(commands.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		if err := w.history.Flush(); err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return commands.Err()
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

func (w *worker) answer(words []string) (string, error) {
	switch {
	case len(words) == 1 && words[0] == "clock":
		now, err := w.now()
		return strconv.FormatInt(now, 10), err
	case len(words) == 3 && words[0] == "acquire":
		return w.acquire(words[2])
	case len(words) == 3 && words[0] == "release":
		return w.release(words[2])
	case len(words) == 7 && words[0] == "sections":
		return w.sections(words[2], words[3], words[4:])
	}
	return "", fmt.Errorf("no command: %v", words)
}

func (w *worker) acquire(name string) (string, error) {
	invoked, err := w.now()
	if err != nil {
		return "", err
	}
	lock := zk.NewLock(w.conn, lockPath+name, zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		return "", err
	}
	fence, err := w.fence(lockPath + name)
	if err != nil {
		return "", err
	}
	returned, err := w.now()
	if err != nil {
		return "", err
	}
	w.locks[name] = lock
	w.hold++
	text := strconv.FormatInt(fence, 10)
	return fmt.Sprintf("%d %d %s", invoked, returned, text), w.record(name, "acquire", invoked, returned, text)
}

// fence returns what made the first node in line. The library does not tell which node is its own; while it has the lock, that
// is the first one.
func (w *worker) fence(path string) (int64, error) {
	children, _, err := w.conn.Children(path)
	if err != nil {
		return 0, err
	}
	first := ""
	for _, child := range children {
		if first == "" || child[len(child)-digits:] < first[len(first)-digits:] {
			first = child
		}
	}
	there, stat, err := w.conn.Exists(path + "/" + first)
	if err == nil && !there {
		err = fmt.Errorf("%s is gone", first)
	}
	if err != nil {
		return 0, err
	}
	return stat.Czxid, nil
}

func (w *worker) release(name string) (string, error) {
	lock := w.locks[name]
	if lock == nil {
		return "", fmt.Errorf("%s is not held", name)
	}
	delete(w.locks, name)
	invoked, err := w.now()
	if err != nil {
		return "", err
	}
	if err := lock.Unlock(); err != nil {
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
func (w *worker) sections(name, counter string, words []string) (string, error) {
	var numbers [3]int
	for i, word := range words {
		number, err := strconv.Atoi(word)
		if err != nil {
			return "", err
		}
		numbers[i] = number
	}
	for i := 0; i < numbers[0]; i++ {
		if _, err := w.acquire(name); err != nil {
			return "", err
		}
		if err := w.add(counterPath+counter, time.Duration(numbers[1])*time.Microsecond); err != nil {
			return "", err
		}
		if _, err := w.release(name); err != nil {
			return "", err
		}
		time.Sleep(time.Duration(numbers[2]) * time.Microsecond)
	}
	return words[0], nil
}

func (w *worker) add(path string, hold time.Duration) error {
	data, _, err := w.conn.Get(path)
	if errors.Is(err, zk.ErrNoNode) {
		data = []byte("0")
		_, err = w.conn.Create(path, data, 0, zk.WorldACL(zk.PermAll))
	}
	if err != nil {
		return err
	}
	before, err := strconv.Atoi(string(data))
	if err != nil {
		return err
	}
	time.Sleep(hold)
	_, err = w.conn.Set(path, []byte(strconv.Itoa(before+1)), -1)
	return err
}
