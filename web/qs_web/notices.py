"""Lines that say what an action has done. The address of the next page has their keys, never their text."""

_NOTICES = {
    "pushed": ("Pushed 1 message.", "Pushed {} messages."),
    "deleted": ("Deleted 1 message.", "Deleted {} messages."),
    "released": ("Released 1 message.", "Released {} messages."),
    "redriven": ("Moved 1 message back.", "Moved {} messages back."),
    "redriven-in-part": (
        "Moved 1 message back so far, and more wait: move all back again to go on.",
        "Moved {} messages back so far, and more wait: move all back again to go on.",
    ),
    "rejected": ("Rejected 1 message: it is a dead letter now.", "Rejected {} messages: they are dead letters now."),
    "purged": ("Purged the queue: 1 message removed.", "Purged: {} messages removed."),
    "paused": ("Paused 1 queue.", "Paused {} queues."),
    "resumed": ("Resumed 1 queue.", "Resumed {} queues."),
    "queues-deleted": ("Deleted 1 queue.", "Deleted {} queues."),
    "created": ("Created the queue.", "Created {} queues."),
    "changed": ("Changed the options.", "Changed {} options."),
    "nothing": ("Nothing was selected.", "Nothing was selected."),
}


def notice(key: str, number: str) -> str:
    """Returns the line of a key, "" for a key that there is not. number: digits, else 1 is taken."""
    one, many = _NOTICES.get(key, ("", ""))
    count = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 1
    return one if count == 1 else many.format(f"{count:,}")
