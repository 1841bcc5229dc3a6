"""HTML pages of one file that need nothing else: how data is packed, the template filled, and what all pages share."""
