"""The frameworks that the tool serves: their names, and the versions that it was tested with.

It is data, because commands that only read dumps need it too and import no framework.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import NamedTuple


class Framework(NamedTuple):
    """One framework."""

    title: str
    """The name in messages."""
    recorded: str
    """The name in the field ``framework`` of a dump."""
    module: str
    """The module that a program imports."""
    distribution: str
    """The package of pip that has this module."""
    tested: tuple[str, ...]
    """The versions of the distribution with which the tests pass; the first is the oldest one."""
    install: str
    """The arguments of ``pip install``. It is no extra of ours: on the package index that name belongs to others."""
    base: str = ""
    """The key of the framework that it runs on, or ``""``."""
    tested_bases: tuple[str, ...] = ()
    """The versions of that framework with which it runs."""
    module_root: str = "Module"
    """The word that the names of modules begin with."""
    has_own_names: bool = False
    """True if functions and their arguments have names that the tables of names translate to those of PyTorch."""
    in_msprobe_mindspore: bool = False
    """True if msProbe handles it in its part for MindSpore: the rules and columns of a pre-check, and API mappings."""
    msprobe_tensor: str = "torch.Tensor"
    """The type of a tensor in a graph that is written for msProbe's viewer."""
    risk_level: str = "ALL"
    """The ``risk_level`` where the configuration does not give one."""
    left_out: str = ""
    """The records that its dumps lack at the default risk level, and the setting that records them; whole sentences."""

    @property
    def oldest(self) -> tuple[int, ...]:
        """The oldest version that is supported, without the last number: a patch is no new version."""
        return numbers(self.tested[0])[:2]

    @property
    def tested_text(self) -> str:
        """Example: ``mindtorch of mindnlp 0.5.1 with MindSpore 2.7.0 and 2.7.1``."""
        text = f"{self.title}{self._origin} {_listed(self.tested)}"
        return f"{text} with {FRAMEWORKS[self.base].title} {_listed(self.tested_bases)}" if self.base else text

    def installed_text(self) -> str:
        """The name with the version that is installed, such as ``PyTorch 2.13.0+cpu``."""
        text = f"{self.title}{self._origin} {version(self.distribution)}"
        return f"{text} with {FRAMEWORKS[self.base].installed_text()}" if self.base else text

    @property
    def _origin(self) -> str:
        return "" if self.module == self.distribution else f" of {self.distribution}"


# With numpy 2 MindSpore fails at arithmetic between a tensor and a number.
FRAMEWORKS = {
    "torch": Framework(
        "PyTorch", "pytorch", "torch", "torch", ("2.5.1", "2.13.0", "2.14.1", "2.15.0"), "torch", risk_level="FOCUS",
        left_out="The default risk level leaves out casts (half, to, float), full, functions that allocate memory, and "
        'parts of torch.fft, torch.special and torch.linalg; risk_level "ALL" records casts and full, and task '
        "overflow_check records every function.",
    ),
    "mindspore": Framework(
        "MindSpore", "mindspore", "mindspore", "mindspore", ("2.7.0", "2.10.0"), "'mindspore==2.10.0' 'numpy<2'",
        module_root="Cell", has_own_names=True, in_msprobe_mindspore=True, msprobe_tensor="mindspore.Tensor",
    ),
    "msadapter": Framework(
        "mindtorch", "mindtorch", "mindtorch", "mindnlp", ("0.5.1",), "'mindspore==2.7.0' 'numpy<2' ml_dtypes",
        "mindspore", ("2.7.0", "2.7.1"), in_msprobe_mindspore=True,
    ),
}  # fmt: skip
"""By the name of the backend."""
BACKEND_OF = {framework.recorded: backend for backend, framework in FRAMEWORKS.items()}
"""The backend by the name in a dump."""


def of_dump(recorded: str) -> Framework:
    """The framework that a dump names; a name that is not known is taken for PyTorch's."""
    return FRAMEWORKS[BACKEND_OF.get(recorded, "torch")]


def all_tested_text() -> str:
    """Every framework with the versions that were tested, in one line."""
    return "; ".join(framework.tested_text for framework in FRAMEWORKS.values())


def is_installed(module: str) -> bool:
    """True if a package of this name would be imported; it is not imported to find out."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return module in sys.modules
    # Without an origin it is no package, but any folder of that name in which a script was started.
    return found is not None and found.origin is not None


def version(distribution: str) -> str:
    """The version of a distribution that is installed."""
    # Here, because it takes 40 ms and only doctor and the message of an error ask.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(distribution)
    except PackageNotFoundError:
        return "of unknown version"


def numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with; those of an unknown version are newer than any."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else (sys.maxsize,)


def _listed(versions: tuple[str, ...]) -> str:
    *most, last = versions
    return f"{', '.join(most)} and {last}" if most else last
