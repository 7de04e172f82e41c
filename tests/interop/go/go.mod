module dlock/interop/worker

go 1.19

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/gomodule/redigo v1.9.2
	github.com/lib/pq v1.10.9
	golang.org/x/sys v0.13.0
)
