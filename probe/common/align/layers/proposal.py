"""A layer mapping that is proposed when none is given: how it is made, reported and written to be edited."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from probe.common import files
from probe.common.align.layers.alignment import LayerValues, Network, Partners, align, network
from probe.common.align.layers.module_paths import Path, ScopedRecords
from probe.common.align.layers.rules import TOP, UNMATCHED, Rules, translate
from probe.common.align.mapping_files import scalar
from probe.common.terminal_text import printable

_NOWHERE = (UNMATCHED,)
# load_rules reads a class of this name as the top.
_NAMES_OF_TOP = (TOP, "Cell")


@dataclass(frozen=True)
class Proposal:
    """Layers that are called differently, and those that have no counterpart."""

    rules: Rules
    layers: int
    """Layers of the target that have a counterpart."""
    renamed: int
    """The number of these layers that have another path on the golden side."""
    target_only: list[str]
    """Paths and classes."""
    golden_only: list[str]

    @property
    def names(self) -> list[str]:
        """The rules as text, the most telling first: what the classes' own layers are called."""
        return [
            f"{spelled(mine)} -> {spelled(theirs)} in {name}"
            for name, rules in self.rules.items()
            for mine, theirs in rules.items()
            if theirs != _NOWHERE
        ]


def propose(target: ScopedRecords, golden: ScopedRecords) -> Proposal:
    """Align two networks."""
    mine, theirs = network(target), network(golden)
    same = LayerValues(mine, theirs)
    partners = align(mine, theirs, same)
    rules = _rules(partners, target, mine)
    _by_path(partners, rules, target, (mine, theirs), same)
    back = set(partners.values())
    return Proposal(
        {name: dict(sorted(names.items())) for name, names in rules.items() if names},
        len(partners),
        sum(one != other for one, other in partners.items()),
        [_label(layer.path, layer.class_name) for path, layer in mine.layers.items() if path not in partners],
        [_label(layer.path, layer.class_name) for path, layer in theirs.layers.items() if path not in back],
    )


def spelled(path: Path) -> str:
    """A path as it is written; what is empty is a level that the other side does not have."""
    return ".".join(path) or "(nothing)"


def _label(path: Path, class_name: str) -> str:
    return f"{'.'.join(path)} ({class_name})"


def _rules(partners: Partners, side: ScopedRecords, layers: Network) -> Rules:
    """Rules by which every layer of `partners` is translated into its partner."""
    wanted: dict[str, dict[Path, Counter[Path]]] = {}
    for mine, theirs in partners.items():
        around = next((path for path in layers.above(mine) if path in partners), ())
        own = mine[len(around) :], theirs[len(partners.get(around, ())) :]
        name = side.classes[around] if around else TOP
        if not around or name not in _NAMES_OF_TOP:
            wanted.setdefault(name, {}).setdefault(own[0], Counter())[own[1]] += 1
    rules: Rules = {TOP: {}}
    for name, names in wanted.items():
        # Of the first among the most frequent; the others are put right below.
        chosen = {mine: theirs.most_common(1)[0][0] for mine, theirs in names.items()}
        rules.setdefault(name, {}).update(_shortened(chosen))
    _put_right(partners, rules, side)
    return rules


def _shortened(names: dict[Path, Path]) -> dict[Path, Path]:
    """The same names without the ends that both sides share, as far as these agree: a list of blocks is one rule."""
    short: dict[Path, set[Path]] = {}
    cut = {mine: _cut(mine, theirs) for mine, theirs in names.items()}
    for mine, theirs in cut.values():
        short.setdefault(mine, set()).add(theirs)
    found = {}
    for mine, theirs in names.items():
        one, other = cut[mine] if len(short[cut[mine][0]]) == 1 else (mine, theirs)
        if one != other:
            found[one] = other
    return found


def _cut(mine: Path, theirs: Path) -> tuple[Path, Path]:
    while len(mine) > 1 and theirs and mine[-1] == theirs[-1]:
        mine, theirs = mine[:-1], theirs[:-1]
    return mine, theirs


def _put_right(partners: Partners, rules: Rules, side: ScopedRecords) -> None:
    """Say by their whole paths what layers of one class call differently."""
    for mine in sorted(partners, key=len):
        if translate(mine, side.classes, rules) != partners[mine]:
            rules[TOP][mine] = partners[mine]


def _by_path(
    partners: Partners, rules: Rules, side: ScopedRecords, networks: tuple[Network, Network], same: LayerValues
) -> None:
    """Match layers whose translated paths are the same; leave those unmatched that contradict each other."""
    mine, theirs = networks
    back = set(partners.values())
    for path in sorted(mine.layers, key=len):
        if path not in partners:
            other = translate(path, side.classes, rules)
            if other not in theirs.layers:
                continue
            layers = mine.layers[path], theirs.layers[other]
            if other not in back and same.fit(*layers):
                partners[path] = other
                back.add(other)
            else:
                rules[TOP][path] = _NOWHERE
    _put_right(partners, rules, side)


def write(path: str, proposal: Proposal, target: str, golden: str) -> None:
    """Write the proposal in the form that ``-lm`` reads, to be edited."""
    lines = [
        "# What layers are called on the two sides, as proposed; edit it and give it with -lm.",
        f"# target: {printable(target)}",
        f"# golden: {printable(golden)}",
        "# The class of a layer, and below it: path in the target: path on the golden side. '' is a level that the",
        f"# golden side does not have, {UNMATCHED} a layer without counterpart.",
    ]
    for name, names in proposal.rules.items():
        lines.append(f"{scalar(name)}:")
        lines += [f"  {scalar('.'.join(mine))}: {scalar('.'.join(theirs))}" for mine, theirs in names.items()]
    for side, labels in (("in the target", proposal.target_only), ("on the golden side", proposal.golden_only)):
        lines += [f"# Only {side}:", *(f"#   {printable(label)}" for label in labels)] if labels else []
    with files.replacing(path) as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())
