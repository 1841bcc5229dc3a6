"""What pyproject.toml cannot say: the compiled parts, which are left out where they cannot be built."""

import os

from setuptools import Extension, setup

# The lanes of the sums are the same on every processor only if nothing is contracted.
_FLAGS = [] if os.name == "nt" else ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
_PARTS = (
    "probe/common/_frames.c",
    "probe/common/dump/_records.c",
    "probe/common/numerics/_differences.c",
    "probe/common/numerics/_digests.c",
    "probe/backends/shared/_reduction.c",
    "probe/collect/describing/_makers.c",
    "probe/backends/torch/tensors/_plain_tensors.c",
)


def _extension(source: str) -> Extension:
    name = source[: -len(".c")].replace("/", ".")
    depends = ["probe/backends/shared/_reduction.h", "probe/backends/shared/_sketch.h"]
    return Extension(name, [source], depends=depends, extra_compile_args=_FLAGS, optional=True)


setup(
    ext_modules=[_extension(source) for source in _PARTS],
    # Two of them take twenty seconds each.
    options={"build_ext": {"parallel": os.cpu_count()}},
)
