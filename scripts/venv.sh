# Sourced by the scripts beside it: gives them $root, $python and prepare_venv.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$root/.venv/bin/python"

# Prints the comment block under a script's first line as its help text.
show_help() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1"
}

# Makes $root/.venv, or brings it up to date when pyproject.toml or the checkout's place has changed.
# The stamp is written last, so an interrupted installation is taken up again by the next call.
prepare_venv() {
    local stamp="$root/.venv/installed-from" wanted
    wanted="$root"$'\n'"$(<"$root/pyproject.toml")"
    if [[ -f "$stamp" && "$(<"$stamp")" == "$wanted" ]] && "$python" -c '' 2>/dev/null; then
        return
    fi
    local base="${PYTHON:-python3}"
    if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "scripts/${0##*/}: $base is missing or older than Python 3.11;" \
            "install a newer one, or name one: PYTHON=python3.12 scripts/${0##*/}" >&2
        return 1
    fi
    echo "preparing $root/.venv (this takes a minute, once)" >&2
    rm -f "$stamp"
    "$python" -c '' 2>/dev/null || "$base" -m venv --clear "$root/.venv" || return
    "$python" -m pip install --quiet --disable-pip-version-check --editable "$root[test]" || return
    printf '%s' "$wanted" >"$stamp"
}
