"""Messages that stay for long beside others that come and go: the log goes round, and every start finds the same, with
or without the checkpoint and with whatever of the removed segments is there still."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.examples import examples
from support.power_loss.check import fast_directory
from support.power_loss.log_world import World, small_segments

_USUAL = {
    "push_hot": 40,
    "push_backlog": 3,
    "push_cold": 0.5,
    "receive": 0.2,
    "release": 0.2,
    "extend": 0.1,
    "delete": 0.2,
    "purge": 0.03,
    "wait": 0.05,
}
_KINDS = {
    "plain": _USUAL,
    "keyed": _USUAL | {"push_keyed": 1, "redrive": 0.5},
    "shared": _USUAL | {"copy": 0.5, "make_again": 0.1, "redrive": 0.2},
    "claims": _USUAL | {"claim": 0.3, "acknowledge": 0.2, "end_claim": 0.1, "stage": 0.3, "publish": 0.1},
    "attributed": _USUAL
    | {"push_attributed": 2, "set_limits": 0.2, "copy": 0.4, "redrive": 0.5, "receive_others": 0.5, "wait": 0.1},
    "attributed claims": _USUAL
    | {
        "push_attributed": 1,
        "claim": 0.3,
        "acknowledge": 0.2,
        "end_claim": 0.2,
        "stage_attributed": 0.5,
        "publish": 0.2,
    },
    "old": _USUAL | {"push_old": 0.6, "retire": 0.3, "receive_others": 0.5, "redrive": 0.3, "put_files": 0.1},
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[World]:
    small_segments(monkeypatch)
    with fast_directory(tmp_path) as folder:
        made = World(folder / "root", random.Random(seed))
        made.begin()
        yield made
        made.engine.close()


@pytest.mark.parametrize("kinds", _KINDS.values(), ids=_KINDS)
@pytest.mark.parametrize("seed", range(3, 3 + examples(1)))
def test_every_start_finds_the_same(world: World, kinds: dict[str, float]) -> None:
    """On copies of the directory, and itself now and then."""
    for step in range(300):
        world.step(kinds)
        if step % 60 == 59:
            world.check()
        if step % 70 == 69:
            world.reopen()
    assert world.rounds > 15
