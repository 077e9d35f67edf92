# Runs in the throwaway machine: creates the Soft-RoCE device, runs the list, reports the result on
# the console, powers off. DIR, KERNEL_DIR and MARK are set above by the program that wrote this
# file.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C
trap 'echo "$MARK status ${status:-99}"; sync; echo o >/proc/sysrq-trigger; sleep 60' EXIT
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
set -e
ulimit -l unlimited
ulimit -c 0
for module in crc32_generic rdma_rxe ib_uverbs rdma_ucm veth; do
    modprobe -d "$KERNEL_DIR" "$module"
done
ip link set lo up
ip link add v0 type veth peer name v1
for end in v0 v1; do ip link set "$end" mtu 4200 up; done
ip addr add 10.99.0.1/24 dev v0
rdma link add rxe0 type rxe netdev v0
for _ in $(seq 50); do
    if [ "$(cat /sys/class/infiniband/rxe0/ports/1/state)" = "4: ACTIVE" ]; then break; fi
    sleep 0.1
done
set +e
status=0
while IFS= read -r line; do
    [ -n "$line" ] || continue
    echo "$MARK run $line"
    began=$(cut -d' ' -f1 /proc/uptime)
    (cd "$DIR" && timeout -s KILL 600 bash -c "$line") 2>&1
    code=$?
    echo "$MARK done $code $began $(cut -d' ' -f1 /proc/uptime)"
    if [ "$code" != 0 ]; then status=$code; fi
done <"$DIR/list"
