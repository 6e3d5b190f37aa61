"""Spark over queues: the data source `qs`, and the jobs archive, report, replay and route."""
