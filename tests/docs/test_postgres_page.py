"""The page about queues in PostgreSQL is true: its commands and statements are run, and its tables and bounds are those
of the storage."""

import inspect
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.console import Block, Console, Step
from support.servers.processes import PROJECT
from support.storage.postgres import BINARIES, LONG, Postgres, Standby, most_advanced, needs_postgres

PAGE = PROJECT / "docs" / "postgres.md"
TEXT = PAGE.read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())
ADDRESS = "127.0.0.1:5432"
Blocks = Callable[[str, str], list[Block]]

pytestmark = needs_postgres


def section(heading: str) -> str:
    """Returns what stands under a heading of any rank, up to the next heading."""
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return re.sub(r"^   (?=\S| )", "", found[1], flags=re.MULTILINE)  # blocks in a numbered list are indented


def psql(server: Postgres, statements: str, dbname: str = "postgres") -> str:
    """Runs what stands in a block, as an administrator does who pastes it into psql. Returns the rows without heads."""
    assert BINARIES is not None
    done = subprocess.run(
        [BINARIES / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", server.dsn_of(dbname), "-f", "-"],
        input=statements,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, f"{statements}\n{done.stderr}"
    return done.stdout


@pytest.fixture(name="server")
def _server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def _with_port(text: str, server: Postgres) -> str:
    return text.replace(ADDRESS, f"127.0.0.1:{server.port}")


def test_postgres_page_examples(
    server: Postgres, console: Console, run_console_blocks: Callable[..., int], fenced_blocks: Blocks, tmp_path: Path
) -> None:
    """Roles, migration, grants, server and client do what the page shows, in the order of the page; and the role that
    serves can neither alter nor make tables."""
    start = section("Starting")
    roles, grants = fenced_blocks(start, "sql")
    migration, serving = (f"```console\n{block.body}```\n" for block in fenced_blocks(start, "console"))
    page = tmp_path / "page.md"
    psql(server, roles.body)
    page.write_text(_with_port(migration, server), encoding="utf-8")
    assert run_console_blocks(page) == 1
    psql(server, grants.body)
    page.write_text(_with_port(serving, server), encoding="utf-8")
    assert run_console_blocks(page) == 5
    assert "postgres_oldest_snapshot_seconds " in console.run(Step("qs figures 'postgres_*'", "", 0))
    _refused(server)


def _refused(server: Postgres) -> None:
    import psycopg  # only where PostgreSQL is

    with closing(psycopg.connect(server.dsn_of("qs", user="qs_server"), autocommit=True)) as connection:
        for statement in (
            "ALTER TABLE qs.messages ADD COLUMN more int",
            "CREATE TABLE qs.more (more int)",
            "DROP TABLE qs.line",
            "UPDATE qs.version SET version = 2",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())


def test_postgres_page_queries(server: Postgres, fenced_blocks: Blocks) -> None:
    """Every query of the section about watching runs, and that about depth shows the queues."""
    with server.database() as database:
        database.sql("INSERT INTO qs.queues (qid, paused, options) VALUES ('crates', false, '{}')")
        database.sql("INSERT INTO qs.line (queue, place, id, receives, size) VALUES (1, 1, 1, 0, 0)")
        answers = [psql(server, block.body, database.name) for block in fenced_blocks(section("Watch"), "sql")]
    assert len(answers) == 6
    assert "crates|1|0\n" in answers


def test_postgres_page_finds_held_snapshot(server: Postgres, fenced_blocks: Blocks) -> None:
    """The first query shows the session that holds a snapshot."""
    with server.database() as database, closing(database.connect()) as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM qs.line")
        answer = psql(server, fenced_blocks(section("Watch"), "sql")[0].body, database.name)
        assert f"{holder.info.backend_pid}|postgres|idle in transaction|" in answer


@pytest.fixture(name="nodes")
def _nodes(fenced_blocks: Blocks) -> Iterator[tuple[Postgres, list[Standby]]]:
    """Three nodes as the page sets them up. Commits wait for a standby as soon as there is one."""
    [settings] = [block.body for block in fenced_blocks(section("Three nodes"), "text")]
    [names] = re.findall(r"^synchronous_standby_names = '(.*)'$", settings, re.MULTILINE)
    with Postgres(name="a") as primary:
        standbys = []
        try:
            standbys += [primary.standby(name, f"synchronous_standby_names={names}") for name in ("b", "c")]
            primary.set("synchronous_standby_names", names)
            primary._until_sql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'", 2)
            yield primary, standbys
        finally:
            for standby in standbys:
                standby.close()


def test_postgres_page_three_nodes(nodes: tuple[Postgres, list[Standby]], fenced_blocks: Blocks) -> None:
    """Both standbys count for the quorum; after the primary's death, the one with more of the log has all that was
    committed, the other one follows it, and commits are done again."""
    primary, standbys = nodes
    look = fenced_blocks(section("Three nodes"), "sql")[1].body
    assert sorted(line.split("|")[:3] for line in psql(primary, look).splitlines()) == [
        ["b", "streaming", "quorum"],
        ["c", "streaming", "quorum"],
    ]
    psql(primary, "CREATE TABLE answered (number int); INSERT INTO answered VALUES (1)")
    primary.kill()
    asked, follow = (block.body for block in fenced_blocks(section("A failover by hand"), "sql"))
    assert all(re.fullmatch(r"[0-9A-F]+/[0-9A-F]+\n", psql(standby, asked)) for standby in standbys)
    promoted = most_advanced(standbys)
    [other] = [standby for standby in standbys if standby is not promoted]
    promoted.promote()
    assert "host=b user=replicator" in follow
    conninfo = f"host=127.0.0.1 port={promoted.port} user=postgres application_name={other.name}"
    psql(other, follow.replace("host=b user=replicator", conninfo))
    promoted.until_streaming(other)
    psql(promoted, "INSERT INTO answered VALUES (2)")
    assert psql(promoted, "SELECT number FROM answered ORDER BY number") == "1\n2\n"


def test_postgres_page_names_every_table(server: Postgres) -> None:
    """The table of what stands in the database has each table of the schema once."""
    named = [name for cell in re.findall(r"^\| (`.*?) \|", section("What stands in the database"), re.MULTILINE)
             for name in re.findall(r"`(\w+)`", cell)]  # fmt: skip
    with server.database() as database:
        assert sorted(named) == database.sql(
            "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'qs' ORDER BY 1"
        )


@pytest.mark.parametrize("bound", ["PATIENCE", "COMMIT_PATIENCE", "OLD_SNAPSHOT", "CONNECTIONS", "NAMES", "SETTINGS"])
def test_postgres_page_gives_bounds(bound: str) -> None:
    """Times, the number of connections and the settings for a role are those of the code."""
    from qs_storage.postgres import engine, links, upkeep  # only where psycopg is

    connections = inspect.signature(engine.PostgresEngine).parameters["connections"].default
    told = {
        "PATIENCE": f"The server has tried for {links.PATIENCE:g} s",
        "COMMIT_PATIENCE": f"A commit that has no answer after {links.COMMIT_PATIENCE:g} s is `not-known`",
        "OLD_SNAPSHOT": f"looks every {upkeep._RARELY:g} s, and warns in its log when it is more than "
        f"{upkeep.OLD_SNAPSHOT:g} s",
        "NAMES": f"target_session_attrs={links._KEPT_ALIVE['target_session_attrs']}",
        "CONNECTIONS": f"at most {2 * connections + 5} connections (twice `--postgres-connections`, which is "
        f"{connections}, and 5 more)",
        "SETTINGS": "ignore_startup_parameters = options",
    }
    assert told[bound] in WORDS
    if bound == "SETTINGS":
        for_role = dict(re.findall(r"^ALTER ROLE qs_server SET (\w+) = '?(\w+)'?;$", TEXT, re.MULTILINE))
        usual = {"client_min_messages", "default_transaction_isolation", "bytea_output", "standard_conforming_strings"}
        assert for_role == {name: value for name, value in links._SETTINGS.items() if name not in usual}
