"""Asks a page for its metrics once a second until it is killed, as Prometheus does: python scraper.py URL

Prints how many seconds each answer took and how many bytes it had: who starts it can wait for the first.
"""

import sys
import time
import urllib.request


def main() -> None:
    """Scrapes for ever."""
    due = time.monotonic()
    while True:
        began = time.monotonic()
        with urllib.request.urlopen(sys.argv[1], timeout=30) as answer:
            size = len(answer.read())
        print(time.monotonic() - began, size, flush=True)
        due += 1
        time.sleep(max(due - time.monotonic(), 0))


if __name__ == "__main__":
    main()
