"""Sheets of a comparison of two packs, as msProbe 26.2 has them."""
