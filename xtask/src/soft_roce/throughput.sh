#!/bin/bash
# READs of 64 bytes with 8 outstanding: dmtree and perftest in turns. Fails when the median of
# dmtree is below 0.8 of the median of perftest. $1 is the binary dmtree.
set -e
bytes=64 outstanding=8 seconds=2 rounds=5
theirs=() ours=()
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }
for round in $(seq $rounds); do
    port=$((18515 + round))
    options="-d rxe0 -x ${GID_INDEX:-1} -p $port -s $bytes -t $outstanding -o $outstanding -D $seconds -F"
    ib_read_bw $options >/tmp/server 2>&1 &
    for try in $(seq 40); do
        # State 0A is a socket that listens.
        if grep -q ":$(printf %04X $port) 0*:0000 0A" /proc/net/tcp /proc/net/tcp6; then break; fi
        sleep 0.1
    done
    ib_read_bw $options 127.0.0.1 >/tmp/client 2>&1 || { cat /tmp/server /tmp/client; exit 1; }
    wait
    # The last column of the line that begins with the size: millions of messages per second.
    rate=$(awk -v size=$bytes '$1 == size { printf "%.0f", $NF * 1000000 }' /tmp/client)
    [ -n "$rate" ] && [ "$rate" -gt 0 ] || { cat /tmp/client; exit 1; }
    theirs+=("$rate")
    line=$("$1" fabric probe --fabric verbs --verb read --bytes $bytes --clients $outstanding --seconds $seconds 2>/dev/null)
    rate=$(printf '%s' "$line" | sed 's/.*bytes: \([0-9]*\) per second.*/\1/')
    ours+=("$rate")
    echo "round $round: perftest ${theirs[-1]}, dmtree ${ours[-1]} READs per second"
done
a=$(median "${ours[@]}") b=$(median "${theirs[@]}")
echo "medians: perftest $b, dmtree $a, ratio $(awk "BEGIN { printf \"%.2f\", $a / $b }")"
[ $((a * 10)) -ge $((b * 8)) ]
