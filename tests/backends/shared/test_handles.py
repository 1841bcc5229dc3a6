"""Several handles as one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from probe.backends.shared.patching import Attributes, Handles


def test_nothing_stays_in_place_if_a_later_handle_cannot_be_made() -> None:
    owner = SimpleNamespace(first="as it was", second="as it was")

    def attached() -> Iterator[Attributes]:
        for name in ("first", "second"):
            attributes = Attributes()
            attributes.set(owner, name, "replaced")
            yield attributes
        raise OSError("no memory for the third")

    with pytest.raises(OSError, match="third"):
        Handles(attached())
    assert vars(owner) == {"first": "as it was", "second": "as it was"}
