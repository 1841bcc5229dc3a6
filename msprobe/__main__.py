"""``python -m msprobe`` is the ``msprobe`` command."""

import sys

from probe.api.cli import main

if __name__ == "__main__":
    sys.exit(main())
