"""Processes of the original package vsqs 0.3, which share a directory with a test.

Run as `python vsqs_original.py publish|consume|receive DIRECTORY ...`:

publish DIRECTORY NAME COUNT: messages `NAME-0`, `NAME-1`, ...; prints each id.
consume DIRECTORY SECONDS: receives and deletes until nothing comes for that long; prints `id payload`.
receive DIRECTORY WINDOW: one message, and leaves it in flight; prints `id payload`.
"""

import os
import subprocess
import sys
import warnings


def main() -> None:
    warnings.simplefilter("ignore")
    from vsqs import queue as vsqs

    verb, directory, *arguments = sys.argv[1:]
    manager = vsqs.QueueManager(os.path.dirname(directory))
    queue = manager.get_queue(os.path.basename(directory))
    if verb == "publish":
        name, count = arguments
        for number in range(int(count)):
            print(queue.publish(f"{name}-{number}".encode()))
    elif verb == "consume":
        while (found := queue.receive(visibility_timeout=60, timeout=int(arguments[0])))[0] is not None:
            queue.delete(found[0])
            print(found[0], found[1].decode())
    else:
        mid, data = queue.receive(visibility_timeout=int(arguments[0]), timeout=10)
        print(mid, data.decode())
    sys.stdout.flush()
    os._exit(0)  # its observer's thread is in nobody's way


def original(*arguments: object) -> "subprocess.Popen[str]":
    """Starts one of these processes. arguments: the command line of this module."""
    return subprocess.Popen([sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def output(process: "subprocess.Popen[str]") -> list[str]:
    """Returns the lines that a process prints, once it has ended without an error."""
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return text.splitlines()


if __name__ == "__main__":
    main()
