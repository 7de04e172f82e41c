// Command ring hands locks on as it is told, by what dlock publishes for other clients: one command a line on standard
// input, one answer a line on standard output. tests/interop/rust/src/rings/worker.rs has the commands, and is the
// worker in Rust.
//
//	arguments: url lease-millis journal scripts
package main

import (
	"bufio"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
	_ "github.com/lib/pq"
	"golang.org/x/sys/unix"
)

const who = "host=go"

// errTaken says that somebody else has the lock, or that nobody can take it over.
var errTaken = errors.New("refused")

// store is what has the locks. Tokens are 32 hexadecimal digits.
type store interface {
	name() string
	take(key, mine string, lease int64) (int64, error)
	takeOver(key, baton, mine string, lease int64) (int64, error)
	handOver(key, mine string, millis int64) (string, error)
	write(key string, fence int64) (bool, error)
}

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type worker struct {
	store   store
	lease   int64
	journal *os.File
}

func serve(arguments []string) error {
	if len(arguments) < 4 {
		return errors.New("four arguments are needed")
	}
	lease, err := strconv.ParseInt(arguments[1], 10, 64)
	if err != nil {
		return err
	}
	journal, err := os.OpenFile(arguments[2], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	opened, err := open(arguments[0], arguments[3])
	if err != nil {
		return err
	}
	w := &worker{store: opened, lease: lease, journal: journal}
	fmt.Println("ready")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		answer, err := w.answer(strings.Fields(commands.Text()))
		if errors.Is(err, errTaken) {
			answer = "refused"
		} else if err != nil {
			answer = "failed " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
	return commands.Err()
}

func open(url, scripts string) (store, error) {
	if strings.HasPrefix(url, "redis") {
		connection, err := redis.DialURL(url)
		return &redisStore{connection: connection, scripts: scripts, texts: map[string]string{}}, err
	}
	if !strings.Contains(url, "sslmode") {
		url += "?sslmode=disable"
	}
	database, err := sql.Open("postgres", url)
	if err == nil {
		err = database.Ping()
	}
	return postgresStore{database}, err
}

func now() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano(), err
}

func (w *worker) answer(words []string) (string, error) {
	switch {
	case len(words) == 4 && words[0] == "hop":
		millis, err := strconv.ParseInt(words[3], 10, 64)
		if err != nil {
			return "", err
		}
		return w.hop(words[1], words[2], millis)
	case len(words) == 3 && words[0] == "write":
		fence, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			return "", err
		}
		written, err := w.store.write(words[1], fence)
		return outcome(written), err
	}
	return "", fmt.Errorf("no command: %v", words)
}

func outcome(written bool) string {
	if written {
		return "written"
	}
	return "stale"
}

func (w *worker) hop(key, text string, millis int64) (string, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return "", err
	}
	mine := hex.EncodeToString(random[:])
	sent, err := now()
	if err != nil {
		return "", err
	}
	var fence int64
	if text == "-" {
		fence, err = w.store.take(key, mine, w.lease)
	} else {
		fence, err = w.store.takeOver(key, strings.SplitN(text, ":", 7)[5], mine, w.lease)
	}
	if err != nil {
		return "", err
	}
	begun, err := now()
	if err != nil {
		return "", err
	}
	if err := w.note("begin", key, fence, begun); err != nil {
		return "", err
	}
	written, err := w.store.write(key, fence)
	if err != nil {
		return "", err
	}
	ended, err := now()
	if err != nil {
		return "", err
	}
	// A lease is counted from when it was asked for.
	if last := sent + w.lease*int64(time.Millisecond); ended > last {
		ended = last
	}
	if err := w.note("end", key, fence, ended); err != nil {
		return "", err
	}
	until := time.Now().UnixMilli() + millis
	baton, err := w.store.handOver(key, mine, millis)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("passed %d %d %d %s dlock-baton:1:%s:%d:%d:%s:%s",
		fence, begun, ended, outcome(written), w.store.name(), until, fence, baton, key), nil
}

// note writes at once, so that what was believed is known when the process is killed.
func (w *worker) note(what, key string, fence, when int64) error {
	_, err := fmt.Fprintf(w.journal, "%s %s %d %d\n", what, key, fence, when)
	return err
}

// redisStore goes by redigo, and the scripts.
type redisStore struct {
	connection redis.Conn
	scripts    string
	texts      map[string]string
	number     int64
}

func (*redisStore) name() string { return "redis" }

func (s *redisStore) call(script string, keys []string, arguments ...any) (any, error) {
	text, known := s.texts[script]
	if !known {
		content, err := os.ReadFile(filepath.Join(s.scripts, script+".lua"))
		if err != nil {
			return nil, err
		}
		text = string(content)
		s.texts[script] = text
	}
	words := []any{text, len(keys)}
	for _, key := range keys {
		words = append(words, key)
	}
	return s.connection.Do("EVAL", append(words, arguments...)...)
}

