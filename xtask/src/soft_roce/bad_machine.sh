#!/bin/bash
# What dmtree says when the machine lacks something: one error that names cause and remedy, soon. Takes the machine apart: run last.
# $1 is the binary dmtree.
dmtree=$1
failed=0
# expect STATUS WORDS COMMAND...: the words are in what it prints, and it ends within 20 seconds.
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
probe="$dmtree fabric probe --fabric verbs --verb read --seconds 0.05"

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
expect 1 "MISSING  port" "$dmtree" doctor --fabric verbs
rdma link del rxe0
expect 2 "this machine has no RDMA device" $probe
expect 1 "MISSING  devices" "$dmtree" doctor --fabric verbs
mkdir -p /tmp/hidden
mv /usr/lib/x86_64-linux-gnu/libibverbs.so.1* /tmp/hidden/
expect 2 "libibverbs.so.1 is not there: apt-get install" $probe
expect 1 "MISSING  library" "$dmtree" doctor --fabric verbs
expect 0 "READ of 64 bytes" "$dmtree" fabric probe --verb read --seconds 0.05
exit $failed
