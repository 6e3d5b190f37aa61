"""Addresses within the page."""

from urllib.parse import urlencode


class Links:
    """Makes the addresses of the page. Names of queues are in the query: a queue may be named `..` or `a/b`."""

    def __init__(self, path: str) -> None:
        """path: what all addresses begin with, "" or "/…"."""
        self.path = path

    def __call__(self, page: str, /, **query: object) -> str:
        """Returns the path of a page with a query. page: "" for the queues, else a name; query: None leaves a name
        out."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return f"{self.path}/{page}" + (f"?{urlencode(given)}" if given else "")

    def is_local(self, address: str) -> bool:
        """Tells whether an address that a browser has sent leads to a page of this site."""
        return (
            address.startswith(f"{self.path}/")
            and not address.startswith("//")
            and "\\" not in address
            and address.isprintable()
        )
