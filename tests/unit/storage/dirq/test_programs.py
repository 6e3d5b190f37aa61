"""The example programs of dirq's documentation, with another package name and another directory; and all the ways in
which programs import the classes."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qs_storage import dirq

SIMPLE = """
from dirq.QueueSimple import QueueSimple

# sample producer

dirq = QueueSimple('/tmp/test')
for count in range(1,101):
    name = dirq.add("element %i\\n" % count)
    print("# added element %i as %s" % (count, name))

# sample consumer

dirq = QueueSimple('/tmp/test')
for name in dirq:
    if not dirq.lock(name):
        continue
    print("# reading element %s" % name)
    data = dirq.get(name)
    # one could use dirq.unlock(name) to only browse the queue...
    dirq.remove(name)
"""

QUEUE = """
from dirq.queue import Queue

# simple schema:
# - there must be a "body" which is a string
# - there can be a "header" which is a table/dictionary

schema = {"body": "string", "header": "table?"}
queuedir = "/tmp/test"

# sample producer

dirq = Queue(queuedir, schema=schema)
import os
for count in range(1,101):
    name = dirq.add({"body"  : "element %i"%count,
                     "header": dict(os.environ)})
    print("# added element %i as %s" % (count, name))

# sample consumer

dirq = Queue(queuedir, schema=schema)
name = dirq.first()
while name:
    if not dirq.lock(name):
        name = dirq.next()
        continue
    print("# reading element %s" % name)
    data = dirq.get(name)
    # one can use data['body'] and data['header'] here...
    # one could use dirq.unlock(name) to only browse the queue...
    dirq.remove(name)
    name = dirq.next()
"""

SET = """
from dirq.queue import Queue, QueueSet

dq1 = Queue("/tmp/q1")
dq2 = Queue("/tmp/q2")
dqset = QueueSet(dq1, dq2)
# dqs = [dq1, dq2]
# dqset = QueueSet(dqs)

(dq, elt) = dqset.first()
while dq:
    # you can now process the element elt of queue dq...
    print("# found element %s" % elt)
    (dq, elt) = dqset.next()
"""

NULL = """
from dirq.QueueNull import QueueNull

# sample producer

dirq = QueueNull()
for count in range(1,101):
    name = dirq.add("element %i\\n" % count)
"""


def run(program: str, directory: Path) -> list[str]:
    """Runs it in an interpreter of its own, and returns its output: nothing was imported before."""
    text = program.replace("from dirq.", "from qs_storage.dirq.").replace("/tmp/", f"{directory}/")
    assert text.count("qs_storage") == program.count("import ") - program.count("import os")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("program", [SIMPLE, QUEUE], ids=["QueueSimple", "Queue"])
def test_producer_and_consumer(tmp_path: Path, program: str) -> None:
    """A hundred elements are added and read, in the same order, and the queue is empty then."""
    printed = run(program, tmp_path)
    names = [line.rpartition(" ")[2] for line in printed]
    assert printed[:100] == [f"# added element {number} as {name}" for number, name in enumerate(names[:100], 1)]
    assert printed[100:] == [f"# reading element {name}" for name in names[:100]]
    left = [name for _, _, files in os.walk(tmp_path / "test") for name in files]
    assert left == []


def test_set(tmp_path: Path) -> None:
    """The elements of both queues."""
    queues = [dirq.Queue(str(tmp_path / name), schema={"a": "string"}, sync=False) for name in ("q1", "q2")]
    names = [queue.add({"a": ""}) for _ in range(3) for queue in queues]
    assert run(SET, tmp_path) == [f"# found element {name}" for name in sorted(names)]


def test_null(tmp_path: Path) -> None:
    """The null queue does nothing."""
    assert run(NULL, tmp_path) == []


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("", "Queue QueueSimple QueueSet QueueNull QueueError QueueLockError"),
        (".queue", "Queue QueueSet QueueError QueueLockError"),
        (".QueueSimple", "QueueSimple"),
        (".QueueSet", "QueueSet"),
        (".QueueNull", "QueueNull"),
        (".QueueBase", "QueueBase"),
        (".Exceptions", "QueueError QueueLockError"),
    ],
)
def test_imports(module: str, names: str) -> None:
    """The package, and each module that the documentation names, export the same classes."""
    imported = importlib.import_module(f"qs_storage.dirq{module}")
    for name in names.split():
        found = getattr(imported, name)
        assert isinstance(found, type)
        assert name not in dirq.__all__ or found is getattr(dirq, name)


@pytest.mark.parametrize(
    "program",
    [
        "import qs_storage.dirq.QueueSimple\nfrom qs_storage import dirq\ndirq.QueueSimple({path!r})",
        (
            "from qs_storage.dirq.QueueSimple import QueueSimple as Q\nimport qs_storage\n"
            "Q(qs_storage.dirq.QueueSimple({path!r}).path)"
        ),
        "import qs_storage.dirq.queue\nqs_storage.dirq.queue.Queue({path!r})",
        "from qs_storage import dirq\ndirq.queue.Queue({path!r})",
        "import qs_storage.dirq.QueueSimple\nqs_storage.dirq.QueueSimple.QueueSimple({path!r})",
        "import qs_storage.dirq.QueueNull as n\nn.QueueNull().add('')\nimport os\nos.mkdir({path!r})",
        (
            "import qs_storage.dirq as dirq\ndirq.QueueSimple({path!r})\n"
            "try:\n    raise dirq.Exceptions.QueueLockError\nexcept dirq.QueueError:\n    pass"
        ),
    ],
)
def test_ways_to_import(tmp_path: Path, program: str) -> None:
    """Programs may name the class by the package or by the module, in any order."""
    path = str(tmp_path / "q")
    run_plain(program.format(path=path))
    assert os.path.isdir(path)


def run_plain(program: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", program], timeout=60, check=True)
