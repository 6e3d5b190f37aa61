"""The words for what is wrong with a payload, with a schema, or with the name of one."""

from typing import NamedTuple

LONGEST = 500
"""The most characters of a reason: it goes to a client, and into a log."""


class PayloadFault(NamedTuple):
    """Says why a payload is not valid.

    line: counted from 1, None if it is not known; element: its path below the root, such as `items/item[3]/total`, with
    `/@name` for an attribute; of JSON the path such as `/items/3/price`; empty if the whole payload is meant; reason:
    in plain words.
    """

    line: int | None
    element: str
    reason: str

    def __str__(self) -> str:
        place = [f"line {self.line}"] if self.line is not None else []
        if self.element:
            place.append(f"element '{self.element}'")
        return f"{', '.join(place)}: {self.reason}" if place else self.reason

    @classmethod
    def unchecked(cls, why: "UncheckedError") -> "PayloadFault":
        """Returns the fault of a payload that could not be checked."""
        return cls(None, "", f"could not be checked {why}")


class SchemaError(ValueError):
    """Reports that a file is no schema that can be used. The text says the file, the line if it is known, and why."""


class UncheckedError(Exception):
    """Reports that a payload could not be checked. The text says why, so that "could not be checked" can stand before
    it."""


class NoSuchSchemaError(LookupError):
    """Reports that there is no schema of a name. The text says which ones there are."""

    def __str__(self) -> str:
        return str(self.args[0])


def shortened(text: str, most: int = LONGEST) -> str:
    """Returns a text on one line, of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
