"""The exit status of every command in every situation, with the inputs that make it.

The page for users is ``docs/reference/exit-status.md``. Cases that evaluate calls need a framework;
``test_torch_exit_statuses.py`` runs these.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_packages
import made_checkpoints
import made_dumps
import numpy as np

SITUATIONS = ("fine", "found", "unreadable", "wrong argument", "nothing to judge", "interrupted")

Data = dict[str, Any]
Inputs = Callable[[Path], list[str]]
CALL = "Functional.silu.0.forward"
DETAILS = Path(__file__).parents[1] / "precheck" / "cases" / "replay"


@dataclass(frozen=True)
class Case:
    """One cell of the table.

    Args:
        status: The exit status.
        inputs: Makes the inputs in an empty folder, and gives the arguments.
        message: Part of what standard error says; empty if it says nothing.
        framework: The framework that is needed.
        is_faulty: Whether ``silu`` is to compute something wrong meanwhile.
        own_process: Whether it ends, replaces or needs parts of the process.
        interrupt: The function that Ctrl-C comes in.
        path: A folder for ``PYTHONPATH``, below that of the inputs.
    """

    status: int
    inputs: Inputs
    message: str = ""
    framework: str = ""
    is_faulty: bool = False
    own_process: bool = False
    interrupt: str = "probe.common.files.open_for_reading"
    path: str = ""


@dataclass(frozen=True)
class Impossible:
    """A situation that a command cannot be in, and why."""

    reason: str


# --- inputs


def tensor(largest: float) -> Data:
    return made_dumps.tensor(largest, largest - 1, largest, 2 * largest, (4,))


def record(output: float = 0.5) -> Data:
    return made_dumps.call([tensor(1.0)], [tensor(output)])


def dump(folder: Path, data: Data | None = None) -> str:
    """A dump with one call of ``silu``, or with `data`; gives its folder."""
    return str(made_dumps.write(folder, {CALL: record()} if data is None else data, level="L1"))


def unreadable(folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text('{"task": "statistics", "data": {"Functional.sil')
    return str(folder)


def journal(folder: Path) -> Path:
    return made_dumps.write_journal(folder, {CALL: record()})


def kernels(name: str, content: bytes, *more: str) -> Inputs:
    """A graph of one node, and a file that ATB or MindSpore may have written."""

    def inputs(folder: Path) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        graph = "%0(x) = PrimFunc_ReLU(%para1_x)\n  # Fullname with scope: (Default/ReLU-op0)\n"
        (folder / "graph.ir").write_text(graph)
        (folder / name).write_bytes(content)
        known = [str(folder / each) if each in (name, "graph.ir", "out", ".") else each for each in more]
        return [*known, "-o", str(folder / "out")]

    return inputs


ATB = b"$Version=1.0\ndtype=0\ndims=2\n$Object.data=0,8\n$End=1\n" + bytes(8)
KERNEL = "ReLU.Default_ReLU-op0.1.2.1700000000000.output.0.npy"


def program(text: str, *before: str) -> Inputs:
    def inputs(folder: Path) -> list[str]:
        (folder / "program.py").write_text(text)
        return ["-o", str(folder / "dump"), *before, str(folder / "program.py")]

    return inputs


def one(flag: str, make: Callable[[Path], str], *more: str, output: str = "-o") -> Inputs:
    """The arguments of a command that takes one dump."""

    def inputs(folder: Path) -> list[str]:
        written = [output, str(folder / "out")] if output else []
        return [*([flag] if flag else []), make(folder / "in"), *written, *more]

    return inputs


def rollouts(apart: float, content: bytes | None = None, *more: str) -> Inputs:
    """Log-probabilities that differ by up to `apart` nats; with `content` the second file holds that."""

    def inputs(folder: Path) -> list[str]:
        folder.mkdir(parents=True, exist_ok=True)
        logps = -np.linspace(1, 2, 120).reshape(4, 30)
        for name, values in (("a", logps), ("b", logps - apart * np.sin(logps * 99) ** 2), ("zeros", 0 * logps)):
            np.save(folder / f"{name}.npy", values)
        if content is not None:
            (folder / "b.npy").write_bytes(content)
        known = [str(folder / each) if each.endswith(".npy") else each for each in more]
        return [str(folder / "a.npy"), str(folder / "b.npy"), *known]

    return inputs


def two(target: Callable[[Path], str], golden: Callable[[Path], str], *more: str) -> Inputs:
    """The arguments of a command that compares."""

    def inputs(folder: Path) -> list[str]:
        paths = ["-tp", target(folder / "a"), "-gp", golden(folder / "b"), "-o", str(folder / "out")]
        return [*paths, "--fail-on", "divergence", "--jobs", "1", *more]

    return inputs


def with_data(data: Data) -> Callable[[Path], str]:
    return lambda folder: dump(folder, data)


FAR_OFF = with_data({CALL: record(0.9)})
OTHER = with_data({"Torch.matmul.0.forward": record()})
NAN = with_data({CALL: record(float("nan"))})
EMPTY = with_data({})
MODULE = with_data({"Module.a.Linear.forward.0": record()})


def as_compared() -> dict[str, Case | Impossible]:
    """What `compare` and `graph_visualize` have in common."""
    return {
        "fine": Case(0, two(dump, dump)),
        "found": Case(1, two(FAR_OFF, dump)),
        "unreadable": Case(2, two(unreadable, dump), "cut off"),
        "wrong argument": Case(2, two(dump, dump, "--jobs", "0"), "'0' is not a number of processes"),
        "nothing to judge": Case(2, two(dump, OTHER), "cannot be told whether the runs diverge"),
        "interrupted": Case(130, two(dump, dump), "interrupted."),
    }


def as_checked(*more: str) -> dict[str, Case | Impossible]:
    """What `acc_check` and `multi_acc_check` have in common."""
    flag = "-api_info"
    return {
        "fine": Case(0, one(flag, dump, *more), framework="torch"),
        "found": Case(1, one(flag, dump, *more), framework="torch", is_faulty=True),
        "unreadable": Case(2, one(flag, unreadable, *more), "cut off"),
        "wrong argument": Case(2, one(flag, dump, "--jobs", "0"), "'0' is not a number of processes"),
        "nothing to judge": Case(2, one(flag, MODULE, *more), "has no call of a function"),
        "interrupted": Case(130, one(flag, dump, *more), "interrupted."),
    }


def details(npu: Callable[[Path], Path], *more: str) -> Inputs:
    def inputs(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        clean = str(DETAILS / "clean_details.csv")
        return ["-npu", str(npu(folder)), "-gpu", clean, "-o", str(folder / "out"), *more]

    return inputs


def nothing_run(folder: Path) -> Path:
    """Details of which each case was left out."""
    text = (DETAILS / "clean_details.csv").read_text(encoding="utf-8-sig")
    path = folder / "details.csv"
    path.write_text(text.replace(",pass,", ",SKIP,"), encoding="utf-8-sig")
    return path


def checkpoints(second: float, cut: bool = False) -> Inputs:
    """Two checkpoints of one number each."""

    def inputs(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        paths = [folder / name for name in ("a.safetensors", "b.safetensors")]
        for path, value in zip(paths, (1.0, second)):
            made_checkpoints.write_safetensors(path, {"w": np.array([value])})
        if cut:
            paths[1].write_bytes(paths[1].read_bytes()[:-2])
        return [*map(str, paths)]

    return inputs


def empty(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def monitored(flag: str, factor: float | None, *output: str) -> Inputs:
    """A folder of a monitor.

    Args:
        flag: Before the folder; empty for none.
        factor: Of the size of the output of the last step; ``None`` for a file of another version.
        output: The flag of the folder for what is written.
    """

    def make(folder: Path) -> list[str]:
        place = folder / "monitor_output" / "rank0"
        place.mkdir(parents=True)
        lines = [f"0,head.output,{step},0,{1.0 if step < 9 else factor}" for step in range(10)]
        text = "\n".join(["vpp_stage,name,step,micro_step,norm", *lines]) if factor is not None else "format,3"
        (place / "actv_0-9.csv").write_text(f"{text}\n")
        words = flag.split()
        return [*words, str(place.parent), *(part for each in output for part in (each, str(folder / "out")))]

    return make


def as_monitored(flag: str, *output: str, found: int = 1) -> dict[str, Case | Impossible]:
    """The cases of a command over the folders of a monitor; its name is `flag` where it is one of several."""
    return {
        "fine": Case(0, monitored(flag, 1.0, *output)),
        "found": Case(found, monitored(flag, 1e9, *output)),
        "unreadable": Case(2, monitored(flag, None, *output), "no column name"),
        "wrong argument": Case(2, lambda folder: flag.split(), "the following arguments are required: "),
        "nothing to judge": Case(2, lambda folder: [*flag.split(), str(folder)], "holds no rows of a monitor"),
        "interrupted": Case(130, monitored(flag, 1.0, *output), "interrupted."),
    }


def tables(config: str, *more: str, differs: bool = False) -> Inputs:
    """Tables of two ranks, as `compare` writes them."""

    def inputs(folder: Path) -> list[str]:
        from probe.compare.runner import summaries

        name = "Distributed.all_reduce.0.forward"
        for rank in range(2):
            for side, output in (("a", 0.9 if differs else 0.5), ("b", 0.5)):
                dump(folder / side / "step0" / f"rank{rank}", {name: record(output)})
        list(summaries(str(folder / "a" / "step0"), str(folder / "b" / "step0"), str(folder / "tables")))
        (folder / "config.yaml").write_text(config)
        config_path = str(folder / "config.yaml")
        return ["-i", str(folder / "tables"), "-o", str(folder / "out"), "-config", config_path, *more]

    return inputs


def journals(make: Callable[[Path], object], *more: str) -> Inputs:
    def inputs(folder: Path) -> list[str]:
        make(folder / "run" / "rank0")
        return [str(folder / "run"), *more]

    return inputs


def torn(folder: Path) -> None:
    with journal(folder).open("ab") as stream:
        stream.write(b"\x09\0\0\0")


def damaged(folder: Path) -> None:
    journal(folder).write_bytes(b"{}")


def broken_torch(folder: Path) -> list[str]:
    fake_packages.package(folder / "packages", "torch", "2.13.0", "raise ImportError('libcudart is missing')")
    return []


def pack(path: Path, **variables: str) -> str:
    """A pack with these variables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("env", json.dumps(variables))
        archive.writestr("pip", "torch=2.9.0")
    return str(path)


