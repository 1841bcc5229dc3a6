"""The tasks of a page: the dumps that belong to it, and the way from them to rows."""
