"""Our verdict on one result: its error in units of what the operation can reach in its dtype."""

from probe.calls.verdict.subject import SEVERITY, KernelVerdict, Subject, worst_of
from probe.calls.verdict.verdict import judge

__all__ = ["SEVERITY", "KernelVerdict", "Subject", "judge", "worst_of"]
