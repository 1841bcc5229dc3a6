"""Running one recorded call alone: `probe.backends.protocol.Execution` for PyTorch."""
