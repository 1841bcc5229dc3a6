"""The answer of a check as text, JSON, tables and a page."""
