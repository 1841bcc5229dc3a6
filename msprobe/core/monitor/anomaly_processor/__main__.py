"""The first anomalies of all ranks of a monitor."""

import sys

from probe.api.commands.monitor import main

sys.exit(main())
