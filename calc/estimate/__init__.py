"""One job fully specified (`Run`) and what it costs per GPU (`Estimate`), line by line.

Two levels of answer that are never blended: the one-line formula that people can do on paper,
with nominal bytes per parameter, and the ledger of exact bytes on the largest rank with its peak by phase.
`run` says what a job is, `formula` is the one line, `walk` goes through a step, `whole` puts them together.
"""

from calc.estimate.formula import OVERHEAD_BYTES, OneLine, one_line
from calc.estimate.run import CHOICES, FSDP, SETTINGS, SIZES, Run
from calc.estimate.walk import Line, Phase
from calc.estimate.whole import Estimate, Peak, estimate

__all__ = ["CHOICES", "FSDP", "OVERHEAD_BYTES", "SETTINGS", "SIZES"]
__all__ += ["Estimate", "Line", "OneLine", "Peak", "Phase", "Run", "estimate", "one_line"]
