"""Running one recorded call of MindSpore alone."""
