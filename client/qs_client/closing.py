"""Context managers for everything that has a `close` or an `aclose`: the end of the block calls it."""

from types import TracebackType
from typing import Self


class Closing:
    """A with block over an object whose `close` ends it."""

    def close(self) -> None:
        """Ends the object's work. May be called more than once."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing:
    """An async with block over an object whose `aclose` ends it."""

    async def aclose(self) -> None:
        """Ends the object's work. May be called more than once."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
