"""The first anomalies of all ranks of a monitor."""

import sys

from probe.api.commands.watching.anomaly_processor import main

sys.exit(main())
