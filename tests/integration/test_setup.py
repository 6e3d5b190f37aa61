"""scripts/setup.sh, which installs qs into `.venv`."""

import shutil
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
PYTHON = """#!/bin/sh
# Makes an environment like `python -m venv`, whose last file is `activate`; runs everything else.
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"; printf '#!/bin/sh\\n' > "$3/bin/python"; chmod +x "$3/bin/python"; touch "$3/bin/activate"
else
    exec "{python}" "$@"
fi
"""


def test_a_set_up_that_was_cut_off(tmp_path: Path) -> None:
    """An environment without `activate`, as a Ctrl-C leaves it, is completed by the next set-up."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    half = tmp_path / ".venv" / "bin" / "python"
    half.parent.mkdir(parents=True)
    python = tmp_path / "python"
    for path, text in ((half, "#!/bin/sh\n"), (python, PYTHON.format(python=sys.executable))):
        path.write_text(text)
        path.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(python)}
    subprocess.run(
        ["bash", "-c", '. scripts/setup.sh && setup ""'], cwd=tmp_path, env=environment, check=True, timeout=60
    )
    assert (half.parent / "activate").exists()
    assert (tmp_path / ".venv" / ".qs-setup").exists()
