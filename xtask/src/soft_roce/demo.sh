#!/bin/bash
# The demo on the process of a memory node, started before that process and after it: processes may
# start in any order. $1 is the binary dmtree.
set -e
listen=127.0.0.1:7004
"$1" demo --connect $listen >/tmp/early 2>&1 &
early=$!
sleep 1
"$1" memnode --fabric verbs --listen $listen --memory-bytes 64MiB &
memnode=$!
if ! wait $early; then
    cat /tmp/early
    exit 1
fi
grep "on fabric verbs" /tmp/early
"$1" demo --connect $listen
kill $memnode
wait $memnode
