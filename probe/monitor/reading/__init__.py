"""The one reader of monitor folders."""
