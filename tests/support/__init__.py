"""Packages that the tests share.

`storage`: engines, and what drives, damages and compares them. `servers`: queue servers, buses and pages, as processes
and in memory. `bus`, `clients`, `spark`: what the tests of each need beside a server. `power_loss`: plays power losses.
`console` runs the commands of the pages, `faults` causes what goes wrong around a process, `examples` says how many
examples properties are tried with.

No two modules import each other.
"""
