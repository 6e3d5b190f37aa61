"""Computes what a power loss leaves of a file system: an image, and the image as a real directory.

A RecordingDisk (power_loss_disk) logs what an engine does; a World (power_loss_world) plays the log up to any point and
knows what is durable there; power_loss_run records a run, power_loss_model knows what must hold, power_loss_check
compares."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.power_loss_disk import Entry
from support.power_loss_nodes import EVERYTHING, NOTHING, Directory, File, Node
from support.power_loss_pages import Pages
from support.power_loss_world import World


class Left(NamedTuple):
    """A file or a directory (pages: None) that is there after the power loss. number: the same for hard links; content:
    tells it from other contents of the same file."""

    path: str
    number: int
    content: object
    pages: Pages | None
    attributes: dict[str, bytes]


class Image(NamedTuple):
    """The files that are left, each directory before what is in it. key: equal images have equal keys."""

    left: list[Left]
    key: object


def power_loss(world: World, how: str) -> Image:
    """Makes the state of the disk after a power loss now. how: NOTHING or EVERYTHING of what is not durable, or else
    the seed of a mixture."""
    rng = None if how in (NOTHING, EVERYTHING) else random.Random(how)
    world.dirty = {number: node for number, node in world.dirty.items() if node.dirty}
    last = None if rng is None or not world.ordered else _last(world, rng)
    cuts = _cuts(world, how, rng, last)
    found: list[Left] = []
    contents: dict[int, tuple[object, Pages]] = {}
    attributes: dict[int, dict[str, bytes]] = {}
    for path, node in _walk(world.root, "", cuts):
        if node.number not in attributes:
            attributes[node.number] = _attributes(node, how, rng, last)
            if isinstance(node, File):
                contents[node.number] = node.left(how, rng)
        content, pages = contents.get(node.number, (None, None))
        found.append(Left(path, node.number, content, pages, attributes[node.number]))
    return Image(found, tuple((*one[:3], tuple(sorted(one.attributes.items()))) for one in found))


def without_checkpoint(image: Image) -> Image:
    """Returns the image without the journal's checkpoint, which is a cache: a start finds the same in the segments."""
    left = [one for one in image.left if one.path != ".journal/checkpoint"]
    return image if len(left) == len(image.left) else Image(left, (image.key, "without"))


def _last(world: World, rng: random.Random) -> int:
    """The last change of a name or an attribute that is there, where they are kept in their order."""
    names = [change.number for node in world.dirty.values() if isinstance(node, Directory) for change in node.changes]
    attributes = [number for node in world.dirty.values() for number, _, _ in node.attribute_changes]
    return rng.choice([0, *sorted(names + attributes)])


def _cuts(world: World, how: str, rng: random.Random | None, last: int | None) -> dict[int, int]:
    """Returns, by directory, how many of its changes of names are there."""
    directories = [node for node in world.dirty.values() if isinstance(node, Directory) and node.changes]
    if rng is None:
        return {node.number: len(node.changes) if how == EVERYTHING else 0 for node in directories}
    if last is not None:
        return {node.number: sum(change.number <= last for change in node.changes) for node in directories}
    cuts = {
        node.number: rng.choice((0, len(node.changes), rng.randrange(len(node.changes) + 1))) for node in directories
    }
    while any(_without_its_need(node, cuts) for node in directories):
        pass
    return cuts


def _without_its_need(directory: Directory, cuts: dict[int, int]) -> bool:
    """Tells whether a change had to be taken back, as what it needs is not there."""
    for index, change in enumerate(directory.changes[: cuts[directory.number]]):
        if change.needs is not None:
            other, number = change.needs
            if number in (later.number for later in other.changes[cuts.get(other.number, 0) :]):
                cuts[directory.number] = index
                return True
    return False


def _walk(directory: Directory, above: str, cuts: dict[int, int]) -> Iterator[tuple[str, Node]]:
    for name, node in directory.entries_after(cuts.get(directory.number, 0)).items():
        yield above + name, node
        if isinstance(node, Directory):
            yield from _walk(node, f"{above}{name}/", cuts)


def _attributes(node: Node, how: str, rng: random.Random | None, last: int | None) -> dict[str, bytes]:
    changes = len(node.attribute_changes)
    if rng is None or not changes:
        return node.attributes_after(changes if how == EVERYTHING else 0)
    if last is not None:
        return node.attributes_after(sum(number <= last for number, _, _ in node.attribute_changes))
    return node.attributes_after(rng.choice((0, changes, rng.randrange(changes + 1))))


def lay_out(image: Image, directory: str, modified: int | None = None) -> None:
    """Makes the image a directory, which must exist and be empty. modified: when everything was, seconds since the
    Epoch; None: now."""
    made: dict[int, str] = {}
    for path, number, _, pages, attributes in image.left:
        full = f"{directory}/{path}"
        if pages is None:
            os.mkdir(full)
        elif number in made:
            os.link(made[number], full)
            continue
        else:
            made[number] = full
            _write(full, pages)
        for name, value in attributes.items():
            os.setxattr(full, name, value)
    if modified is not None:
        for left in reversed(image.left):
            os.utime(f"{directory}/{left.path}", (modified, modified))


def _write(path: str, pages: Pages) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    try:
        end = 0
        for offset, part in pages.parts():
            end = max(end, offset + os.pwrite(fd, part, offset))
        if end != pages.size:
            os.ftruncate(fd, pages.size)
    finally:
        os.close(fd)


def pick_up(directory: str, *, ordered: bool = False, whole: bool = False) -> World:
    """A world in which everything that is in a real directory is durable."""
    world = World(ordered=ordered, whole=whole)
    links: dict[int, str] = {}
    for above, directories, files in os.walk(directory):
        relative = "" if above == directory else os.path.relpath(above, directory) + "/"
        for name in sorted(directories):
            world.play(Entry("mkdir", (relative + name,)))
        for name in sorted(files):
            _pick_up_file(world, f"{above}/{name}", relative + name, links)
    world.sync_all()
    return world


def _pick_up_file(world: World, full: str, path: str, links: dict[int, str]) -> None:
    known = links.setdefault(os.stat(full).st_ino, path)
    if known != path:
        world.play(Entry("link", (known, path)))
        return
    world.play(Entry("open", (0, path, os.O_CREAT)))
    world.play(Entry("write", (0, 0, Path(full).read_bytes())))
    world.play(Entry("close", (0,)))
    for name in os.listxattr(full):
        if name.startswith("user."):
            world.play(Entry("setxattr", (path, name, os.getxattr(full, name))))


def points(log: list[Entry]) -> list[int]:
    """The entries at which a power loss can leave something else than at the one before."""
    return [number for number, entry in enumerate(log) if entry.changes]
