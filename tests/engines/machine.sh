#!/usr/bin/env bash
# The first process of a machine with container engines: namespaces of its own for the network, mounts and processes, so
# that all of it ends with this process. Called with a directory for logs, and the engines to start.
set -euo pipefail
logs=$1 group=$2
shift 2
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/{lock,netns,user,docker-data,containers,image,over/etc,over/lib,work/etc,work/lib}
# What is written to /etc, /var/lib and to homes is this machine's alone.
mount -t overlay -o lowerdir=/etc,upperdir=/run/over/etc,workdir=/run/work/etc overlay /etc
mount -t overlay -o lowerdir=/var/lib,upperdir=/run/over/lib,workdir=/run/work/lib overlay /var/lib
mount -t tmpfs -o mode=755 tmpfs /home
mkdir -p /etc/containers
cat >/etc/containers/storage.conf <<END
[storage]
driver = "overlay"
runroot = "/run/containers/run"
graphroot = "/run/containers/root"
END
# runc, since crun refuses machines that have control groups of both versions.
cat >/etc/containers/containers.conf <<END
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
END
ip link set lo up
ip netns add client
ip link add outer type veth peer name eth0 netns client
ip addr add 10.97.0.1/24 dev outer
ip link set outer up
ip -n client addr add 10.97.0.2/24 dev eth0
ip -n client link set eth0 up
ip -n client link set lo up
sysctl -qw net.ipv4.ip_forward=1

# etcd, something that only sleeps, and the libraries of both.
image=/run/image
for program in etcd sleep; do
  file=$(command -v "$program")
  install -D "$file" "$image/usr/bin/$program"
  ldd "$file" | grep -o '/[^ ]*' | while read -r library; do install -D "$library" "$image$library"; done
done
mkdir "$image/tmp"

# A user with an engine of its own; what the engine takes of the machine is there for all users elsewhere.
make_user() {
  useradd --create-home --shell /bin/bash user
  install -d -o user -m 700 "/run/user/$(id -u user)"
  mknod -m 666 /run/tun c 10 200
  mount --bind /run/tun /dev/net/tun
  printf '%s\n' '[storage]' 'driver = "vfs"' | install -D -o user /dev/stdin /home/user/.config/containers/storage.conf
}

for engine in "$@"; do
  if [ "$engine" = user ]; then
    make_user
    continue
  fi
  if [ "$engine" = docker ]; then
    dockerd --data-root /run/docker-data --exec-root /run/docker --pidfile /run/docker.pid --cgroup-parent "/$group" \
      --exec-opt native.cgroupdriver=cgroupfs --host unix:///run/docker.sock --host tcp://127.0.0.1:2375 --tls=false \
      >"$logs/dockerd.log" 2>&1 &
    until docker version >/dev/null 2>&1; do
      kill -0 $! || { tail -n 3 "$logs/dockerd.log"; exit 1; }
      sleep 0.05
    done
  fi
  if ! tar -C "$image" -c . | "$engine" import - localhost/etcd >>"$logs/import.log" 2>&1; then
    tail -n 3 "$logs/import.log"
    exit 1
  fi
  "$engine" network create pdtest >/dev/null 2>>"$logs/import.log"
done
echo ready
# Takes what engines leave to it, until it is killed.
exec tini -s -- sleep infinity
