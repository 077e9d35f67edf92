#!/bin/busybox sh
# First process of the throwaway machine: loads drivers, then mounts the host's file system (read
# only) with a writable layer on top.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do
    /bin/busybox insmod "/modules/$module" || echo "no module $module"
done </modules/order
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /lower
/bin/busybox mount -t tmpfs tmpfs /layer
/bin/busybox mkdir /layer/upper /layer/work
/bin/busybox mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work overlay /root
/bin/busybox umount /dev /proc
exec /bin/busybox switch_root /root "$(/bin/busybox cat /guest)"
