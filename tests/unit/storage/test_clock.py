"""The server's time against steps of the wall clock, over restarts and boots."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from zlib import crc32

import pytest
from support.storage.engines import EPOCH, FaultyDisk, SteppedMachine

from qs_storage.clock import NAME, ServerClock, boot_id, steady_clock
from qs_storage.disk import Disk
from qs_storage.engine import SECOND

HOUR = 3600 * SECOND
LATER = 20 * SECOND


@pytest.fixture
def machine(tmp_path: Path) -> SteppedMachine:
    return SteppedMachine(tmp_path)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def walks(clock: ServerClock, machine: SteppedMachine, micros: int, step: int = SECOND) -> Iterator[tuple[int, int]]:
    """Yields how long each step takes by the machine and by the clock."""
    before = clock.now()
    for _ in range(micros // step):
        machine.passes(step)
        now = clock.now()
        yield step, now - before
        before = now


def test_begins_with_the_wall_clock(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """The first start takes the wall clock's time, and goes with it; nothing is said."""
    clock = machine.start()
    assert clock.now() == EPOCH
    machine.passes(HOUR)
    assert clock.now() == EPOCH + HOUR
    assert told(caplog) == []


@pytest.mark.parametrize("step", [HOUR, -HOUR, 400 * SECOND, -2 * SECOND])
def test_a_step_moves_nothing(machine: SteppedMachine, step: int, caplog: pytest.LogCaptureFixture) -> None:
    """After a step of the wall clock every length lasts as long, within 2 %, and the log says once what happens."""
    clock = machine.start()
    machine.passes(LATER)
    before = clock.now()
    machine.wall.now += step
    assert clock.now() == before
    for took, lasted in walks(clock, machine, 100 * SECOND):
        assert 0.98 * took <= lasted <= 1.02 * took
    assert [("ahead of" if step > 0 else "behind") in line for line in told(caplog)][:1] == [True]
    assert sum("the wall clock is" in line for line in told(caplog)) == 1


@pytest.mark.parametrize("step", [10 * SECOND, -10 * SECOND])
def test_approaches_the_wall_clock(machine: SteppedMachine, step: int, caplog: pytest.LogCaptureFixture) -> None:
    """A difference of 10 s is gone after 500 s and not before, and the log says that both agree."""
    clock = machine.start()
    machine.wall.now += step
    machine.passes(LATER)
    clock.now()
    machine.passes(499 * SECOND)
    assert clock.now() != machine.wall()
    assert len(told(caplog)) == 1
    machine.passes(2 * SECOND)
    assert clock.now() == machine.wall()
    assert told(caplog)[1:] == ["the server's time and the wall clock agree again"]
    machine.passes(HOUR)
    assert clock.now() == machine.wall()
    assert len(told(caplog)) == 2


