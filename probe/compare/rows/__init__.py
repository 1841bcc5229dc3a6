"""The rows of a comparison: the items of two dumps, matched and measured."""
