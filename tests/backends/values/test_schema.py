"""The schemas refuse what no file may hold; that real files pass is checked whenever a test reads one."""

from __future__ import annotations

import copy
from typing import Any

import dumped
import jsonschema
import pytest
from programs import batch, block_network

from probe.common.dump import schema


@pytest.fixture
def collected(runs: Any, backend: Any) -> Any:
    debugger, model = runs.new(level="mix", task="tensor"), block_network(backend)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True))
    debugger.stop()
    return runs.read()


def refused(name: str, content: Any) -> bool:
    return not dumped.validator(name).is_valid(content)


@pytest.mark.parametrize("name", ["dump", "stack", "construct", "debug"])
def test_schemas_are_valid_schemas(name: str) -> None:
    content = schema.load(name)
    assert content["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(content)


def test_schemas_refuse_broken_files_and_records(collected: Any) -> None:
    head, name = collected.head, collected.forward[0]
    assert not refused("dump", head) and refused("dump", [])
    for key in head:
        assert refused("dump", {name: value for name, value in head.items() if name != key}), f"without {key}"
    for change in ({"data": []}, {"level": "L7"}, {"task": "dance"}):
        assert refused("dump", {**head, **change})

    def broken(change: Any) -> bool:
        changed = copy.deepcopy(head)
        change(changed["data"][name])
        return refused("dump", changed)

    assert broken(lambda record: record.update(input_args=5))
    assert broken(lambda record: record["output"][0].pop("shape"))
    for values in ({"shape": "2x3"}, {"requires_grad": "yes"}, {"Max": "large"}):
        assert broken(lambda record, values=values: record["output"][0].update(values))
    assert not refused("construct", collected.tree) and refused("construct", {"a": 5}) and refused("construct", [])
    assert not refused("stack", collected.stacks)
    assert refused("stack", {"0": [["name"]]}) and refused("stack", {"0": "text"}) and refused("stack", {"x": [[], []]})


def test_readers_of_the_tests_see_the_schema_at_work(collected: Any) -> None:
    path = collected.folder / "dump.json"
    path.write_text('{"task": "statistics"}', encoding="utf-8")
    with pytest.raises(AssertionError, match="required"):
        dumped.read_file(path)
    path.unlink()
