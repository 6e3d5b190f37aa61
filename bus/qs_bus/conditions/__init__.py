"""Decides which messages a subscriber gets: conditions over the XML of a payload and over the headers, `op/@where`.

`grammar` reads the text of a condition, `condition` runs it, `document` parses a payload.
"""

from .condition import Condition
from .document import Document
from .tokens import BadCondition

__all__ = ["BadCondition", "Condition", "Document"]
