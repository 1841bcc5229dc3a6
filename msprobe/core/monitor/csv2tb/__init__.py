"""TensorBoard files of the rows of a monitor."""

from probe.api.monitoring.converters import csv2tensorboard_by_step

__all__ = ["csv2tensorboard_by_step"]
