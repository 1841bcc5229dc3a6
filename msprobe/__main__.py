"""``python -m msprobe``, which launchers of several processes call: ``torchrun -m msprobe run train.py``."""

import sys

from probe.api.cli import main

sys.exit(main())
