"""Single faults planted into one and the same program: `benchmarks/plant_faults.py`, in short."""

from __future__ import annotations

import plant_faults
from planted_faults import reporting
from planted_faults.judging import outcomes

from verdicts import Work


def report(work: Work) -> str:
    """How many are named first, and what is named wrongly.

    Raises:
        measure.Failed: a run failed.
    """
    options = plant_faults.options_from(["--keep" if work.makes else "--dumps", str(work.dumps)])
    if work.makes:
        work.dumps.mkdir(parents=True, exist_ok=True)
        plant_faults.make_dumps(work.dumps, options)
    found = list(outcomes(work.dumps, options.models, options.faults, options.settings))
    totals = reporting.totals(found, options.settings, options.faults)
    return f"{totals}\n\nNamed wrongly:\n\n{reporting.wrong(found)}"
