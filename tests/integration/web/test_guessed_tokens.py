"""Tokens that are guessed at the metrics leave nothing behind, and take no place from others."""

from pathlib import Path

import httpx
import pytest
import trio
from support.clients.access import principal, write_access
from support.servers.processes import FAST, serving

from qs_client.security import PLAIN, Token
from qs_web.app import make_app
from qs_web.options import WebOptions
from qs_web.serving import make_services
from qs_web.upstream import Identity

GUESSES = 100


@pytest.mark.parametrize("path", ["/metrics", "/metrics/queues"])
def test_guesses(tmp_path: Path, path: str) -> None:
    """After many wrong tokens there is what was there before them: the server as one visitor sees it."""
    access = write_access(tmp_path / "access.toml", [principal("ops", admin=True)])

    async def visit() -> None:
        options = WebOptions(server=(server.host, server.port))
        services = make_services(options, Identity(lambda: PLAIN), sign_in=True)
        transport = httpx.ASGITransport(make_app(services))

        async def guess(number: int) -> None:
            answer = await browser.get(path, headers={"authorization": f"Bearer wrong{number}"})
            assert answer.status_code == 401
            assert "the token is wrong" in answer.text

        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as browser:
            known = {"authorization": "Bearer ops-token"}
            assert (await browser.get(path, headers=known)).status_code == 200
            before = services.upstreams.of_visitor(Token("ops-token"))
            async with trio.open_nursery() as nursery:
                for number in range(GUESSES):
                    nursery.start_soon(guess, number)
            assert services.upstreams.of_visitor(Token("ops-token")) is before
            assert len(services.upstreams) == 1
        await services.upstreams.close()

    with serving(tmp_path / "root", *FAST, "--access", str(access)) as server:
        trio.run(visit)
