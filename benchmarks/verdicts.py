"""Whether `compare` says the right thing first: benchmarks/VERDICTS.md, made by one command.

    python benchmarks/verdicts.py                                  # everything; writes VERDICTS.md beside this file
    python benchmarks/verdicts.py --only pairs --pairs release-vit --settings mix:statistics
    python benchmarks/verdicts.py --only packages --packages litgpt-llama       # with the environment of these alone
    python benchmarks/verdicts.py --keep DIR                       # the dumps stay there; what it has is not made again
    python benchmarks/verdicts.py --dumps DIR                      # judge those again
    python benchmarks/verdicts.py --python transformers4=PYTHON    # the interpreter of an environment of tox.ini

It needs torch and transformers, and for pairs of two releases a second interpreter with the older one: `make verdicts`
makes both. Environments are looked for under .tox and are named as in tox.ini; for what needs one that is not there
nothing is made, and the report says so. A run of a part prints, and writes no file but with --report.

The exit status is 1 where a verdict is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import measure
import verdicts
from verdicts import Row, Work, model_pairs, reporting

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "benchmarks" / "VERDICTS.md"
ENVIRONMENTS = ("torch", "transformers4", "mindspore", "msadapter")
SECTIONS = ("pairs", "faults", "ports", "fused", "packages", "speed")

_PLUGGED = {
    "ports": ("Across frameworks", "Networks in PyTorch and the same in another framework, right and with one fault."),
    "fused": ("Training against inference style", "A network and the same with fused projections and other names."),
    "packages": (
        "Two programs for one network",
        "Models of independent packages with the same weights, right and with one fault.",
    ),
}
EXPLANATION = """\
*Truth* is `silent` where the two runs compute the same, and else a pattern that the text of the first divergence has to
hold: its step, record, module, item, reason or cause. *Cannot be told* is an answer of its own, in a column of its own:
it claims nothing, and is counted as right of no pair.