def test_the_line_says_how_long(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """The line about a step says by how much, which way, and how long it takes until both agree."""
    clock = machine.start()
    machine.wall.now -= HOUR
    machine.passes(2 * SECOND)
    clock.now()
    (line,) = told(caplog)
    assert "60.0 minutes behind the server's time" in line
    assert "2 % slower until both agree, in 2.1 days" in line


def test_steps_one_after_the_other(machine: SteppedMachine) -> None:
    """Steps in both directions, each before the last one is made up for: time never goes back and keeps its pace."""
    clock = machine.start()
    before, began = clock.now(), machine.steady()
    for step in (HOUR, -3 * HOUR, 5 * SECOND, 400 * SECOND, -HOUR, 3 * HOUR):
        machine.wall.now += step
        for took, lasted in walks(clock, machine, 20 * SECOND, SECOND // 3):
            assert 0.98 * took - 1 <= lasted <= 1.02 * took + 1
    assert abs(clock.now() - before - (machine.steady() - began)) <= (machine.steady() - began) // 50


def test_small_corrections_are_left_alone(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """A wall clock that moves by less than a second changes nothing, and fills no log."""
    clock = machine.start()
    machine.wall.now += SECOND // 2
    machine.passes(LATER)
    assert clock.now() == machine.wall() - SECOND // 2
    assert told(caplog) == []


def test_never_runs_backwards(machine: SteppedMachine) -> None:
    """While it runs slower, each microsecond of the machine moves it on or leaves it."""
    clock = machine.start()
    machine.wall.now -= HOUR
    machine.passes(2 * SECOND)
    clock.now()
    assert all(lasted in {0, 1} for _, lasted in walks(clock, machine, 300, 1))


@pytest.mark.parametrize("step", [HOUR, -HOUR])
@pytest.mark.parametrize("kill", [True, False])
def test_goes_on_over_a_restart(machine: SteppedMachine, step: int, kill: bool) -> None:
    """A restart on the same boot counts the time in between, and no step that was made meanwhile."""
    clock = machine.start()
    machine.passes(LATER)
    if kill:
        clock.now()  # a look, as each second of work has one
    else:
        clock.close()
    before = clock.now()
    machine.wall.now += step
    machine.passes(10 * SECOND)
    assert machine.start().now() == before + 10 * SECOND


def test_approaches_over_restarts(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """A restart in the middle of the approach goes on with it, and says again what is the matter."""
    clock = machine.start()
    machine.wall.now += 10 * SECOND
    machine.passes(LATER)
    clock.now()
    machine.passes(250 * SECOND)
    again = machine.start()
    assert again.now() == clock.now() == machine.wall() - 5 * SECOND
    assert len(told(caplog)) == 2
    machine.passes(250 * SECOND)
    assert again.now() == machine.wall()


def test_after_a_boot_it_is_the_wall_clock(machine: SteppedMachine) -> None:
    """A boot takes a time that only the wall clock knows."""
    machine.start().close()
    machine.boot(HOUR)
    assert machine.start().now() == machine.wall() == EPOCH + HOUR


def test_after_a_boot_it_is_not_earlier(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """A machine that boots with a clock behind goes on from the last time, and says so."""
    clock = machine.start()
    machine.passes(LATER)
    last = clock.now()
    machine.boot(-HOUR)
    clock = machine.start()
    assert clock.now() == last
    assert "behind the server's time" in told(caplog)[0]
    machine.passes(100 * SECOND)
    assert clock.now() == last + 98 * SECOND


def test_a_damaged_file_is_replaced(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """A file that is not ours means a start by the wall clock, a line in the log, and a good file."""
    (Path(machine.root) / NAME).write_bytes(b"qs-clock 1 boot-1 9 9")
    assert machine.start().now() == EPOCH
    assert "is damaged" in told(caplog)[0]
    machine.wall.now += HOUR
    assert machine.start().now() == EPOCH


def test_a_file_of_zeros_is_new(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """A file of zeros, which a power loss may leave of a new one, is not damage."""
    (Path(machine.root) / NAME).write_bytes(bytes(160))
    assert machine.start().now() == EPOCH
    assert told(caplog) == []


def test_a_time_from_the_future_of_its_boot(machine: SteppedMachine) -> None:
    """A file whose last time is later than its course says is of another clock: no time goes back."""
    machine.start().close()
    path = Path(machine.root) / NAME
    words = path.read_bytes().split()[:-1]
    words[-1] = b"%d" % (EPOCH + HOUR)
    text = b" ".join(words)
    path.write_bytes((text + b" %08x" % crc32(text)).ljust(159) + b"\n")
    assert machine.start().now() == EPOCH + HOUR


@pytest.mark.parametrize("bit", range(0, 160 * 8, 3))
def test_one_wrong_bit_moves_no_time(machine: SteppedMachine, bit: int) -> None:
    """A wrong bit in the file is noticed, or changes nothing: the time is not moved by years."""
    machine.start().close()
    path = Path(machine.root) / NAME
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    assert machine.start().now() == EPOCH


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_pretended_time(machine: SteppedMachine, step: int) -> None:
    """A start under a program that pretends another time, and also sets the clock since boot to it, is not a start 50
    years later; neither is the next one without that program."""
    machine.start().close()
    since_boot = machine.steady.now
    machine.wall.now += step
    machine.steady.now = machine.wall.now
    assert machine.start().now() == EPOCH + max(step, 0)
    machine.wall.now -= step
    machine.steady.now = since_boot
    assert machine.start().now() == EPOCH + max(step, 0)


@pytest.mark.parametrize("operation", ["open", "_pwrite"])
def test_a_disk_that_refuses(machine: SteppedMachine, operation: str, caplog: pytest.LogCaptureFixture) -> None:
    """A clock works without its file, says so once, and leaves no descriptor."""
    disk = FaultyDisk()
    disk.arm(1, errno.ENOSPC, operation, lasting=True)
    clock = machine.start(disk)
    for _ in range(3):
        machine.passes(2 * SECOND)
        assert clock.now() == machine.wall()
    clock.close()
    assert len(told(caplog)) == 1
    assert "after a restart it is the wall clock's" in told(caplog)[0]
    assert disk.descriptors == set()


def test_a_disk_that_refuses_for_a_while(machine: SteppedMachine) -> None:
    """Once the disk takes the file again, the time is in it."""
    disk = FaultyDisk()
    disk.arm(1, errno.ENOSPC, "_pwrite", lasting=True)
    clock = machine.start(disk)
    disk.disarm()
    machine.passes(2 * SECOND)
    clock.now()
    machine.wall.now -= HOUR
    assert machine.start().now() == EPOCH + 2 * SECOND


def test_follows_no_link(machine: SteppedMachine, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link in the place of the file is neither followed nor replaced."""
    other = tmp_path / "other"
    other.write_bytes(b"untouched")
    (tmp_path / NAME).symlink_to(other)
    assert machine.start().now() == EPOCH
    assert other.read_bytes() == b"untouched"
    assert len(told(caplog)) == 1


def test_an_interrupted_look_says_nothing(machine: SteppedMachine, caplog: pytest.LogCaptureFixture) -> None:
    """A process that stood still between its looks at the two clocks does not take that for a step."""
    clock = machine.start()
    machine.passes(2 * SECOND)
    machine.interrupted_for = 5 * SECOND
    clock.now()
    assert told(caplog) == []


def test_many_threads(tmp_path: Path) -> None:
    """Threads that read the real clock at the same time each see it go on."""
    clock = ServerClock(str(tmp_path), Disk())
    wrong: list[int] = []

    def read() -> None:
        before = clock.now()
        for _ in range(2000):
            now = clock.now()
            if now < before:
                wrong.append(now)
            before = now

    threads = [Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.close()
    assert wrong == []


def test_the_file_is_private(machine: SteppedMachine) -> None:
    """Only the server's user reads and writes the file."""
    machine.start().close()
    assert os.stat(f"{machine.root}/{NAME}").st_mode & 0o777 == 0o600


def test_the_systems_clocks() -> None:
    """The steady clock goes on, and the boot has a name that stays."""
    assert 0 < steady_clock() <= steady_clock()
    assert boot_id() == boot_id() != ""
