# shellcheck shell=bash
# What quickstart and tests/run share; sourced, from the top of the checkout. Works on Debian 12 as root or with sudo.

say() { printf '\n== %s\n' "$*"; }

fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# packages WHO...: the names in deploy/packages for these users.
packages() {
    local who name
    while read -r who name _; do
        case " $* " in *" $who "*) echo "$name" ;; esac
    done < deploy/packages
}

# install_missing WHO...: installs what is not there yet; asks nothing of the network when nothing is missing.
install_missing() {
    command -v dpkg-query > /dev/null || { say "not Debian: install these yourself: $(packages "$@" | tr '\n' ' ')"; return; }
    local name missing=() root=()
    for name in $(packages "$@"); do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2> /dev/null)" = installed ] || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo > /dev/null || fail "needs root or sudo for: apt-get install ${missing[*]}"
        root=(sudo)
    fi
    say "installing ${missing[*]}"
    # An index that cannot be refreshed matters only when the install then fails.
    "${root[@]}" apt-get -q -o DPkg::Lock::Timeout=300 update > /dev/null || true
    local log
    log=$(mktemp) || fail "no temporary file"
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
        install --no-install-recommends "${missing[@]}" > "$log" 2>&1 || {
        tail -n 20 "$log" >&2
        rm -f "$log"
        fail "apt-get could not install: ${missing[*]}"
    }
    rm -f "$log"
}

# build CMAKE_OPTION...: into build/; a directory that was configured before keeps its generator.
build() {
    local generator=() log
    [ -e build/CMakeCache.txt ] || generator=(-G Ninja)
    log=$(mktemp) || return
    cmake -S . -B build "${generator[@]}" "$@" > "$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; return 1; }
    rm -f "$log"
    cmake --build build -j "$(nproc)"
}

# What Open MPI needs to be told on any one host: root may run it, ranks may outnumber cores, and containers often forbid one
# process to read another's memory.
mpi_environment() {
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
    if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
}
