"""The accuracy pre-check: each recorded call is run again alone, and judged by what the operation can reach."""
