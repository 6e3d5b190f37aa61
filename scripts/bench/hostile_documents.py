"""Measures how long documents that are meant to cost much hold a server or a bus, beside valid ones of the same length.

    python scripts/bench/hostile_documents.py

Each document is as long as its kind can be within the limits, at most 8 MiB. A server can do nothing else meanwhile, so
the longest time is what one stranger with one document can take from all others. Prints processor time, the least of
some rounds, the longest first, and the memory that the longest needed.
"""

import argparse
import resource
import time

from qs_schemas import NAMESPACE, Fault, Limits, Message, Peer

_LENGTH = Limits().document - 1000
_FOREIGN = ' xmlns:x="u:u"'
_MANY = 31
_ATTRIBUTES = " ".join(f"a{number}=''" for number in range(_MANY))
_FOREIGN_ATTRIBUTES = " ".join(f"x:a{number}=''" for number in range(_MANY))
_FEWER_ATTRIBUTES = " ".join(f"x:a{number}=''" for number in range(_MANY - 2))
_DECLARATIONS = " ".join(f"xmlns:n{number}='u:u{number}'" for number in range(_MANY - 1))
_IN_NAMESPACES = " ".join(f"n{number}:b=''" for number in range(_MANY - 1))


def _qs(inside: str, attributes: str = "", op: str = "ping", of_op: str = "") -> bytes:
    return f'<qs xmlns="{NAMESPACE}"{attributes}><op{of_op}><{op}/></op>{inside}</qs>'.encode()


def _push(payload: str, attributes: str = "") -> bytes:
    return _qs(f"<qid>q</qid>{payload}", attributes, "push-message")


