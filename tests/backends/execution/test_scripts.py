"""The words of stand-alone scripts: each means what the adapter computes with."""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.backends.protocol import ScriptParts

DTYPES = ("float32", "float16", "bfloat16", "int64", "uint16", "bool")


def meaning(text: str, **names: Any) -> Any:
    """What an expression of a script stands for."""
    modules: dict[str, Any] = {"numpy": np}
    root = text.partition(".")[0]
    modules[root] = importlib.import_module(root)
    return eval(text, {**modules, **names})


def test_every_name_of_a_call_is_spelled_as_what_is_called(backend: Any) -> None:
    for api in backend.apis.values():
        text = backend.adapter.execution.script.spelled(api.base, None)
        assert text is not None, api.base
        assert meaning(text) == getattr(api.owner, api.attribute), (api.base, text)


@pytest.mark.parametrize("base", ["Functional.no_such_function", "Nowhere.add", ""])
def test_another_name_has_no_words(backend: Any, base: str) -> None:
    assert backend.adapter.execution.script.spelled(base, None) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_come_back_from_text_and_from_files(backend: Any, dtype: str, tmp_path: Path) -> None:
    execution, words = backend.adapter.execution, backend.adapter.execution.script
    values = np.array([[0, 1, 1], [1, 0, 1]], bool if dtype == "bool" else np.float32 if "float" in dtype else np.int64)
    if "float" in dtype:
        values = values * np.float32(1.25)
    path = tmp_path / f"x{words.SUFFIX}"
    path.write_bytes(words.content(values, dtype))
    for tensor in (
        meaning(words.inline(str(values.tolist()), dtype)),
        meaning(words.loaded("path", dtype), path=path),
    ):
        assert execution.dtype_name(tensor) == dtype
        assert np.array_equal(execution.values(tensor), values)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_script_runs_a_call_and_its_backward(
    backend: Any, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = backend.adapter.execution.script
    function = words.spelled(backend.apis["abs"].base, None)
    path = tmp_path / "s.py"
    path.write_text(
        words.script(
            ScriptParts(
                title="abs.",
                found="Nothing.",
                device="cpu",
                definitions="\n".join(
                    [
                        f"INPUTS = [{words.inline('[-3.0, 2.0]', dtype)}]",
                        f"OF_OUTPUTS = [{words.inline('[0.5, 0.25]', dtype)}]",
                        'RECORDED = {"output": ' + words.inline("[9.0, 2.0]", dtype) + "}",
                    ]
                ),
                needs_folder=False,
                dtypes=[dtype],
                variables=["x0"],
                call=lambda before: f"{before}{function}(x0)",
                autocast="",
                results=[("output", "output")],
                with_gradients=["output"],
                differentiated=[("gradient of x0", 0)],
                has_recorded=True,
                has_random_state=False,
            )
        ),
        encoding="utf-8",
    )
    found = runpy.run_path(str(path))
    assert list(found["exact"]) == ["output", "gradient of x0"]
    exact = [backend.adapter.execution.values(each) for each in found["exact"].values()]
    assert np.array_equal(exact, [[3.0, 2.0], [-0.5, 0.25]])
    assert all(each.dtype == np.float64 for each in exact)
    lines = capsys.readouterr().out.split("\n")
    assert [line.strip().split(" ")[0] for line in lines if line] == [
        "output", "error", "recorded", "gradient", "error",
    ]  # fmt: skip
    assert lines[0].startswith("output at [0]: 3.0 on ")
    assert "error 0 ULP" in lines[1]
    assert lines[2].strip() == "recorded 9.0"
