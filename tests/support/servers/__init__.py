"""Queue servers, buses and pages for tests: as processes, in memory, with TLS, under systemd."""