def packs(golden: Data | None, target: Data, *more: str) -> Inputs:
    def inputs(folder: Path) -> list[str]:
        first = folder / "a.zip"
        if golden is None:
            first.write_bytes(b"no zip")
        else:
            pack(first, **golden)
        return ["-c", str(first), pack(folder / "b.zip", **target), "-o", str(folder / "out"), *more]

    return inputs


def nothing_in_common(folder: Path) -> list[str]:
    for name, member in (("a.zip", "env"), ("b.zip", "pip")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(member, "{}" if member == "env" else "torch=2.9.0")
    return ["-c", str(folder / "a.zip"), str(folder / "b.zip"), "-o", str(folder / "out")]


ALL_REDUCE = "api: [Distributed.all_reduce]"
SILU = "Functional.silu.0"

TABLE: dict[str, dict[str, Case | Impossible]] = {
    "run": {
        "fine": Case(0, program("print('trained')"), own_process=True),
        "found": Case(1, program("print('wrong')\nraise SystemExit(1)"), own_process=True),
        "unreadable": Case(2, lambda folder: [str(folder / "none.py")], "none.py", own_process=True),
        "wrong argument": Case(2, program("", "--step-after", "x"), "argument --step-after", own_process=True),
        "nothing to judge": Case(2, program("", "--strict"), "msprobe run collected nothing", own_process=True),
        "interrupted": Case(-2, program("raise KeyboardInterrupt"), "KeyboardInterrupt", own_process=True),
    },
    "show": {
        "fine": Case(0, one("", dump, output="")),
        # It shows what it is asked for, and judges nothing.
        "found": Case(0, one("", NAN, output="")),
        "unreadable": Case(2, one("", unreadable, output=""), "cut off"),
        "wrong argument": Case(2, one("", dump, "--limit", "-3", output=""), "'-3' is not a number of lines"),
        "nothing to judge": Case(0, one("", EMPTY, output="")),
        "interrupted": Case(130, one("", dump, output=""), "interrupted."),
    },
    "compare": as_compared(),
    "graph_visualize": as_compared(),
    "overflow_check": {
        "fine": Case(0, one("-i", dump)),
        "found": Case(1, one("-i", NAN, "--no_page")),
        "unreadable": Case(2, one("-i", unreadable), "cut off"),
        "wrong argument": Case(2, one("-i", dump, "--jobs", "0"), "'0' is not a number of processes"),
        "nothing to judge": Case(2, one("-i", EMPTY), "holds no records"),
        "interrupted": Case(130, one("-i", dump), "interrupted."),
    },
    "rollout_check": {
        "fine": Case(0, rollouts(0.0)),
        "found": Case(1, rollouts(2.0)),
        "unreadable": Case(2, rollouts(0.0, b"not numpy"), "b.npy: not a tensor"),
        "wrong argument": Case(2, rollouts(0.0, None, "--layers", "0"), "'0' is not a number"),
        "nothing to judge": Case(2, rollouts(0.0, None, "--mask", "zeros.npy"), "so none is left"),
        "interrupted": Case(130, rollouts(0.0), "interrupted."),
    },
    "acc_check": as_checked("-d", "cpu"),
    "multi_acc_check": as_checked("-d", "cpu", "-n", "1"),
    "api_precision_compare": {
        "fine": Case(0, details(lambda folder: DETAILS / "clean_details.csv")),
        "found": Case(1, details(lambda folder: DETAILS / "planted_details.csv")),
        "unreadable": Case(2, details(lambda folder: DETAILS / "clean_result.csv"), "it is another table, or damaged"),
        "wrong argument": Case(2, details(lambda folder: folder / "a", "--fail-on", "x"), "argument --fail-on"),
        "nothing to judge": Case(2, details(nothing_run), "no case of"),
        "interrupted": Case(130, details(lambda folder: DETAILS / "clean_details.csv"), "interrupted."),
    },
    "replay": {
        "fine": Case(0, one("", dump, SILU, output=""), framework="torch"),
        "found": Case(1, one("", dump, SILU, output=""), framework="torch", is_faulty=True),
        "unreadable": Case(2, one("", unreadable, SILU, output=""), "cut off"),
        "wrong argument": Case(2, one("", dump, output=""), "the following arguments are required: RECORD"),
        "nothing to judge": Case(2, one("", EMPTY, SILU, output=""), "Functional.silu.0"),
        "interrupted": Case(130, one("", dump, SILU, output=""), "interrupted."),
    },
    "config_check": {
        "fine": Case(0, packs({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Ring"})),
        "found": Case(1, packs({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"})),
        "unreadable": Case(2, packs(None, {}), "is not a pack"),
        "wrong argument": Case(2, lambda folder: ["-d", "-o", str(folder / "pack.tar")], "ends with .zip"),
        "nothing to judge": Case(2, nothing_in_common, "nothing in common"),
        "interrupted": Case(130, packs({}, {}), "interrupted."),
    },
    "ckpt_compare": {
        "fine": Case(0, checkpoints(1.0)),
        "found": Case(1, checkpoints(2.0)),
        "unreadable": Case(2, checkpoints(1.0, cut=True), "cut off"),
        "wrong argument": Case(2, lambda folder: [str(folder)], "the following arguments are required: B"),
        "nothing to judge": Case(2, lambda folder: [str(empty(folder)), str(folder)], "no checkpoint in it"),
        "interrupted": Case(130, checkpoints(1.0), "interrupted."),
    },
    "monitor": as_monitored("report"),
    # It shows what there is, and judges nothing by its status.
    "trend": as_monitored("", "-o", found=0),
    "data2db": {
        "fine": Case(0, monitored("--data", 1.0, "--db")),
        "found": Case(0, monitored("--data", 1e9, "--db")),
        "unreadable": Case(2, monitored("--data", None, "--db"), "no column name"),
        "wrong argument": Case(2, lambda folder: ["--data", str(folder)], "are required"),
        "nothing to judge": Case(2, lambda folder: ["--data", str(folder), "--db", str(folder)], "holds no rows"),
        "interrupted": Case(130, monitored("--data", 1.0, "--db"), "interrupted."),
    },
    "merge_result": {
        "fine": Case(0, tables(ALL_REDUCE)),
        # It collects what was judged before.
        "found": Case(0, tables(ALL_REDUCE, differs=True)),
        "unreadable": Case(2, tables("api: ["), "not valid YAML"),
        "wrong argument": Case(2, lambda folder: ["-i", str(folder)], "are required"),
        "nothing to judge": Case(2, tables("api: [Distributed.send]"), "no table has a row of Distributed.send"),
        "interrupted": Case(130, tables(ALL_REDUCE), "interrupted."),
    },
    "code_mapping": {
        "fine": Case(0, kernels(KERNEL, b"", "--ir", "graph.ir", "--dump_data", KERNEL)),
        "found": Impossible("it looks for nothing"),
        "unreadable": Case(2, kernels(KERNEL, b"", "--ir", KERNEL, "--dump_data", KERNEL), "no node with a full name"),
        "wrong argument": Case(2, kernels(KERNEL, b"", "--ir", "graph.ir"), "--dump_data"),
        "nothing to judge": Case(2, kernels("a.npy", b"", "--ir", "graph.ir", "--dump_data", "."), "no kernel dump"),
        "interrupted": Case(130, kernels(KERNEL, b"", "--ir", "graph.ir", "--dump_data", KERNEL), "interrupted."),
    },
    "parse": {
        "fine": Case(0, kernels("a.bin", ATB, "-d", "a.bin")),
        "found": Impossible("it looks for nothing"),
        "unreadable": Case(2, kernels("a.bin", ATB[:-1], "-d", "a.bin"), "the file is cut off"),
        "wrong argument": Case(2, kernels("a.bin", ATB, "-d", "a.bin", "-t", "csv"), "invalid choice: 'csv'"),
        "nothing to judge": Case(2, kernels("a.txt", b"", "-d", "."), "has no file *.bin"),
        "interrupted": Case(130, kernels("a.bin", ATB, "-d", "a.bin"), "interrupted."),
    },
    "recover": {
        "fine": Case(0, journals(journal)),
        # What is lost is named; what is left is made into files.
        "found": Case(0, journals(torn)),
        "unreadable": Case(2, journals(damaged), "dump.journal"),
        "wrong argument": Case(2, lambda folder: [], "DIR"),
        "nothing to judge": Case(0, journals(dump)),
        "interrupted": Case(130, journals(journal), "interrupted."),
    },
    "pack": {
        "fine": Case(0, one("", dump, output="")),
        "found": Impossible("it looks for nothing"),
        "unreadable": Case(2, one("", unreadable, output=""), "cut off"),
        "wrong argument": Case(2, one("", dump), "ends with .zip"),
        "nothing to judge": Case(2, lambda folder: [str(empty(folder))], "holds no dump"),
        "interrupted": Case(130, one("", dump, output=""), "interrupted."),
    },
    "config": {
        "fine": Case(0, lambda folder: ["-t", "tensor"]),
        "found": Impossible("it looks for nothing"),
        "unreadable": Impossible("it reads no file of the user's"),
        "wrong argument": Case(2, lambda folder: ["-t", "tensors"], "invalid choice: 'tensors'"),
        "nothing to judge": Impossible("the keys are always there"),
        "interrupted": Case(
            130, lambda folder: [], "interrupted.", interrupt="probe.api.commands.config.template"
        ),
    },
    "doctor": {
        "fine": Case(0, lambda folder: ["--no-import"]),
        "found": Case(1, broken_torch, own_process=True, path="packages"),
        "unreadable": Impossible("it reads no file of the user's"),
        "wrong argument": Case(2, lambda folder: ["torch"], "unrecognized arguments: torch"),
        "nothing to judge": Impossible("Python itself is there"),
        "interrupted": Case(
            130, lambda folder: ["--no-import"], "interrupted.",
            interrupt="probe.api.commands.doctor.is_installed",
        ),
    },
    "completion": {
        "fine": Case(0, lambda folder: ["bash"]),
        "found": Impossible("it looks for nothing"),
        "unreadable": Impossible("it reads no file of the user's"),
        "wrong argument": Case(2, lambda folder: ["fish"], "invalid choice: 'fish'"),
        "nothing to judge": Impossible("the commands are always there"),
        "interrupted": Case(130, lambda folder: ["bash"], "interrupted.", interrupt="shtab.complete"),
    },
}  # fmt: skip


def cases(framework: str) -> list[tuple[str, str]]:
    """The commands and situations of the table that need a framework, or none."""
    return [
        (command, situation)
        for command, row in TABLE.items()
        for situation, case in row.items()
        if isinstance(case, Case) and case.framework == framework
    ]


def case_of(command: str, situation: str) -> Case:
    """One case of the table."""
    found = TABLE[command][situation]
    assert isinstance(found, Case)
    return found
