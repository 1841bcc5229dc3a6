"""Callbacks for the libraries that run a training: Transformers and Lightning."""

from probe.api.integrations import __getattr__ as __getattr__

__all__ = ["MsprobeLightningCallback", "MsprobeTrainerCallback"]
