"""The parts that tests share: servers as processes, engines to run a suite over, models, and faults to inject."""
