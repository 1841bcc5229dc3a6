"""``python -m probe``: the ``msprobe`` command where another distribution has taken its name."""

import sys

from probe.api.cli import main

sys.exit(main())
