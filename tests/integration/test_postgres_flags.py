"""The flags of queue-server.py for the storage postgres: --migrate, --check, and where the DSN comes from."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.documents import code, new_queue, push
from support.servers.processes import Wire, run_server, serving
from support.storage.postgres import Database, Postgres, needs_postgres

from qs_server.main.queue_server import read_options


def test_where_the_dsn_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag counts before the config file, and the file before the variable, which other users do not see."""
    config = tmp_path / "server.toml"
    config.write_text('postgres = "host=file"\npostgres-connections = 7\n')
    monkeypatch.delenv("QS_POSTGRES", raising=False)
    assert read_options([])[0].engines == {}
    monkeypatch.setenv("QS_POSTGRES", "host=variable")
    assert read_options([])[0].engines == {"postgres": {"dsn": "host=variable"}}
    in_file = {"postgres": {"dsn": "host=file", "connections": 7}}
    assert read_options(["--config", str(config)])[0].engines == in_file
    flags = ["--config", str(config), "--postgres", "host=flag", "--postgres-connections", "2"]
    assert read_options(flags)[0].engines == {"postgres": {"dsn": "host=flag", "connections": 2}}


def test_migrate_without_a_database() -> None:
    """--migrate alone says what is missing."""
    ended = run_server("--migrate")
    assert ended.returncode == 2
    assert "--postgres DSN, or in QS_POSTGRES" in ended.stderr


def test_storage_without_a_database(tmp_path: Path) -> None:
    """A server that has no database refuses queues of that storage, with what to do."""
    with serving(tmp_path / "root") as server, Wire(server) as wire:
        answer = wire.ask(new_queue("q", '<options storage="postgres"/>'))
        assert code(answer) == 501
        assert "start the server with --postgres DSN" in answer
    ended = run_server("--root", str(tmp_path / "other"), "--storage", "postgres")
    assert ended.returncode == 1
    assert "start the server with --postgres DSN" in ended.stderr
    checked = run_server("--root", str(tmp_path / "other"), "--storage", "postgres", "--check")
    assert checked.returncode == 1
    assert "--postgres DSN, or in QS_POSTGRES" in checked.stderr


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[Database]:
    with postgres.database(migrated=False) as database:
        yield database


@needs_postgres
def test_migrate_and_serve(empty: Database, tmp_path: Path) -> None:
    """--check says that the schema is missing; --migrate makes it, once; then a server serves."""
    root = str(tmp_path / "root")
    checked = run_server("--root", root, "--check", QS_POSTGRES=empty.dsn)
    assert checked.returncode == 1
    assert "--migrate" in checked.stderr
    made, again = (run_server("--postgres", empty.dsn, "--migrate") for _ in range(2))
    assert (made.returncode, again.returncode) == (0, 0)
    assert "the schema qs was made" in made.stdout
    assert "nothing to do" in again.stdout
    checked = run_server("--root", root, "--check", QS_POSTGRES=empty.dsn)
    assert checked.returncode == 0
    assert "has the schema qs" in checked.stdout
    assert not Path(root).exists()
    with serving(tmp_path / "served", "--postgres", empty.dsn) as server, Wire(server) as wire:
        assert code(wire.ask(new_queue("q", '<options storage="postgres"/>'))) == 0
        assert code(wire.ask(push("q", "x"))) == 0


@needs_postgres
def test_database_that_cannot_be_used(postgres: Postgres) -> None:
    """A DSN that cannot be read, and a database that is not there, are one line each."""
    for dsn in ("nonsense", postgres.dsn_of("nowhere")):
        ended = run_server("--postgres", dsn, "--migrate")
        assert ended.returncode == 1
        assert len(ended.stderr.splitlines()) == 1
        assert "queue-server.py: postgres: " in ended.stderr


@needs_postgres
def test_check_names_missing_rights(postgres: Postgres) -> None:
    """--check asks for the rights of the role that serves, and names what the role may not use."""
    with postgres.database() as database:
        for statement in (
            "CREATE ROLE serves LOGIN",
            "GRANT USAGE ON SCHEMA qs TO serves",
            "GRANT SELECT ON qs.version TO serves",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA qs TO serves",
            "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA qs TO serves",
            "REVOKE INSERT, UPDATE, DELETE ON qs.version FROM serves",
        ):
            database.sql(statement)
        dsn = postgres.dsn_of(database.name, user="serves")
        assert run_server("--check", "--postgres", dsn).returncode == 0
        database.sql("REVOKE DELETE ON qs.hidden FROM serves")
        database.sql("REVOKE USAGE ON SEQUENCE qs.mids FROM serves")
        checked = run_server("--check", "--postgres", dsn)
        assert checked.returncode == 1
        assert "the role serves may not use hidden, mids" in checked.stderr
        database.sql("DROP OWNED BY serves")
        database.sql("DROP ROLE serves")


@needs_postgres
def test_migrate_finds_the_primary(postgres: Postgres) -> None:
    """The primary of several hosts is the one that --migrate takes; an error names each host once."""
    with postgres.database(migrated=False) as database:
        database.sql(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
        host, port = postgres.address
        dsn = f"postgresql://postgres@{host}:{port},{host}:{port}/{database.name}"
        ended = run_server("--migrate", "--postgres", dsn)
        assert ended.returncode == 1
        assert ended.stderr.count("session is read-only") == 2


@needs_postgres
def test_queues_of_the_same_name(postgres: Postgres, tmp_path: Path) -> None:
    """A queue of the root hides one of the database, which another server has made: the log of a start says so. It
    names directories of the root that say they were of the database, too, which none is."""
    with postgres.database() as database, serving(tmp_path / "root", "--postgres", database.dsn) as server:
        with (
            serving(tmp_path / "other", "--postgres", database.dsn) as other,
            Wire(server) as wire,
            Wire(other) as there,
        ):
            assert code(wire.ask(new_queue("q"))) == 0
            assert code(there.ask(new_queue("q", '<options storage="postgres"/>'))) == 0
        server.stop()
        (tmp_path / "root" / "stray").mkdir()
        (tmp_path / "root" / "stray" / ".queue.toml").write_text('storage = "postgres"\n')
        server.start()
        server.until_logged("have no directories: remove these of the root: 'stray'")
        server.until_logged("queues of the root hide those of the same names in the storage 'postgres': 'q'")