At L1 a dump has no modules; the pattern is looked for in the modules that the named call has around it at mix, too. It
has no parameters by name either and no gradients of them, so that what shows in these alone cannot be said there.
"""


def pairs_section(work: Work, options: argparse.Namespace) -> tuple[str, list[Row]]:
    parts, found = [], []
    for title in model_pairs.LISTS:
        names, without = model_pairs.names_of(title, work, options.pairs)
        if not (names or without):
            continue
        rows = list(model_pairs.rows(work, names, options.settings))
        found += rows
        parts.append(f"### Pairs, {title}: {sum(row.right for row in rows)} of {len(rows)}")
        if without:
            parts.append(f"Not made, for want of an interpreter: {', '.join(without)}.")
        if rows:
            shown = model_pairs.SHOWN if model_pairs.SHOWN in options.settings else options.settings[0]
            parts += [reporting.totals(rows), reporting.kinds(rows), reporting.each(rows, shown)]
            parts.append(f"Misses:\n\n{reporting.misses(rows)}")
    about = (
        "Small models of Transformers, two steps of training, weights drawn once. Those that are held out were written "
        "to judge with. Three of them showed what was missing, so that rules were made after them: a part of the batch "
        "(ranks-shard, accumulation), and elements in another order. `tests/support/pairs` has what the runs do."
    )
    return "\n\n".join(["## Pairs of models", about, *parts]), found


def plugged_section(name: str, work: Work, pairs: Sequence[str] = ()) -> tuple[str, list[Row]]:
    title, about = _PLUGGED[name]
    rows = verdicts.plugged(name, work, pairs)
    if rows is None:
        return f"## {title}\n\n{about} There is no such section yet.", []
    parts = [f"## {title}: {sum(row.right for row in rows)} of {len(rows)}", about]
    if rows:
        parts += [reporting.totals(rows), reporting.each(rows), f"Misses:\n\n{reporting.misses(rows)}"]
    return "\n\n".join(parts), rows


def faults_section(work: Work) -> str:
    from verdicts import planted

    about = "Faults planted into one and the same program; [PLANTED_FAULTS.md](PLANTED_FAULTS.md) explains the columns."
    return f"## Planted faults\n\n{about}\n\n{planted.report(work)}"


def speed_section() -> str:
    from verdicts import speed

    rows = [[what, f"{cost.wall_s:.2f}", f"{cost.cpu_s:.2f}", f"{cost.memory_mib:.0f}"] for what, cost in speed.costs()]
    about = f"`msprobe compare` of two dumps of {speed.RECORDS:,} records, with the table written."
    head = ["", "seconds", "processor seconds", "MiB"]
    return f"## Speed\n\n{about} {os.cpu_count()} processors.\n\n{measure.table(head, rows)}"


def interpreters(given: Sequence[str]) -> dict[str, str]:
    """The interpreters of the environments: those under .tox, the one this runs in, and those that are given."""
    found = {}
    for name in ENVIRONMENTS:
        path = ROOT / ".tox" / name / "bin" / "python"
        if path.exists():
            found[name] = str(path)
    found["torch"] = sys.executable
    for each in given:
        name, _, path = each.partition("=")
        if name not in ENVIRONMENTS or not path:
            raise argparse.ArgumentTypeError(
                f"--python {each!r} is not NAME=PATH; the names are: {', '.join(ENVIRONMENTS)}"
            )
        found[name] = path
    return found


def options_from(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Whether `compare` says the right thing first.")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--pairs", nargs="+", choices=model_pairs.PAIRS, default=[], metavar="NAME")
    parser.add_argument(
        "--settings", nargs="+", choices=model_pairs.SETTINGS, default=list(model_pairs.SETTINGS), metavar="LEVEL:TASK"
    )
    parser.add_argument("--packages", nargs="+", choices=verdicts.names_of_packages(), default=[], metavar="NAME")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="of an environment")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--keep", type=Path, metavar="DIR", help="leave the dumps there; what it has is not made again")
    place.add_argument("--dumps", type=Path, metavar="DIR", help="judge the dumps that --keep left there")
    default = f"write the tables there; a whole run writes {REPORT.name} without it"
    parser.add_argument("--report", type=Path, metavar="FILE", help=default)
    options = parser.parse_args(arguments)
    try:
        options.pythons = interpreters(options.python)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if options.dumps is not None and not options.dumps.is_dir():
        parser.error(f"--dumps: there is no {options.dumps}; --keep makes it")
    whole = set(options.only) == set(SECTIONS) and len(options.settings) == 4
    is_whole = whole and not (options.pairs or options.packages)
    options.report = options.report or (REPORT if is_whole else None)
    return options


def main(arguments: Sequence[str]) -> int:
    options = options_from(arguments)
    with tempfile.TemporaryDirectory(prefix="verdicts_") as temporary:
        dumps = (options.dumps or options.keep or Path(temporary)).resolve()
        parts: list[str] = []
        found: list[Row] = []

        def work(section: str) -> Work:
            return Work(dumps / section, options.dumps is None, options.pythons)

        sections: dict[str, Callable[[], str | tuple[str, list[Row]]]] = {
            "pairs": lambda: pairs_section(work("pairs"), options),
            "faults": lambda: faults_section(work("faults")),
            "ports": lambda: plugged_section("ports", work("ports")),
            "fused": lambda: plugged_section("fused", work("fused")),
            "packages": lambda: plugged_section("packages", work("packages"), options.packages),
            "speed": speed_section,
        }
        for name in SECTIONS:
            if name not in options.only:
                continue
            try:
                made = sections[name]()
            except measure.Failed as error:
                print(error, file=sys.stderr)
                return 1
            text, rows = made if isinstance(made, tuple) else (made, [])
            found += rows
            parts.append(text)
            print(f"{text}\n", flush=True)
    if options.report is not None:
        about = f"`python benchmarks/verdicts.py`: {measure.machine(('torch', 'transformers', 'msprobe'))}."
        text = "\n\n".join(["# What `compare` says first, and whether it is right", about, EXPLANATION.strip(), *parts])
        options.report.write_text(f"{text}\n", encoding="utf-8")
    print(f"{sum(row.right for row in found)} of {len(found)} right")
    return int(not all(row.right for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
