"""Power losses, played: the operations of an engine on its disk are recorded, and the power is cut at every step of the
record.

Read the modules in this order; docs/power-loss.md explains them with an example.

1. `disk`: `RecordingDisk` writes down each file operation of an engine.
2. `run`: records a run of operations at random, in step with the `model`, which says what must hold.
3. `nodes`, `file_system`: a file system in memory plays the record, and knows what is durable.
4. `check`: at each point, makes the image that a power loss leaves, starts an engine on it, compares with the model.
5. `engines`: the engines that are played, and the exceptions that their pages name.

The other modules are runs of one thing each: `claims`, `dead_letters`, `directories`, and the short runs. `syncs` takes
single syncs out of a record, and some check has to fail. `fuse` plays power losses for whole processes.
"""
