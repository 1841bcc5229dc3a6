"""What pyproject.toml cannot say: the compiled part, which is left out where it cannot be built."""

import os

from setuptools import Extension, setup

# The lanes of the sums are the same on every processor only if nothing is contracted.
_FLAGS = [] if os.name == "nt" else ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]

_ONE_PASS = Extension(
    "probe.common._one_pass", ["probe/common/_one_pass.c"], extra_compile_args=_FLAGS, optional=True
)

setup(ext_modules=[_ONE_PASS])
