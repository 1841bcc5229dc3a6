"""The calls of two runs in short types, each compared with its like."""
