#!/usr/bin/env bash
# system_packages.sh: what tests need of the system, when root on a Debian that lacks it: Chromium and a font for the
#   browser tests, iproute2 and nftables for hosts made of network namespaces, OpenSSH for hosts that are reached by ssh,
#   QEMU and libibverbs for a machine that has an RDMA card, Slurm and munge for hosts that Slurm allocates, Prometheus,
#   libfaketime for a host whose clock is ahead.
# system_packages.sh --leave-out: the arguments for run_tests.py that leave the browser tests out where there is no
#   Chromium.
set -euo pipefail

have_chromium() { command -v chromium >/dev/null; }
have_hosts() { command -v ip >/dev/null && command -v nft >/dev/null; }
have_ssh() { command -v ssh >/dev/null && [ -x /usr/sbin/sshd ]; }
have_machine() { command -v qemu-system-x86_64 >/dev/null && [ -e /etc/libibverbs.d/rxe.driver ] && ldconfig -p | grep -q librdmacm; }
have_slurm() { command -v sbatch >/dev/null && [ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && [ -x /usr/sbin/munged ]; }
have_faketime() { compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null; }
have_prometheus() { command -v prometheus >/dev/null; }

if [ "${1:-}" = --leave-out ]; then
  have_chromium || printf '%s' '--leave-out browser'
  exit
fi
have_chromium && have_hosts && have_ssh && have_machine && have_slurm && have_prometheus && have_faketime && exit
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  packages=()
  have_chromium || packages+=(chromium fonts-dejavu-core)
  have_hosts || packages+=(iproute2 nftables)
  have_ssh || packages+=(openssh-client openssh-server)
  have_machine || packages+=(qemu-system-x86 ibverbs-providers librdmacm1)
  have_slurm || packages+=(slurmctld slurmd slurm-client munge)
  have_prometheus || packages+=(prometheus)
  have_faketime || packages+=(libfaketime)
  echo "== Debian packages for tests: ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # apt checks signatures as a user of its own, who may not be let into this one's directory.
  TMPDIR=$(mktemp -d /var/tmp/monarch-apt-XXXXXX)
  export TMPDIR
  trap 'rm -rf "$TMPDIR"' EXIT
  chmod 1777 "$TMPDIR"
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
else
  have_chromium || {
    echo "== NO BROWSER TESTS: there is no chromium on PATH and this user can't install it."
    echo "   Remedy: sudo apt-get install chromium fonts-dejavu-core"
  }
  have_hosts || {
    echo "== NO TESTS BETWEEN HOSTS: they need ip and nft, and root."
    echo "   Remedy: sudo apt-get install iproute2 nftables, and run them as root"
  }
  have_ssh || {
    echo "== NO TESTS OF HOSTS THAT ARE REACHED BY SSH: they need ssh and sshd, and root."
    echo "   Remedy: sudo apt-get install openssh-client openssh-server, and run them as root"
  }
  have_machine || {
    echo "== NO TESTS OVER RDMA CARDS: they need QEMU and the driver of Soft-RoCE."
    echo "   Remedy: sudo apt-get install qemu-system-x86 ibverbs-providers librdmacm1 iproute2"
  }
  have_slurm || {
    echo "== NO TESTS OF HOSTS THAT SLURM ALLOCATES: they need slurmctld, slurmd, munged and the commands of Slurm, and root."
    echo "   Remedy: sudo apt-get install slurmctld slurmd slurm-client munge, and run them as root"
  }
  have_prometheus || {
    echo "== NO TESTS WITH PROMETHEUS: there is no prometheus on PATH."
    echo "   Remedy: sudo apt-get install prometheus"
  }
  have_faketime || {
    echo "== NO TEST OF CLOCKS THAT DIFFER: libfaketime is not installed."
    echo "   Remedy: sudo apt-get install libfaketime"
  }
fi
