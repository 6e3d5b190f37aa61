"""The work of the commands `qs-dir` and `queue-journal.py`, on directories that no server uses, or beside one.

Nothing here prints, reads flags or handles signals: functions return or yield what happened, and the commands print it.
"""


def counted(number: int, what: str) -> str:
    """Returns a number with its noun: `1 message`, `2 messages`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
