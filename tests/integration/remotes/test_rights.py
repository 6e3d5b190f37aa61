"""Rights to queues that another server keeps: the same as to others, also for what waits there."""

import signal
from pathlib import Path

from support.clients.access import Caller, principal, write_access
from support.clients.documents import code, mids, new_queue, payloads, push, receive, req, subscribe
from support.servers.remote import Elsewhere
from support.storage.memcached import needs_memcached

pytestmark = needs_memcached
ADMIN = principal("admin", admin=True)


def test_what_waits_there(elsewhere: Elsewhere, storage: str, tmp_path: Path) -> None:
    """A receive and a subscription that wait at the other server end with an error when they are no longer allowed. The
    next message is for others."""
    access = write_access(tmp_path / "access.toml", [ADMIN, principal("reader", read=["*"])])
    with (
        elsewhere.serving(tmp_path / "root", "--access", str(access)) as server,
        Caller(server, "admin-token") as admin,
        Caller(server, "reader-token") as waiting,
        Caller(server, "reader-token") as subscriber,
    ):
        assert code(admin.ask(new_queue("q", f'<options storage="{storage}"/>'))) == 0
        with elsewhere.waited_at(storage, 2):
            assert code(subscriber.ask(subscribe("q"))) == 0
            waiting.send(receive("q", wait=600, req="w"))
        write_access(access, [ADMIN])
        server.process.send_signal(signal.SIGHUP)
        for caller, asked in ((waiting, "w"), (subscriber, "s")):
            line = caller.line()
            assert (code(line), req(line)) == (401, asked)
        assert code(admin.ask(push("q", "x"))) == 0
        assert payloads(admin.ask(receive("q", wait=20))) == ["x"]


def test_keys(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """A key in memcached belongs to the principal that used it, too."""
    writers = [principal(name, write=["*"]) for name in ("one", "two")]
    access = write_access(tmp_path / "access.toml", [ADMIN, *writers])
    with (
        elsewhere.serving(tmp_path / "root", "--access", str(access)) as server,
        Caller(server, "admin-token") as admin,
        Caller(server, "one-token") as one,
        Caller(server, "two-token") as two,
    ):
        assert code(admin.ask(new_queue("q", '<options storage="memcached"/>'))) == 0
        first, other = (mids(writer.ask(push("q", "x", key="k"))) for writer in (one, two))
        assert first != other
        assert [mids(writer.ask(push("q", "y", key="k"))) for writer in (one, two)] == [first, other]
