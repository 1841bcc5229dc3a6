"""Every recorded call run again alone, and judged by what the operation can reach."""
