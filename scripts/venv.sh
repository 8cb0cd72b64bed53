# Sourced by the other scripts: defines $root, $python and prepare_venv.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$root/.venv/bin/python"

# Prints the comment block under a script's first line as its help text.
show_help() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1"
}

# Makes $root/.venv, or updates it when pyproject.toml or the checkout's path has changed.
#   prepare_venv      installs penstock with everything that the tests and the linters need
#   prepare_venv run  installs penstock alone, with its dependencies; uses a full .venv if there is one
#   prepare_venv docs installs what builds the site into $root/.venv-docs, and sets $python to that one
# The stamp is written last, so the next call repeats an interrupted installation.
prepare_venv() {
    local folder="$root/.venv" what="$root[test]" stamp full
    full="$folder/installed-from"
    stamp="$full"
    if [[ "${1-}" == run ]]; then
        what="$root" stamp="$root/.venv/installed-to-run"
    elif [[ "${1-}" == docs ]]; then
        what="$root[docs]" folder="$root/.venv-docs"
        stamp="$folder/installed-from" full="$stamp" python="$folder/bin/python"
    fi
    if is_fresh "$stamp" || is_fresh "$full"; then
        return
    fi
    local base="${PYTHON:-python3}"
    if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "scripts/${0##*/}: $base is missing or older than Python 3.11;" \
            "install a newer one, or name one: PYTHON=python3.12 scripts/${0##*/}" >&2
        return 1
    fi
    echo "preparing $folder, once" >&2
    rm -f "$stamp"
    local pip=("$python" -m pip install) without=()
    if [[ "${1-}" == run ]] &&
        "$base" -m pip --python "$(command -v "$base")" --version &>/dev/null; then
        # To install pip into .venv, and to compile what it installs, takes as long as the rest.
        pip=("$base" -m pip --python "$python" install --no-compile) without=(--without-pip)
    elif ! "$python" -c 'import pip' 2>/dev/null; then
        "$base" -m venv --clear "$folder" || return
    fi
    "$python" -c '' 2>/dev/null || "$base" -m venv --clear "${without[@]}" "$folder" || return
    "${pip[@]}" --quiet --disable-pip-version-check --editable "$what" || return
    installation >"$stamp"
}

# What a stamp must hold for its installation to be up to date.
installation() {
    printf '%s\n%s' "$root" "$(<"$root/pyproject.toml")"
}

is_fresh() {
    [[ -f "$1" && "$(<"$1")" == "$(installation)" ]] && "$python" -c '' 2>/dev/null
}
