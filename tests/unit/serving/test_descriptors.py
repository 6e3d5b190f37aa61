"""The limit of open files: how many clients there may be under it."""

import resource

import pytest

from qs_serving.errors import StartError
from qs_serving.listening import fit_descriptors
from qs_serving.options import ServerLimits

LIMITS = ServerLimits(connections=1000, handshakes=200, leaving=200)


class Kernel:
    """Stands in for the limits of this process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.limit = soft, hard

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.limit

    def set(self, which: int, limit: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        assert limit[1] == self.limit[1]
        self.limit = limit


def fit(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> tuple[ServerLimits, int]:
    """Returns the limits of a process that itself needs 100 to 600 files, and the soft limit afterwards."""
    kernel = Kernel(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", kernel.get)
    monkeypatch.setattr(resource, "setrlimit", kernel.set)
    return fit_descriptors(LIMITS, 100, 600), kernel.limit[0]


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(100, 9999, 2000), (1999, 2000, 2000), (5000, 9999, 5000), (100, -1, 2000), (-1, -1, -1)],
)
def test_fit_descriptors_of_a_high_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soft: int, hard: int, raised: int
) -> None:
    """The soft limit is raised so that all connections fit, and never lowered; nothing is logged."""
    assert fit(monkeypatch, soft, hard) == (LIMITS, raised)
    assert not caplog.messages


@pytest.mark.parametrize("hard", [116, 150, 199, 200, 500, 1199, 1200, 1300, 1999])
def test_fit_descriptors_of_a_low_limit_keeps_half(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    """The process keeps as many as it needs itself, half of the limit at most; the rest is for clients."""
    limits, raised = fit(monkeypatch, 64, hard)
    clients = limits.connections + limits.handshakes + limits.leaving
    assert raised == hard
    assert hard - clients >= min(600, max(100, hard // 2))
    assert limits.connections <= LIMITS.connections
    assert min(limits.connections, limits.handshakes, limits.leaving) >= 1
    assert limits.connections >= clients * 5 // 7


def test_fit_descriptors_takes_handshakes_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A low limit leaves fewer handshakes and refused clients before it leaves fewer connections, which is not
    logged."""
    limits, _ = fit(monkeypatch, 64, 1950)
    assert limits.connections == 1000
    assert limits.handshakes < 200
    assert not caplog.messages


def test_fit_descriptors_refuses_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """With next to nothing left for clients, the start is refused, with what is needed."""
    with pytest.raises(StartError, match="the limit of open files is 115, and 116 are needed at least"):
        fit(monkeypatch, 64, 115)
