#!/bin/bash
# Checks the errors of dmtree when the machine lacks something: one error that names cause and
# remedy, soon. Takes the machine apart, so it runs last. $1 is the binary dmtree.
dmtree=$1
failed=0
# expect STATUS WORDS COMMAND...: the output has the words, and the command ends within 20 seconds.
expect() {
    local status=$1 words=$2
    shift 2
    said=$(timeout 20 "$@" 2>&1)
    local code=$?
    if [ $code != "$status" ] || [[ $said != *"$words"* ]] || [[ $said == *panicked* ]]; then
        printf 'NOT AS EXPECTED (status %s, wanted %s and "%s"): %s\n%s\n' $code "$status" "$words" "$*" "$said"
        failed=1
    else
        printf 'as expected: %s\n' "$(printf '%s' "$said" | grep -F -m1 -- "$words" | cut -c1-200)"
    fi
}
# serving FILE: a memory node with this output serves soon.
serving() {
    for try in $(seq 100); do
        if grep -q "compute nodes:" "$1"; then break; fi
        sleep 0.1
    done
}
probe="$dmtree fabric probe --fabric verbs --verb read --seconds 0.05"

serve="$dmtree memnode --fabric verbs --memory-bytes 64MiB --listen"
# A pool that works, and clients that do not fit it.
$serve 127.0.0.1:7001 >/tmp/memnode 2>&1 &
memnode=$!
serving /tmp/memnode
join="$dmtree shell --connect 127.0.0.1:7001"
expect 0 "done" bash -c "echo put a 1 | $join"
expect 2 "no device mlx9_7: there is rxe0" $join --device mlx9_7
expect 2 "no address at index 9: there is 0, 1" $join --gid-index 9
# A link-local address cannot connect to an IPv4 address.
expect 2 "choose addresses of one kind (--gid-index)" $join --gid-index 0
expect 2 "is on fabric verbs, not on tcp: give --fabric verbs" "$dmtree" bench quick --fabric tcp --nodes 127.0.0.1:7001
expect 2 "no process listens there" "$dmtree" shell --connect 127.0.0.1:7002
expect 2 "10.99.0.77:7001: no answer in time" "$dmtree" shell --connect 10.99.0.77:7001
expect 2 "is larger than the" "$dmtree" memnode --fabric verbs --listen 127.0.0.1:7003 --memory-bytes 3900MiB
expect 2 "ulimit -l unlimited" prlimit --memlock=1048576 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock $serve 127.0.0.1:7003
# The pool does not wait for a node that could not start: its number is free again.
$serve 127.0.0.1:7005 --memory-nodes 2 >/tmp/first 2>&1 &
first=$!
serving /tmp/first
second="$serve 127.0.0.1:7006 --join 127.0.0.1:7005 --wait 5"
expect 2 "ulimit -l unlimited" prlimit --memlock=1048576 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock $second
$second >/tmp/second 2>&1 &
second=$!
expect 0 "done" bash -c "echo put a 1 | $dmtree shell --connect 127.0.0.1:7005"
kill $second $first
wait $second $first
# Packets of 512 bytes cannot carry the WRITEs that the pool needs whole.
ip link set v0 mtu 1100
expect 2 "mtu is 512" $join
ip link set v0 mtu 4200
kill $memnode
wait $memnode

expect 0 "READ of 64 bytes" $probe
expect 2 "no device mlx9_7: there is rxe0" $probe --device mlx9_7
# Memory that may not be locked: without the capability that root has.
expect 2 "ulimit -l unlimited" prlimit --memlock=1048576 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock $probe
expect 1 "MISSING  locked memory" prlimit --memlock=1048576 setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock "$dmtree" doctor --fabric verbs
# No address, a port that is down, no device, no driver, no library.
ip addr flush dev v0
expect 0 "link-local" "$dmtree" doctor --fabric verbs
ip link set v0 down
expect 2 "no active port" $probe
expect 2 "no active port" $serve 127.0.0.1:7003
expect 1 "MISSING  port" "$dmtree" doctor --fabric verbs
rdma link del rxe0
expect 2 "this machine has no RDMA device" $probe
expect 2 "this machine has no RDMA device" $serve 127.0.0.1:7003
expect 1 "MISSING  devices" "$dmtree" doctor --fabric verbs
mkdir -p /tmp/hidden
mv /usr/lib/x86_64-linux-gnu/libibverbs.so.1* /tmp/hidden/
expect 2 "libibverbs.so.1 is not there: apt-get install" $probe
expect 2 "libibverbs.so.1 is not there: apt-get install" $serve 127.0.0.1:7003
expect 1 "MISSING  library" "$dmtree" doctor --fabric verbs
expect 0 "READ of 64 bytes" "$dmtree" fabric probe --verb read --seconds 0.05
exit $failed
