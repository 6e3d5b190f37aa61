# Sourced by run and test: makes .venv hold what pyproject.toml asks for, with uv when there is one,
# with venv and pip when not. Does nothing when the last set-up was of the same files.
# Usage: setup EXTRA...   (the extras of the project to install; "" for none)
setup() {
    local root extras stamp wanted python
    root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
    cd "$root"
    extras="$1"
    stamp="$root/.venv/.qs-setup"
    python="${PYTHON:-python3}"
    wanted="$extras $("$python" - <<'PY'
import hashlib, pathlib, sys
files = [pathlib.Path(name) for name in ("pyproject.toml", "uv.lock", "scripts/setup.sh")]
print(hashlib.sha256(b"".join(f.read_bytes() for f in files if f.exists())).hexdigest(), pathlib.Path.cwd())
if sys.version_info < (3, 11):
    sys.exit("qs needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON to a newer one.")
PY
)" || return 1
    # A set-up for the tests serves the server too.
    if [ -f "$stamp" ] && { [ "$(cat "$stamp")" = "$wanted" ] || [ "$(cat "$stamp")" = "dev${wanted#"$extras"}" ]; }; then
        return 0
    fi
    echo "setting up .venv (once; later calls start at once)" >&2
    if command -v uv >/dev/null 2>&1; then
        uv sync --quiet --locked --python "$python" ${extras:+--extra "$extras"} || return 1
    else
        [ -x .venv/bin/python ] || "$python" -m venv .venv || return 1
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}" || return 1
    fi
    printf '%s' "$wanted" > "$stamp"
}
