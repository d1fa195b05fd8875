"""A step as a timeline of allocations: what is on one GPU, from the first forward to the optimizer's step."""

from calc.memory.timeline import Instant, Timeline

__all__ = ["Instant", "Timeline"]
