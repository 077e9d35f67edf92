#!/bin/sh
# A pool on this machine: etcd, two memory nodes and two compute nodes, each a process, with metrics.
# Without etcd (Debian: etcd-server) the first memory node keeps the membership.
#
#   examples/cluster.sh            starts it, says how to use it, and serves until Ctrl-C
#   examples/cluster.sh --check    starts it, puts, gets, kills a compute node, gets again, and stops
#
# DMTREE is the binary: target/release/dmtree by default, which
# `cargo build --release -p dmtree-cli --features metrics` makes.
set -eu

cd "$(dirname "$0")/.."
dmtree=${DMTREE:-target/release/dmtree}
port=${PORT:-7000}
first=127.0.0.1:$port
if [ ! -x "$dmtree" ]; then
    echo "there is no $dmtree: cargo build --release -p dmtree-cli --features metrics" >&2
    exit 2
fi

logs=$(mktemp -d)
processes=
etcd= pool=
stop() {
    trap - EXIT INT TERM
    # Compute nodes hand over and leave before memory goes.
    for process in $processes; do
        kill "$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
    done
    if [ -n "$etcd" ]; then
        kill "$etcd" 2>/dev/null || true
        wait "$etcd" 2>/dev/null || true
    fi
    rm -r "$logs"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Its own keys: whatever has them belongs to the pool.
"$dmtree" keys new "$logs/pool.keys" >"$logs/keys"
export DMTREE_KEY_FILE="$logs/pool.keys"

# start NAME ARGUMENT...: a process, with its output in a file of this name.
start() {
    name=$1
    shift
    "$dmtree" "$@" >"$logs/$name" 2>&1 &
    processes="$! $processes"
    eval "$name=$!"
}

# await FILE TEXT: until the file has a line with the text, ten seconds at most.
await() {
    tries=0
    until grep -q "$2" "$logs/$1"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 200 ]; then
            echo "$1 has not said $2:" >&2
            cat "$logs/$1" >&2
            exit 1
        fi
        sleep 0.05
    done
}

kept=
if command -v etcd >/dev/null; then
    client=http://127.0.0.1:$((port + 1)) peer=http://127.0.0.1:$((port + 2))
    etcd --data-dir "$logs/etcd-data" --log-level error --listen-client-urls "$client" \
        --advertise-client-urls "$client" --listen-peer-urls "$peer" \
        --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$logs/etcd" 2>&1 &
    etcd=$!
    pool=etcd://127.0.0.1:$((port + 1))/example
    kept="--membership $pool"
else
    echo "there is no etcd: the first memory node keeps the membership"
fi
# (Words on purpose. The founder waits for etcd, which takes a moment to begin.)
start mn0 memnode --listen "$first" --memory-bytes 256MiB --memory-nodes 2 $kept
await mn0 serves
first=${pool:-$first}
start mn1 memnode --listen 127.0.0.1:0 --memory-bytes 256MiB --join "$first"
await mn1 serves
# (An address that is none: a binary with metrics says so.)
metrics="--metrics 127.0.0.1:0"
if "$dmtree" node --connect "$first" --metrics nowhere 2>&1 | grep -q 'without the feature'; then
    echo "no metrics: the binary is built without them"
    metrics=
fi
# (Words on purpose.)
start cn0 node --connect "$first" $metrics
start cn1 node --connect "$first" $metrics
await cn0 'serves the pool'
await cn1 'serves the pool'

ask() {
    echo "$1" | "$dmtree" shell --connect "$first" --index example
}

if [ "${1:-}" != --check ]; then
    "$dmtree" status --connect "$first"
    grep -h 'metrics at' "$logs/cn0" "$logs/cn1" || true
    echo
    echo "export DMTREE_KEY_FILE=$DMTREE_KEY_FILE"
    echo "$dmtree shell --connect $first"
    echo "$dmtree top --connect $first"
    wait
    exit 0
fi

expect() {
    if [ "$1" != "$2" ]; then
        echo "expected $2, got $1" >&2
        exit 1
    fi
}
expect "$(ask 'put key value')" 'done'
expect "$(ask 'get key')" 'value'
"$dmtree" status --connect "$first"
kill -9 "$cn0"
expect "$(ask 'get key')" 'value'
expect "$(ask 'put key another')" 'done'
expect "$(ask 'get key')" 'another'
echo "a compute node was killed, and nothing was lost"