// counted is what came of a call, whose number is the last part of its reply.
func (s *redisStore) counted(reply any, err error) (any, error) {
	parts, err := redis.Values(reply, err)
	if err != nil {
		return nil, err
	}
	if len(parts) != 2 {
		return nil, fmt.Errorf("no reply of the script: %v", parts)
	}
	number, err := redis.Int64(parts[1], nil)
	if err == nil && number != s.number {
		err = errors.New("a reply of another call")
	}
	return parts[0], err
}

// held is the fence of the value where the lock was taken already, and else that somebody else has it.
func held(what []any) (int64, error) {
	if len(what) != 1 {
		return 0, errTaken
	}
	value, err := redis.String(what[0], nil)
	if err != nil {
		return 0, err
	}
	var token string
	var first, number int64
	_, err = fmt.Sscanf(value, "%s %d+%d", &token, &first, &number)
	return first + number, err
}

func (s *redisStore) take(key, mine string, lease int64) (int64, error) {
	s.number++
	keys := []string{"dlock:" + key, "dlock:fence:{0}"}
	reply, err := s.call("lock", keys, s.number, lease, mine, "0 "+who)
	if text, isText := reply.([]byte); isText && err == nil {
		var fence, number int64
		_, err := fmt.Sscanf(string(text), " %d+%d", &fence, &number)
		if err == nil && number != s.number {
			err = errors.New("a reply of another call")
		}
		return fence, err
	}
	what, err := redis.Values(s.counted(reply, err))
	if err != nil {
		return 0, err
	}
	if list, isList := what[2].([]any); isList {
		return held(list)
	}
	return 0, fmt.Errorf("the server says %s", what[2])
}

func (s *redisStore) takeOver(key, baton, mine string, lease int64) (int64, error) {
	s.number++
	keys := []string{"dlock:" + key, "dlock:fence:{0}"}
	what, err := s.counted(s.call("take_over", keys, s.number, mine, baton, lease, who))
	if err != nil {
		return 0, err
	}
	if list, isList := what.([]any); isList {
		return held(list)
	}
	fence, err := redis.Int64(what, nil)
	if err == nil && fence == 0 {
		err = errTaken
	}
	return fence, err
}

func (s *redisStore) handOver(key, mine string, millis int64) (string, error) {
	s.number++
	baton := turned(mine)
	call := []any{mine, baton, "left=1 ", millis, s.number}
	done, err := redis.Int64(s.counted(s.call("hand_over", []string{"dlock:" + key}, call...)))
	if err == nil && done == 0 {
		err = errors.New("it was lost before the hand-over")
	}
	return baton, err
}

func (s *redisStore) write(key string, fence int64) (bool, error) {
	_, err := s.call("write", []string{"value:" + key, "{value:" + key + "}:fence"}, "go", fence)
	if err != nil && strings.HasPrefix(err.Error(), "STALE") {
		return false, nil
	}
	return err == nil, err
}

func turned(token string) string {
	const digits = "0123456789abcdef"
	return strings.Map(func(digit rune) rune { return rune(digits[15-strings.IndexRune(digits, digit)]) }, token)
}

// postgresStore goes by lib/pq, and the functions.
type postgresStore struct{ database *sql.DB }

func (postgresStore) name() string { return "postgres" }

func (s postgresStore) fence(statement string, arguments ...any) (int64, error) {
	var fence sql.NullInt64
	err := s.database.QueryRow(statement, arguments...).Scan(&fence)
	if err == nil && !fence.Valid {
		err = errTaken
	}
	return fence.Int64, err
}

func (s postgresStore) take(key, mine string, lease int64) (int64, error) {
	return s.fence("SELECT dlock_take($1, decode($2, 'hex'), $3 * interval '1 ms', $4)", key, mine, lease, who)
}

func (s postgresStore) takeOver(key, baton, mine string, lease int64) (int64, error) {
	statement := "SELECT dlock_take_over($1, $2, decode($3, 'hex'), $4 * interval '1 ms', $5)"
	return s.fence(statement, key, baton, mine, lease, who)
}

func (s postgresStore) handOver(key, mine string, millis int64) (string, error) {
	var baton sql.NullString
	row := s.database.QueryRow("SELECT dlock_hand_over($1, decode($2, 'hex'), $3 * interval '1 ms')", key, mine, millis)
	err := row.Scan(&baton)
	if err == nil && !baton.Valid {
		err = errors.New("it was lost before the hand-over")
	}
	return baton.String, err
}

func (s postgresStore) write(key string, fence int64) (bool, error) {
	result, err := s.database.Exec("UPDATE ring SET writer = 'go', fence = $1 WHERE key = $2 AND fence < $1", fence, key)
	if err != nil {
		return false, err
	}
	rows, err := result.RowsAffected()
	return rows == 1, err
}
