"""Rules of a comparison of two packs, as ``msprobe config_check -c`` answers it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from probe.api import cli

STATISTICS = {"max": 1.0, "min": 0.0, "mean": 0.5, "norm": 2.0}
MEMBERS = {
    "hyper": "hyperparameters/hyperparameters_static.json", "weights": "weights/step0/rank0/weight.json",
    "checksums": "checksums/step0/rank0/weights.json", "random": "random/rank0.json",
    "random_calls": "random_calls/rank0.json",
}  # fmt: skip
SAME = "another name of the same setting"
Sides = tuple[dict[str, Any], dict[str, Any]]


class Compared:
    """Compares two packs with the members that are given, and holds what the command wrote and said."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def packs(self, golden: dict[str, Any], target: dict[str, Any], *more: str) -> Compared:
        paths = []
        for side, members in (("a", golden), ("b", target)):
            paths.append(str(self.folder / f"{side}.zip"))
            with zipfile.ZipFile(paths[-1], "w") as archive:
                for name, content in {"env": {}, **members}.items():
                    text = content if isinstance(content, str) else json.dumps(content)
                    archive.writestr(MEMBERS.get(name, name), text)
        return self.of(*paths, *more)

    def of(self, *arguments: str) -> Compared:
        out = self.folder / "out"
        self.status = cli.main(["config_check", "-c", *arguments, "-o", str(out), "--overwrite"])
        self.said = "".join(self._capsys.readouterr())
        if self.status < 2:
            self.content = json.loads((out / "config_check.json").read_text())
        return self

    def rows(self, *keys: str) -> list[Any]:
        """What differs: the check and these values of each row."""
        checks = self.content["checks"].items()
        return [(name, *(row[key] for key in keys)) for name, check in checks for row in check["rows"]]

    def levels(self) -> dict[str, str]:
        return {row["name"]: row["level"] for check in self.content["checks"].values() for row in check["rows"]}


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compared:
    return Compared(tmp_path, capsys)


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ("1e-4", 0.0001, True), ("1e-5", "0.00001", True), (True, "true", True), ("False", False, True), (1, 1.0, True),
        (8, "8", True), ([1, 2], "[1, 2.0]", True), ("torch.bfloat16", "bf16", True), ("fp16", "float16", True),
        ("(0.9, 0.95)", ["0.9", "0.95"], True), (None, "None", True), (True, 1, True),
        ("1e-4", 1e-5, False), (True, "false", False), ("a", "b", False), ([1], [1, 2], False), (2, True, False),
    ],
)  # fmt: skip
def test_values_are_compared_by_what_they_mean(compared: Compared, one: Any, other: Any, is_equal: bool) -> None:
    for mine, theirs in ((one, other), (other, one)):
        found = compared.packs({"hyper": {"alpha": mine}}, {"hyper": {"alpha": theirs}})
        assert found.levels() == ({} if is_equal else {"alpha": "error"})
        assert found.status == (not is_equal)


@pytest.mark.parametrize(
    ("golden", "target", "levels"),
    [
        # A flag is the dtype that it asks for.
        ({"bf16": True}, {"dtype": "bfloat16"}, {}),
        ({"bf16": "true"}, {"model.compute_dtype": "torch.bfloat16"}, {}),
        ({"bf16": True}, {"fp16": True}, {f"fp16 (golden: bf16, {SAME})": "error"}),
        ({"bf16": True}, {"dtype": "float16"}, {f"dtype (golden: bf16, {SAME})": "error"}),
        # Names are matched by their last part and by meaning.
        ({"training.learning_rate": 1, "hidden-size": 8}, {"lr": 1, "model.hidden_size": 8}, {}),
        ({"rope.alpha-x": 1}, {"alpha_x": 2}, {"alpha_x (golden: rope.alpha-x)": "error"}),
        # What one side alone has, unless it is off.
        ({"alpha": 1, "use_x": False}, {"log_interval": 3}, {"alpha": "warning", "log_interval": "info"}),
    ],
)
def test_settings_are_matched_by_name_and_meaning(
    compared: Compared, golden: dict[str, Any], target: dict[str, Any], levels: dict[str, str]
) -> None:
    assert compared.packs({"hyper": golden}, {"hyper": target}).levels() == levels


def test_variables_of_two_platforms_are_compared_by_meaning_with_defaults(compared: Compared) -> None:
    golden = {"HCCL_DETERMINISTIC": "true", "ASCEND_LAUNCH_BLOCKING": "0", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}
    target = {"NCCL_DETERMINISTIC": "1", "CUDA_VISIBLE_DEVICES": "2,3", "NCCL_DEBUG": "INFO"}
    assert compared.packs({"env": golden}, {"env": target}).levels() == {
        "CUDA_VISIBLE_DEVICES (golden: ASCEND_RT_VISIBLE_DEVICES)": "info", "NCCL_DEBUG": "info",
    }  # fmt: skip
    compared.packs({"env": golden}, {"env": {**golden, "HCCL_DETERMINISTIC": "false"}})
    assert compared.rows("golden", "target", "level") == [("env", "true", "false", "error")]


def test_packages_have_levels_and_builds_of_one_release_are_info(compared: Compared) -> None:
    golden = "torch=2.9.0+cu124\nnumpy=1.26\npytest=8\nflash_attn=2.1\n"
    target = "torch=2.9.0+cpu\nnumpy=2.0\npytest=9\nFlash-Attn=2.1\n"
    assert compared.packs({"pip": golden}, {"pip": target}).levels() == {
        "numpy": "error", "pytest": "info", "torch": "info",
    }  # fmt: skip


