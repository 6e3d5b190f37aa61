"""Power losses, played from a record of what an engine did to its disk. README.md tells how."""
