"""Three nodes of PostgreSQL, two queue servers and clients, under faults of every kind: no answered message is lost, no
deleted one comes back, and none comes twice without a reason that the promise names."""

import random
from pathlib import Path

import pytest
from support.storage.postgres import needs_postgres
from support.storage.postgres_world import FAULTS, SEED, kill_primary, kill_server, world

pytestmark = needs_postgres


@pytest.mark.slow
def test_a_few_faults_of_a_cluster(tmp_path: Path) -> None:
    """A failover, and a killed server. Some 20 s."""
    with world(tmp_path, SEED) as at:
        for fault in (kill_primary, kill_server):
            at.round(fault)
    print(at.table())


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_faults_of_a_cluster(tmp_path: Path) -> None:
    """Thirty rounds, in which each fault comes several times. Takes some three minutes."""
    print(f"repeat with QS_KILL_SEED={SEED}")
    faults = [FAULTS[number % len(FAULTS)] for number in range(30)]
    random.Random(SEED).shuffle(faults)
    with world(tmp_path, SEED) as at:
        for fault in faults:
            at.round(fault)
    print(at.table())
