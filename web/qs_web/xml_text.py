"""Indents XML. The parser reads no other file or host, expands no entity, and takes no document type."""

from lxml import etree

_DEEPEST = 200
"""Elements inside one another that are indented: lxml's own functions call themselves for each."""


def indent_xml(payload: bytes) -> str | None:
    """Returns an XML document with one element a line, None if it is none, or has a document type."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False, recover=False
    )
    if b"<!DOCTYPE" in payload:
        return None
    try:
        root = etree.fromstring(payload, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    if _depth(root) > _DEEPEST:
        return None
    tree = root.getroottree()
    etree.indent(tree)
    return etree.tostring(tree, encoding="unicode")


def _depth(root: etree._Element) -> int:
    """Returns how many elements are inside one another."""
    deepest = depth = 0
    for event, _ in etree.iterwalk(root, events=("start", "end")):
        depth += 1 if event == "start" else -1
        deepest = max(deepest, depth)
    return deepest
