"""Bus, server and subscribers killed, and the network cut, under load, again and again: everybody gets everything."""

import os
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from support.bus.world import Round, World, world
from support.faults import pass_time
from support.storage.postgres import Database, needs_postgres

SEED = int(os.environ.get("QS_KILL_SEED", "20251121"))
FEW = 3
MANY = 50


def kill_bus(at_work: World) -> str:
    at_work.bus.kill()
    at_work.go_on(30)
    at_work.bus.start()
    return "the bus is killed"


def kill_server(at_work: World) -> str:
    at_work.server.kill()
    at_work.restart_server()
    return "the server is killed"


def kill_subscriber(at_work: World) -> str:
    at_work.process.kill()
    at_work.go_on(30)
    at_work.process.start()
    at_work.process.ready()
    return "a subscriber is killed"


def kill_two(at_work: World) -> str:
    """Two of the three, one shortly after the other, and back in any order."""
    kills = {"bus": at_work.bus.kill, "server": at_work.server.kill, "subscriber": at_work.process.kill}
    starts = {"bus": at_work.bus.start, "server": at_work.restart_server, "subscriber": at_work.process.start}
    doomed = list(at_work.rng.choice(list(combinations(sorted(kills), 2))))
    for actions in (kills, starts):
        at_work.rng.shuffle(doomed)
        for name in doomed:
            actions[name]()
    if "subscriber" in doomed:
        at_work.process.ready()
    return f"{' and '.join(sorted(doomed))} are killed"


def stop(at_work: World) -> str:
    """Asks the bus or the server to end: that is no worse than a kill."""
    what = at_work.rng.choice(("bus", "server"))
    code = at_work.bus.stop() if what == "bus" else at_work.server.stop()
    assert code == 0
    if what == "bus":
        at_work.go_on(30)
        at_work.bus.start()
    else:
        at_work.restart_server()
    return f"the {what} is stopped"


def cut(at_work: World) -> str:
    """The network between bus and server stands still for a moment, and goes on or breaks; or breaks at once."""
    proxy = at_work.proxy
    assert proxy is not None
    how = at_work.rng.choice(("it stands still", "it stands still, then breaks", "it breaks"))
    if "still" in how:
        proxy.stall()
        pass_time(at_work.rng.uniform(0, 0.3))
    if "breaks" in how:
        proxy.cut()
    if "still" in how:
        proxy.resume()
    return f"the network: {how}"


def may_come_again(fault: str) -> set[str]:
    """Returns the members to whom a message may come again. moving: members that go without saying what they have
    handled."""
    names = {"steady", "shared", "moving", "some, shared"}
    if "bus" in fault:
        return {"singly", "few ahead", "gives back", "library", "process", "silent", "some", "some, by pattern"} | names
    if "server" in fault or "breaks" in fault:
        return names  # what was to be stored for a name may have been, and be stored again
    return {"shared", "moving"} if "subscriber" in fault else {"moving"}


def rounds(folder: Path, fault: Callable[[World], str], number: int, seed: int, **how: Any) -> list[Round]:
    print(f"seed {seed}; repeat with QS_KILL_SEED={SEED}")
    with world(folder, seed, proxied=fault is cut, **how) as at_work:
        for _ in range(number):
            done = at_work.round(fault)
            assert {name for name, count in done.again.items() if count} <= may_come_again(done.fault), done
    pushed = sum(each.pushed for each in at_work.rounds)
    again = sum((Counter(each.again) for each in at_work.rounds), Counter())
    print(
        f"{pushed} pushes answered in {sum(each.seconds for each in at_work.rounds):.0f} s; came again: {dict(again)}"
    )
    for what in sorted({each.fault for each in at_work.rounds}):
        of = [each for each in at_work.rounds if each.fault == what]
        print(f"  {what}: {len(of)} times, came again: {dict(sum((Counter(each.again) for each in of), Counter()))}")
    assert pushed > 0
    return at_work.rounds


FAULTS = [kill_bus, kill_server, kill_subscriber, kill_two, stop, cut]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_few_faults(fault: Callable[[World], str], tmp_path: Path) -> None:
    """Every answered push reaches each acknowledging subscriber that stays, and each name; it is not deleted before."""
    rounds(tmp_path, fault, FEW, SEED)


@pytest.mark.long  # half a minute
@pytest.mark.parametrize("fault", [kill_two, stop])
def test_a_few_faults_as_by_default(fault: Callable[[World], str], tmp_path: Path) -> None:
    """Without any flag, no message is lost: every answer is durable, and the bus is told of no queue."""
    rounds(tmp_path, fault, FEW, SEED + 2, monitored=False, flags=())


@pytest.mark.slow
@needs_postgres
@pytest.mark.parametrize("fault", [kill_bus, pytest.param(kill_two, marks=pytest.mark.long)])
def test_a_few_faults_over_postgres(database: Database, fault: Callable[[World], str], tmp_path: Path) -> None:
    """Everybody gets everything also with queues of PostgreSQL, the bus's own among them. Some 5 s, and 20 s if a
    server is killed: what it had handed out comes back after 8 s."""
    flags = "--postgres", database.dsn, "--storage", "postgres"
    rounds(tmp_path, fault, 2, SEED + 3, flags=flags, in_database=True)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_many_faults(fault: Callable[[World], str], tmp_path: Path) -> None:
    """In fifty rounds of each fault at random moments, no message is lost. Takes one to four minutes each."""
    rounds(tmp_path, fault, MANY, SEED + 1)
