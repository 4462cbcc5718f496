#!/bin/sh
# A virtual machine with cgroup v2 alone and systemd as pid 1, for the tests in e2e/vm: the packages that run it are
# installed (as root on Debian), an image of Debian is made in the user's cache from the machine's own apt sources, and kept
# until this file changes; then the tests run with it.
#
#	vm.sh          make it where there is none, and run the tests
#	vm.sh image    make it, and print its folder
#
# Where that cannot be done it says so and ends well.
set -eu
cd "$(dirname "$0")/.."

recipe=$PWD/tools/vm.sh
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vigil/vm

fail() {
	echo "vm: $*" >&2
	exit 1
}

skip() {
	echo "SKIPPED, NOTHING IS SHOWN IN A VIRTUAL MACHINE: $*" >&2
	exit 0
}

packages() {
	missing=
	command -v qemu-system-x86_64 >/dev/null || missing="qemu-system-x86"
	command -v mmdebstrap >/dev/null || missing="$missing mmdebstrap"
	command -v mke2fs >/dev/null || missing="$missing e2fsprogs"
	[ -n "$missing" ] || return 0
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || skip "not installed: $missing"
	echo "installing for the virtual machine: $missing"
	apt-get update -qq || echo "could not update the list of packages"
	# shellcheck disable=SC2086 # they are words
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || skip "could not install: $missing"
}

# What the guest has beyond a minimal Debian: systemd, its kernel, what the tests' scripts call, an ordinary user, and an
# agent that waits for the host's words. What would only slow its start is masked.
build() { # FOLDER
	. /etc/os-release
	sources=
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
		[ ! -s "$file" ] || sources="$sources $file"
	done
	[ -n "$sources" ] || fail "no sources of Debian in /etc/apt"
	root=$1/root
	# shellcheck disable=SC2086,SC2016 # sources are words; $1 is the hook's
	mmdebstrap --quiet --mode=root --variant=minbase \
		--include=systemd-sysv,dbus,libpam-systemd,linux-image-cloud-amd64,initramfs-tools,curl,iproute2,procps,prometheus \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"' \
		--essential-hook='echo MODULES=list >"$1/etc/initramfs-tools/conf.d/vm"' \
		--essential-hook='printf "virtio_pci\nvirtio_blk\n" >"$1/usr/share/initramfs-tools/modules.d/vm"' \
		"$VERSION_CODENAME" "$root" $sources
	cp "$root"/boot/vmlinuz-* "$1/vmlinuz"
	cp "$root"/boot/initrd.img-* "$1/initrd.img"
	rm -rf "$root"/boot/*
	echo vigil-vm >"$root/etc/hostname"
	printf '127.0.0.1 localhost vigil-vm\n::1 localhost\n' >"$root/etc/hosts"
	printf 'LABEL=root / ext4 defaults 0 0\nLABEL=tests /vm ext4 ro,x-systemd.device-timeout=0 0 0\n' >"$root/etc/fstab"
	mkdir "$root/vm"
	chroot "$root" useradd --uid 1000 --create-home --shell /bin/sh trainer
	cat >"$root/etc/systemd/system/agent.service" <<-'EOF'
		[Unit]
		RequiresMountsFor=/vm
		[Service]
		ExecStart=/bin/sh /vm/agent
		Delegate=yes
		OOMPolicy=continue
		LimitCORE=0
		[Install]
		WantedBy=multi-user.target
	EOF
	chroot "$root" systemctl --quiet enable agent.service
	chroot "$root" systemctl --quiet disable prometheus.service
	chroot "$root" systemctl --quiet mask getty@tty1.service serial-getty@ttyS0.service systemd-timesyncd.service e2scrub_reap.service \
		e2scrub_all.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer logrotate.timer \
		systemd-networkd.service systemd-update-utmp.service systemd-binfmt.service sys-kernel-debug.mount sys-kernel-tracing.mount
	mke2fs -q -t ext4 -L root -d "$root" "$1/root.img" 1400M
	rm -rf "$root"
}

image() { # prints the folder
	folder=$cache/$(sha256sum <"$recipe" | cut -c 1-16)
	if [ ! -e "$folder/root.img" ]; then
		[ "$(id -u)" = 0 ] || skip "only root can make the image of a machine"
		rm -rf "$cache"
		mkdir -p "$folder.new"
		echo "vm: making a Debian in $folder; some minutes and 1 GB" >&2
		sh -eu "$recipe" build "$folder.new" >"$cache/log" 2>&1 || skip "no image could be made: $(tail -n 1 "$cache/log") (all of it: $cache/log)"
		mv "$folder.new" "$folder"
	fi
	echo "$folder"
}

if [ "${1:-}" = build ]; then
	build "$2"
	exit
fi
case $(uname -m) in x86_64) ;; *) skip "this machine is no x86-64" ;; esac
packages >&2
folder=$(image)
[ -n "$folder" ] || exit 0
if [ "${1:-}" = image ]; then
	echo "$folder"
	exit
fi
VIGIL_VM=$folder exec ${GO:-go} test -timeout 90m -count=1 -v ./e2e/vm