def _full(begin: str, unit: str, end: str, most: int = _LENGTH) -> str:
    """Repeats the unit until the document is full, at most so many times."""
    return begin + unit * min(most, (_LENGTH - len(begin) - len(end)) // len(unit.encode())) + end


_NODES = Limits().elements - 20
_LONG_MESSAGE = f"<message><payload>{'x' * 8300}</payload></message>"
_DECLARING_QUEUE = f"<queue {_DECLARATIONS}>a</queue>"
_INLINE = f"<message><payload>{f'<n0:e {_IN_NAMESPACES}/>' * 17}</payload></message>"
_RELATIVE = " ".join(f"xmlns:y{number}='b'" for number in range(_MANY))
_VALID = {
    "text, plain": _push(_full("<payload>", "x", "</payload>")),
    "text": _push(_full("<!-- --><payload>", "x", "</payload>")),
    "base64": _push(_full("<!-- --><payload encoding='base64'>", "AAAA", "</payload>")),
    "references": _push(_full("<payload>", "&#65;", "</payload>")),
    "1,000 messages": _push(_full("<!-- --><messages>", _LONG_MESSAGE, "</messages>", 1000)),
    "10,000 names": _qs(_full("<!-- --><queues>", f"<queue>{'x' * 200}</queue>", "</queues>", 10_000), op="subscribe"),
    "inline XML": _push(_full(f"<payload><a {_DECLARATIONS}>", f"<b {_DECLARATIONS}/>", "</a></payload>", _NODES)),
    "inline XML in namespaces": _push(
        "<messages>" + _INLINE * 1000 + "</messages>", " " + _DECLARATIONS
    ),
}  # fmt: skip
_HOSTILE = {
    "white space in a name": _qs(_full("<qid>", " ", "a</qid>"), op="purge-queue"),
    "white space in names": _qs(_full("<queues>", f"<queue>{' ' * 800}a</queue>", "</queues>", 10_000), op="subscribe"),
    "white space in an option": _qs(_full("<qid>q</qid><options visibility='", " ", "'/>"), op="set-queue"),
    "white space between comments": _qs(_full("<qid>", "<!-- -->" + " " * 400, "a</qid>", _NODES), op="purge-queue"),
    "white space between elements": _qs(_full("", " ", "")),
    "digits": _qs(_full("<qid>q</qid><mid receives='", "1", "'>1</mid>"), op="delete-message"),
    "a long name": _qs(_full("<", "b", "/>")),
    "faulty parts": _qs(_full("<parts>", "<part/>", "</parts>", 10_000)),
    "faulty attributes of parts": _qs(_full("<parts>", f"<part {_ATTRIBUTES}/>", "</parts>", 10_000)),
    "faulty attributes of ids": _qs(_full("<messages>", f"<mid {_ATTRIBUTES}/>", "</messages>", 1000)),
    "a faulty part behind 9,999": _qs("<parts>" + "<part number='1' attempt='1'/>" * 9999 + "<part/></parts>"),
    "claims": _qs(_full("<claims>", "<claim/>", "</claims>", _NODES)),
    "figures of queues": _qs(_full("<queues>", "<queue new='!' ready='!'>a</queue>", "</queues>", 10_000)),
    "unknown elements": _qs(_full("", "<b/>", "", _NODES)),
    "foreign elements": _qs(_full("", f"<x:b {_FOREIGN_ATTRIBUTES}/>", "", _NODES), _FOREIGN),
    "declarations in a foreign element": _qs(
        _full("<b xmlns='u:u'>", f"<x:c xmlns:x='u:u' {_FEWER_ATTRIBUTES}/>", "</b>", _NODES)
    ),
    "foreign attributes": _qs(
        _full("<x:b/><queues>", f"<queue {_FOREIGN_ATTRIBUTES}>a</queue>", "</queues>", 10_000), _FOREIGN, "subscribe"
    ),
    "declarations": _qs(_full("<!-- --><queues>", _DECLARING_QUEUE, "</queues>", 10_000), op="subscribe"),
    "relative namespaces": _qs(_full("", f"<x:a {_RELATIVE}/>", "", _NODES), _FOREIGN),
    "prefixes without a namespace": _qs(_full("", f"<x:a {_IN_NAMESPACES}/>", "", _NODES), _FOREIGN),
    "comments": _qs(_full("<qid>", "<!---->a", "</qid>", _NODES)),
    "CDATA sections": _push(_full("<payload>", f"<![CDATA[{'a' * 400}]]>b", "</payload>", _NODES)),
    "undeclared entities": _push(_full("<payload>", "&a;", "</payload>")),
    "references to nothing": _push(_full("<payload>", "&#0;", "</payload>")),
    "ampersands": _push(_full("<payload>", "& ", "</payload>")),
    "control characters": _push(_full("<payload>", "\x01", "</payload>")),
    "]]>": _push(_full("<payload>", "]]>", "</payload>")),
    "no base64": _push(_full("<!-- --><payload encoding='base64'>", "@", "</payload>")),
    "too many elements": _qs(_full("", "<a/>", "")),
    "too many attributes": _qs(_full("<x ", "a='' ", "/>")),
    "tags that stay open": _qs(_full("", "<a>", "")),
    "tags, nested": _qs(_full("", "<a><a><a><a><a></a></a></a></a></a>", "")),
}  # fmt: skip


def _read(document: bytes) -> tuple[float, Message | Fault | None]:
    peer = Peer(serving=True)
    start = time.process_time()
    peer.receive_data(document)
    event = peer.next_event()
    return time.process_time() - start, event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: %(default)s)")
    rounds = parser.parse_args().rounds
    for title, documents in (("valid", _VALID), ("hostile", _HOSTILE)):
        rows = []
        for name, document in documents.items():
            found = [_read(document) for _ in range(rounds)]
            event = found[0][1]
            rows.append((min(seconds for seconds, _ in found), name, len(document), event))
        print(f"{title:32}{'bytes':>10}{'ms':>8}")
        for seconds, name, length, event in sorted(rows, key=lambda row: -row[0]):
            said = event.text[:60] if isinstance(event, Fault) else type(event).__name__
            print(f"{name:32}{length:10,}{seconds * 1000:8.0f}  {said}")
    print(
        f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB, all these documents included"
    )


if __name__ == "__main__":
    main()
