"""The engine of two servers over one database of PostgreSQL, against a model in memory."""

import contextlib
import shutil
import tempfile
from typing import ClassVar, cast

from hypothesis.stateful import rule
from support.examples import run_machine
from support.storage.contract import GatheringAsEngine
from support.storage.model import EngineMachine
from support.storage.postgres import Database, Postgres, engine_on, needs_postgres

from qs_storage.engine import Effects, Engine

pytestmark = needs_postgres
_NEXT = "SELECT min(until) FROM qs.hidden WHERE until > %s AND until < 1::bigint << 61"


class TellingEngine(GatheringAsEngine):
    """Knows the next expiry, as the model asks for it."""

    database: Database

    def effects(self) -> Effects:
        return Effects({}, {}, self.database.sql(_NEXT, self.remote.shared.now())[0], None)


class PostgresMachine(EngineMachine):
    """Each step is made by one of two servers."""

    postgres: ClassVar[Postgres]

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()
        self.database = self.stack.enter_context(self.postgres.database())
        super().__init__()
        self.other_root = tempfile.mkdtemp(prefix="qs-model-")
        self.other = self.open_in(self.other_root)

    def open(self) -> Engine:
        return self.open_in(self.root)

    def open_in(self, root: str) -> Engine:
        engine = TellingEngine(engine_on(self.database, root, self.clock))
        engine.database = self.database
        return cast(Engine, engine)

    def teardown(self) -> None:
        self.other.close()
        shutil.rmtree(self.other_root)
        super().teardown()
        self.stack.close()

    @rule()
    def other_server(self) -> None:
        """Sends the next requests to the other server."""
        self.engine, self.other = self.other, self.engine
        self.root, self.other_root = self.other_root, self.root


def test_postgres_engine_is_as_its_model(postgres: Postgres) -> None:
    """Any sequence of operations of two servers, and of reopenings, leaves the queue as the model has it."""
    PostgresMachine.postgres = postgres
    run_machine(PostgresMachine, 6, steps=30)
