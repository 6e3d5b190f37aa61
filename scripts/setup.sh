# Sourced by run and test: installs what pyproject.toml asks for into .venv, in the versions and with the hashes of
# uv.lock: with uv if there is one, otherwise with venv and pip, which read them from requirements/. Does nothing if these files have not changed since the last set-up.
# Usage: setup EXTRA   (the extra of the project to install; "" for none)
setup() {
    local root extras stamp wanted python
    root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
    cd "$root"
    extras="$1"
    stamp="$root/.venv/.qs-setup"
    # A set-up for the tests also serves the server, and must stay one: uv would remove what the tests need.
    if [ -f "$stamp" ] && [[ "$(cat "$stamp")" = dev\ * ]]; then extras=dev; fi
    python="${PYTHON:-python3}"
    if ! command -v "$python" >/dev/null 2>&1; then
        echo "qs needs Python 3.11 or newer, and there is no $python: install it, or set PYTHON to another one" >&2
        return 1
    fi
    "$python" -B scripts/entry.py || return 1
    wanted="$extras $("$python" - <<'PY'
import hashlib, pathlib
files = [pathlib.Path(name) for name in ("pyproject.toml", "uv.lock", "scripts/setup.sh")]
files += sorted(pathlib.Path("requirements").glob("*.txt"))
print(hashlib.sha256(b"".join(f.read_bytes() for f in files if f.exists())).hexdigest(), pathlib.Path.cwd())
PY
)" || return 1
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return 0; fi
    echo "setting up .venv, once; this takes up to a minute or two" >&2
    if command -v uv >/dev/null 2>&1; then
        uv sync --quiet --locked --python "$python" ${extras:+--extra "$extras"} || return 1
    else
        [ -f .venv/bin/activate ] || "$python" -m venv .venv || return 1  # written last
        install_pinned || return 1
    fi
    # A start without bytecode takes twice the processor time, and where PYTHONDONTWRITEBYTECODE is set, or the files
    # belong to another user, every start would be one.
    .venv/bin/python -m compileall -q schemas payloads serving storage server client bus web pipeline testing || return 1
    printf '%s' "$wanted" > "$stamp"
}

# Installs with pip. Nothing is downloaded whose hash is not in requirements/, not to build a package either.
install_pinned() {
    local pinned pip
    pinned=requirements/run.txt
    if [ "$extras" = dev ]; then pinned=requirements/dev.txt; fi
    pip=(.venv/bin/python -m pip install -qq --disable-pip-version-check)
    if ! { "${pip[@]}" --require-hashes --only-binary :all: -r requirements/build.txt &&
        "${pip[@]}" --require-hashes --no-build-isolation --use-pep517 -r "$pinned"; }; then
        echo "setting up .venv failed: pip, above, says which package of $pinned or requirements/build.txt it could" \
            "not install. A wrong hash means that a package is not the one that qs was tested with." >&2
        return 1
    fi
    if ! "${pip[@]}" --no-deps --no-build-isolation --editable .; then
        echo "setting up .venv failed: pip, above, says why it could not install qs itself" >&2
        return 1
    fi
}
