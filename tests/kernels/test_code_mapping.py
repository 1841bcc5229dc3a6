"""Kernel dumps linked to lines of Python by IR files of MindSpore 2.10, 2.7 (written on a CPU) and of older forms."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from probe.common.errors import MsprobeException
from probe.kernels.code_mapping import AMBIGUOUS, NO_NODE, NO_SOURCE, map_code, read

# Two nodes as MindSpore 2.10 writes them, and one without lines of the source.
GRAPH = """\
# IR entry: @kernel_graph0
subgraph @kernel_graph0() {
  %0(CNode_203) = Load(%para2_block1.dense.weight, UMonad[U]) cnode_attrs: {checkpoint: Bool(1)}
      : (<Ref[Tensor[Float32]], (4, 4)>, <UMonad, NoShape>) -> (<Tensor[Float32], (4, 4)>)
      # Fullname with scope: (Default/block1-Block/Load-op0)
  %1(x) = PrimFunc_MatMul(%para3_x, %0, Bool(0), Bool(1)) {instance name: matmul}
      : (<Tensor[Float32], (2, 4)>, <Tensor[Float32], (4, 4)>) -> (<Tensor[Float32], (2, 4)>)
      # Fullname with scope: (Default/block1-Block/dense-Dense/MatMul-op0)
      # In file /src/net.py:23~27, 4~35/    def construct(self, x):/
      # In file /src/net.py:24, 12~23/        y = self.block1(x)/
      # In file /src/net.py:17, 24~34/        return ops.relu(self.dense(x)) / 2 + x/
  %2(y) = PrimFunc_ReLU(%1)
      # Fullname with scope: (Default/block1-Block/ReLU-op0)
      # In file /src/net.py:17, 15~23/        return ops.relu(self.dense(x)) / 2 + x/
  %3(z) = PrimFunc_ReLU(%2)
      # Fullname with scope: (Default/block2-Block/ReLU-op0)
      # In file /src/net.py:30, 15~23/        return ops.relu(x)/
}
"""
MATMUL = (
    "File /src/net.py, line 17, return ops.relu(self.dense(x)) / 2 + x; File /src/net.py, line 24, y = self.block1(x)"
)
TAIL = ".12.3.1700000000123456.output.0.DefaultFormat.npy"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph_build_0_0127.ir"
    path.write_text(GRAPH)
    return path


def linked(graph: Path, names: list[str], tmp_path: Path) -> dict[str, str]:
    for name in names:
        (tmp_path / "dump" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dump" / name).write_bytes(b"")
    mapped = map_code(str(graph), str(tmp_path / "dump"), str(tmp_path / "out"))
    (table,) = mapped.files
    assert Path(table).name.startswith("code_mapping_")
    with open(table, newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["file_path", "code_stack"]
    return {Path(path).name: stack for path, stack in rows[1:]}


def test_tensor_files_by_their_names(graph: Path, tmp_path: Path) -> None:
    whole, last = f"MatMul.Default_block1-Block_dense-Dense_MatMul-op0{TAIL}", f"MatMul.MatMul-op0{TAIL}"
    assert linked(graph, [f"0/rank_0/{whole}", last, "graph.txt"], tmp_path) == {whole: MATMUL, last: MATMUL}


def test_what_cannot_be_linked_is_counted(graph: Path, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    for name in ("ReLU.ReLU-op0", "Add.Add-op7", "Load.Default_block1-Block_Load-op0", "MatMul.MatMul-op0"):
        (dump / f"{name}{TAIL}").write_bytes(b"")
    mapped = map_code(str(graph), str(dump), str(tmp_path / "out"))
    assert (mapped.linked, dict(mapped.unlinked)) == (1, {AMBIGUOUS: 1, NO_NODE: 1, NO_SOURCE: 1})


def test_a_table_of_statistics_gets_one_more_column(graph: Path, tmp_path: Path) -> None:
    table = tmp_path / "statistic.csv"
    table.write_text(
        "Op Type,Op Name,Max Value\nMatMul,Default/block1-Block/dense-Dense/MatMul-op0,-1.5\nAdd,Add-op3,2\n"
    )
    before = table.read_text()
    mapped = map_code(str(graph), str(table), str(tmp_path / "out"))
    with open(mapped.files[0], newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [
        ["Op Type", "Op Name", "Max Value", "code_stack"],
        ["MatMul", "Default/block1-Block/dense-Dense/MatMul-op0", "-1.5", MATMUL],
        ["Add", "Add-op3", "2", ""],
    ]
    assert table.read_text() == before


@pytest.mark.parametrize(
    "line",
    [
        "# In file /src/net.py(17)/        return x / 2/",
        "# In file /src/net.py:17/        return x / 2/",
        "#   In file /src/net.py:17, 8~20/   return x / 2/",
    ],
)
def test_lines_of_other_releases(line: str, tmp_path: Path) -> None:
    path = tmp_path / "anf_after_graph_build_0.ir"
    path.write_text(f"  %1([CNode]3) = Div(%para1_x)\n      # Fullname with scope: (Default/Div-op1)\n      {line}\n")
    (node,) = read(str(path))
    assert (node.name, [str(each) for each in node.stack]) == (
        "Default/Div-op1",
        ["File /src/net.py, line 17, return x / 2"],
    )


def test_bad_input(graph: Path, tmp_path: Path) -> None:
    other = tmp_path / "00_bootstrap.ir"
    other.write_text("%1(x) = Add(%para1_x)\n  # In file a.py:3, 4~9/  x + 1/\n")
    with pytest.raises(MsprobeException, match=r"no node with a full name is in it. Give an IR file"):
        map_code(str(other), str(tmp_path), str(tmp_path / "out"))
    with pytest.raises(MsprobeException, match=r"gone.ir does not exist; give an IR file"):
        map_code(str(tmp_path / "gone.ir"), str(tmp_path), str(tmp_path / "out"))
    with pytest.raises(MsprobeException, match="nowhere does not exist"):
        map_code(str(graph), str(tmp_path / "nowhere"), str(tmp_path / "out"))
    with pytest.raises(
        MsprobeException, match=r"holds no kernel dump; expected: files named type.name.task.stream.time"
    ):
        map_code(str(graph), str(tmp_path), str(tmp_path / "out"))
    (tmp_path / "statistic.csv").write_text("a,b\n1,2\n")
    with pytest.raises(MsprobeException, match='it has no column "Op Name"'):
        map_code(str(graph), str(tmp_path), str(tmp_path / "out"))
