"""Models and faults of compilers for `PrecisionChecker`: the benchmark takes all of them, the tests some."""
