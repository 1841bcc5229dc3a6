"""Which items of a dictionary its copies have, with values of all kinds beside those that are left out."""

from __future__ import annotations

import copy
import copyreg
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from probe.backends.shared.copies import HooksStayOut, NotCopied


class Hook(NotCopied):
    def method(self) -> None: ...


class Claiming:
    """A value that says whatever it is asked to be, and fails when it is looked at."""

    @property
    def __class__(self) -> Any:
        raise ValueError("not to be asked")

    def __reduce__(self) -> Any:
        return Claiming, ()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_has_all_items_but_hooks_of_the_tool(copied: Callable[[Any], Any]) -> None:
    hook = Hook()
    hooks: Any = OrderedDict([(3, hook), (1, len), (2, hook.method), (0, Claiming())])
    hooks.of_the_user = [hooks]
    stay_out = [HooksStayOut(), HooksStayOut()]
    stay_out.pop().remove()
    one, same, other = copied([hooks, hooks, OrderedDict(a=1)])
    assert list(one) == [1, 0] and one[1] is len and one.of_the_user == [one]
    assert same is one, "what had one dictionary, a handle of the user's for example, has one again"
    assert other == OrderedDict(a=1)
    stay_out.pop().remove()
    assert OrderedDict not in copyreg.dispatch_table


def test_a_dictionary_without_hooks_is_pickled_to_the_same_bytes() -> None:
    value: Any = OrderedDict(a=[1.5], b=len)
    value.of_the_user = 1
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        expected = pickle.dumps(value, protocol)
        stay_out = HooksStayOut()
        found = pickle.dumps(value, protocol)
        stay_out.remove()
        assert found == expected


def test_what_somebody_else_registered_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_somebody(value: Any) -> Any:
        return value.__reduce__()

    monkeypatch.setitem(copyreg.dispatch_table, OrderedDict, of_somebody)
    stay_out = HooksStayOut()
    hook = Hook()
    assert copy.deepcopy(OrderedDict(a=hook))["a"] is hook
    stay_out.remove()
    assert copyreg.dispatch_table[OrderedDict] is of_somebody
