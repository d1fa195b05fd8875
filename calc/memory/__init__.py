"""A step as a timeline of allocations: what is on one GPU, from the first forward to the
optimizer's step.
"""

from calc.memory.ledger import Line, Phase
from calc.memory.timeline import Timeline

__all__ = ["Line", "Phase", "Timeline"]
