"""What pyproject.toml cannot say: the compiled parts, which are left out where they cannot be built.

``PROBE_PARTS`` says which ones a build has:

- ``all`` (also if it is not set): all eleven, for this release of Python;
- ``stable``: those that take the stable ABI alone, in a wheel for Python 3.11 and every later one;
- ``none``: none, in a wheel for every machine.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

_PARTS = os.environ.get("PROBE_PARTS", "all")
if _PARTS not in ("all", "stable", "none"):
    raise SystemExit(f'PROBE_PARTS is "{_PARTS}"; allowed: "all", "stable", "none".')

# The lanes of the sums are the same on every processor only if nothing is contracted. What a header does not declare,
# such as a function outside of the stable ABI, would be called with a wrong signature.
_FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Werror=implicit-function-declaration"]
# Buffers, which _digests takes, have been in the stable ABI since 3.11. Python without the GIL has none.
_HAS_STABLE = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
_STABLE = (
    "probe/common/numerics/_differences.c",
    "probe/common/numerics/_digests.c",
    # A call of it takes 1 to 2 % longer than with the macros of one release.
    "probe/backends/shared/_reduction.c",
)
_OF_ONE_RELEASE = (
    # The stable ABI has no way from a frame to the one below; by attributes a walk takes 1.6 times as long.
    "probe/common/_frames.c",
    # Both look into every number and text of a record: macros of one release are what makes them worth having.
    "probe/common/dump/_journal_frames.c",
    "probe/common/dump/_records.c",
    # It reads the slots of calls where they lie.
    "probe/collect/_calls.c",
    # Types of theirs are called without a tuple of arguments, which the stable ABI has from 3.12 on.
    "probe/collect/describing/_makers.c",
    "probe/backends/torch/hooks/_function_calls.c",
    "probe/backends/torch/tensors/_plain_tensors.c",
    # Looks into the slots of objects at every node.
    "probe/backends/torch/_backward_tracker.c",
)


def _extension(source: str, stable: bool) -> Extension:
    return Extension(
        source[: -len(".c")].replace("/", "."),
        [source],
        depends=[
            "probe/backends/shared/_reduction.h",
            "probe/backends/shared/_sketch.h",
            "probe/common/_types.h",
            "probe/common/dump/_crc32.h",
        ],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
        py_limited_api=stable,
        extra_compile_args=[] if os.name == "nt" else _FLAGS,
        optional=True,
    )


def _extensions() -> list[Extension]:
    stable = [_extension(source, _HAS_STABLE) for source in _STABLE]
    others = [_extension(source, False) for source in _OF_ONE_RELEASE]
    return {"all": stable + others, "stable": stable, "none": []}[_PARTS]


# Two of them take twenty seconds each.
_OPTIONS = {"build_ext": {"parallel": os.cpu_count()}}
if _PARTS == "stable":
    _OPTIONS["bdist_wheel"] = {"py_limited_api": "cp311"}
setup(ext_modules=_extensions(), options=_OPTIONS)
