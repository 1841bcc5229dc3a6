"""Drop-in for scripts that import the callbacks from here."""

from probe.api.mindspore import __getattr__ as __getattr__
from probe.api.mindspore import seed_all as seed_all
