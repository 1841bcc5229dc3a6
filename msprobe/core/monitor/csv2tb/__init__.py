"""TensorBoard files of the rows of a monitor."""

from probe.api.monitor_files import csv2tensorboard_by_step

__all__ = ["csv2tensorboard_by_step"]
