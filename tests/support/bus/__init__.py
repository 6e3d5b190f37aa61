"""The bus for tests: in memory, with subscribers of all kinds, and while everything around it is killed."""
