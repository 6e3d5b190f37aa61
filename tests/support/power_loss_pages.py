"""The content of a file in memory: pages, of which those that hold nothing but zeros need no room."""

from collections.abc import Iterator

PAGE = 4096
_ZEROS = bytes(PAGE)


class Pages:
    """Bytes that can be written anywhere. A copy shares its pages with the original."""

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytes] = {}

    def copy(self) -> "Pages":
        found = Pages()
        found.size, found.pages = self.size, dict(self.pages)
        return found

    def write(self, offset: int, data: bytes) -> None:
        """Fills what lies between the end and the offset with zeros."""
        self.size = max(self.size, offset + len(data))
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, PAGE)
            part = data[done : done + PAGE - start]
            if len(part) < PAGE:
                page = self.pages.get(number, _ZEROS)
                page = page[:start] + part + page[start + len(part) :]
            else:
                page = bytes(part)
            if page == _ZEROS:
                self.pages.pop(number, None)
            else:
                self.pages[number] = page
            done += len(part)

    def resize(self, size: int) -> None:
        """Cuts off, or adds zeros."""
        if size < self.size:
            last, rest = divmod(size, PAGE)
            for number in [number for number in self.pages if number >= last]:
                page = self.pages.pop(number)
                if number == last and rest:
                    self.pages[number] = page[:rest] + _ZEROS[rest:]
        self.size = size

    def read(self, offset: int, length: int) -> bytes:
        """Fewer bytes at the end."""
        length = max(min(length, self.size - offset), 0)
        first = offset // PAGE
        numbers = range(first, (offset + length + PAGE - 1) // PAGE)
        whole = b"".join(self.pages.get(number, _ZEROS) for number in numbers)
        return whole[offset - first * PAGE :][:length]

    def parts(self) -> Iterator[tuple[int, bytes]]:
        """Returns the parts that are not zeros, with their places."""
        for number, page in self.pages.items():
            yield number * PAGE, page[: self.size - number * PAGE]
