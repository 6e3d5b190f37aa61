"""Directory queues in the layouts of dirq, as a library: no server, any number of processes and threads.

    from qs_storage import dirq

    queue = dirq.QueueSimple("/var/spool/orders")
    queue.add(b"hello")
    for name in queue:
        if queue.lock(name):
            print(queue.get(name))
            queue.remove(name)

Classes, arguments, results and errors are those of dirq's documentation, release 1.3; the directories are shared live
with the Python package dirq and its relatives in other languages. A program that imports `dirq.queue` or
`dirq.QueueSimple` needs another package name and nothing else. What differs, above all that elements survive a power
loss by default, is told in docs/dirq.md.
"""

import sys

from . import base
from .base import QueueBase, QueueError, QueueLockError, QueueNull, QueueSet
from .queue import Queue
from .QueueSimple import QueueSimple

# dirq has a module for each of these, whose names programs import.
for _name in ("Exceptions", "QueueBase", "QueueNull", "QueueSet"):
    sys.modules[f"{__name__}.{_name}"] = base
Exceptions = base

# Four names are both a module and the class in it, and here they are the class. Programs that import the module by its
# path and then write the path out find the class there too.
for _class in (QueueBase, QueueNull, QueueSet, QueueSimple):
    setattr(_class, _class.__name__, _class)
del _class, _name

__all__ = ["Queue", "QueueError", "QueueLockError", "QueueNull", "QueueSet", "QueueSimple"]