def seeded(seed: str) -> dict[str, Any]:
    place = {"count": 1, "stack": ["File a.py, line 3, in main, torch.manual_seed(seed)"]}
    calls = {"torch.manual_seed": [{**place, "arguments": [seed]}]}
    return {"random": {"torch.manual_seed": [place]}, "random_calls": calls}


def weighed(names: str, checksum: str = "1", shape: tuple[int, ...] = (2, 3)) -> dict[str, Any]:
    marks = {name: {"dtype": "float32", "shape": list(shape), "checksum": checksum} for name in names}
    return {"weights": dict.fromkeys(names, STATISTICS), "checksums": marks}


@pytest.mark.parametrize(
    ("golden", "target", "check", "told"),
    [
        (weighed("ab"), weighed("a"), "weights", ""),
        (weighed("a"), weighed("ab"), "weights", ""),
        # Permuted values are told by checksums, and shapes come first.
        (weighed("a"), weighed("a", "2"), "weights", "checksum 2, the same statistics"),
        (weighed("a"), weighed("a", "2", (3, 2)), "weights", "shape [3, 2]"),
        (seeded("1"), seeded("2"), "random", ""),
    ],
)
def test_weights_and_random_calls_that_differ_are_errors(
    compared: Compared, golden: dict[str, Any], target: dict[str, Any], check: str, told: str
) -> None:
    assert compared.packs(golden, golden).status == 0
    assert compared.packs(golden, target).content["checks"][check]["level"] == "error"
    assert not told or told in [row[1] for row in compared.rows("target")]


def test_what_may_be_secret_is_counted_and_not_named(compared: Compared) -> None:
    sides = {"env": {"MY_TOKEN": "planted-1", "X": "1"}}, {"env": {"MY_TOKEN": "planted-2", "Y": "1"}}
    found = compared.packs(*sides)
    assert (found.content["withheld"], found.status) == (3, 0)
    written = "".join((found.folder / "out" / f"config_check.{suffix}").read_text() for suffix in ("json", "html"))
    assert "planted" not in written + found.said and "MY_TOKEN" not in written + found.said


def test_accepted_and_ignored_differences_are_left_out(compared: Compared) -> None:
    sides: Sides = {"env": {"NCCL_ALGO": "Ring"}, "pip": "numpy=1\n"}, {"pip": "numpy=2\n"}
    assert compared.packs(*sides).status == 1
    baseline = compared.folder / "accepted.json"
    baseline.write_text(json.dumps(compared.content))
    assert compared.packs(*sides, "--ignore", "NCCL_*", "--ignore", "pip/numpy").status == 0
    assert compared.packs(*sides, "--accept", str(baseline)).status == 0
    assert compared.packs(sides[0], {"pip": "numpy=3\n"}, "--accept", str(baseline)).status == 1
    baseline.write_text("[]")
    assert compared.packs(*sides, "--accept", str(baseline)).status == 2 and "--accept" in compared.said


def test_the_page_runs_no_script_and_shows_names_as_text(compared: Compared) -> None:
    name = "<script>alert(1)</script>"
    compared.packs({"hyper": {name: "1"}}, {"hyper": {name: "2"}})
    text = (compared.folder / "out" / "config_check.html").read_text()
    assert "<script" not in text and "&lt;script&gt;" in text and "default-src 'none'" in text


def dumps(folder: Path, golden: list[dict[str, Any]], target: list[dict[str, Any]]) -> tuple[str, str]:
    """Two runs, with what is known of the environment of each rank."""
    for name, ranks in (("a", golden), ("b", target)):
        (folder / name / "step0").mkdir(parents=True)
        for rank, content in enumerate(ranks):
            whole = {"format": 1, "variables": {}, "packages": {}, **content}
            (folder / name / f"environment_rank{rank}.json").write_text(json.dumps(whole))
    return str(folder / "a"), str(folder / "b")


def test_two_dumps_are_compared_by_their_environments(compared: Compared) -> None:
    def known(seed: int, lr: float) -> dict[str, Any]:
        return {"seeds": {"torch": seed}, "optimizers": [{"type": "AdamW", "groups": [{"lr": lr, "parameters": 3}]}]}

    compared.of(*dumps(compared.folder, [known(1, 0.1)], [known(2, 0.2)]))
    assert compared.rows("name", "golden", "target") == [
        ("platform", "seed", 1, 2), ("hyperparameters", "optimizer.0.groups.0.lr", 0.1, 0.2),
    ]  # fmt: skip
    (compared.folder / "b" / "environment_rank0.json").unlink()
    compared.of(str(compared.folder / "a"), str(compared.folder / "b"))
    assert compared.status == 2 and "holds no environment_rank" in compared.said


def test_each_rank_of_two_dumps_is_compared(compared: Compared) -> None:
    def known(algorithm: str, *versions: str) -> list[dict[str, Any]]:
        return [{"variables": {"NCCL_ALGO": algorithm}, "packages": {"torch": version}} for version in versions]

    compared.of(*dumps(compared.folder, known("Ring", "2.13", "2.13", "2.13"), known("Tree", "2.13", "2.12")))
    # What differs on all ranks is one row.
    assert compared.rows("name", "golden", "target") == [
        ("env", "NCCL_ALGO", "Ring", "Tree"), ("platform", "number of processes", 3, 2),
        ("pip", "rank 1: torch", "2.13", "2.12"),
    ]  # fmt: skip
