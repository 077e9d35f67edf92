# Runs in the throwaway machine: one writer on the machine's own disk, until the power fails. What the
# journal has comes first. MARK, DIR and KERNEL_DIR are set above by the program that wrote this file;
# LEVEL and ROUND, too.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
for module in virtio_blk ext4; do
    modprobe -d "$KERNEL_DIR" "$module"
done
mkdir -p /disk
if ! mount -t ext4 /dev/vda /disk; then
    echo "$MARK failed: the disk cannot be mounted"
    sleep 600
fi
writes() {
    echo "scan * * 100000"
    for ((n = 0; ; n++)); do
        echo "put key$((n * 7 % 500)) v$ROUND-$n"
    done
}
echo "$MARK begins"
writes | "$DIR/dmtree" shell --durable /disk/journal $LEVEL 2>&1
echo "$MARK failed: the shell has ended"
sleep 600
