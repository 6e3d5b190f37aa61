"""Rooms of what tests share.

`storage`: engines, and what drives, damages and compares them. `servers`: queue servers, buses and pages, as
processes and in memory. `bus`, `clients`, `spark`: what the tests of each need beside a server. `power_loss`: power
losses, played. `console` runs the pages, `faults` has what goes wrong around a process, `examples` what properties are
tried with.

No two modules import each other.
"""
