"""Does the upkeep of an engine as a server does, but in one thread."""

from qs_storage.engine import Engine


def upkeep_slice(engine: Engine) -> None:
    """Does one slice, whether it is due or not: begins it in a batch, commits, and runs the work of another thread."""
    work = engine.begin_upkeep()
    engine.commit()
    if work is not None:
        work.run()
        engine.finish_upkeep(work)


def upkeep(engine: Engine, now: int = 0, slices: int = 100) -> None:
    """Does the upkeep of the journal's engine: compaction, checkpoints, spare segments. now: microseconds; 0: what was
    put off is not due yet; slices: how many at most."""
    for _ in range(slices):
        due = engine.effects().next_upkeep
        if due is None or due > now:
            return
        upkeep_slice(engine)
