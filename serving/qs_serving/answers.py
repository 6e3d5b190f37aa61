"""Makes the ids of answers."""

import secrets
from itertools import count

new_resp = map(f"{secrets.token_hex(24)}{{:016x}}".format, count(1)).__next__
"""Returns the id of an answer: 64 hex digits, never the same twice. It is built from C functions, as every answer needs
one."""
