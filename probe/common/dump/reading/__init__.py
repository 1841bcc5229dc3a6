"""The one reader of dumps: records, items and tensor files."""
