"""Indents XML. The parser reads no other file or host, expands no entity, and takes no document type."""

from lxml import etree

_DEEPEST = 200
"""The deepest nesting that is indented: lxml's own functions call themselves for each level."""


def indent_xml(payload: bytes, most: int) -> str | None:
    """Returns an XML document with one element a line, None if it is none, has a document type, is too deep, or gets
    more than `most` characters longer."""
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False, recover=False
    )
    if b"<!DOCTYPE" in payload:
        return None
    try:
        root = etree.fromstring(payload, parser)
    except (etree.XMLSyntaxError, ValueError):
        return None
    if not _is_indentable(root, most):
        return None
    tree = root.getroottree()
    etree.indent(tree)
    return etree.tostring(tree, encoding="unicode")


def _is_indentable(root: etree._Element, most: int) -> bool:
    """Tells whether an element is not too deep, and whether the spaces and line ends are not too many."""
    depth = added = 0
    for event, _ in etree.iterwalk(root, events=("start", "end")):
        depth += 1 if event == "start" else -1
        added += 2 * depth + 1
        if depth > _DEEPEST or added > most:
            return False
    return True
