"""The rules of the reference tool, msProbe 26.2: ``--rules msprobe`` shows what it would show."""
