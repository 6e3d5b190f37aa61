"""What tests of the pipeline need: queues to read and write, and results computed in plain Python."""
