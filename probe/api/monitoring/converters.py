"""The converters of monitor files, under the names of msProbe."""

from __future__ import annotations

from probe.monitor.converting.tensorboard import csv2tensorboard_by_step as csv2tensorboard_by_step
