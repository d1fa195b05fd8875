"""Numbers in prose that are recomputed: `146.3 GB<!--= estimate 70B gpus=8 : states_bytes -->`.

The literal text is what a reader of the file and of a diff sees; the comment asks the command
line's own question again, and the two must agree to the digit.
`53 GB<!--~ text-c -->` is somebody else's number and names its source.
A query is looked up word by word and never evaluated, so a document can ask but not act.
"""

from __future__ import annotations

from calc.check.files import MAX_FILE_BYTES, check_file
from calc.check.markdown import prose
from calc.check.marks import Finding, check
from calc.check.queries import Answer, query

__all__ = [
    "MAX_FILE_BYTES",
    "Answer",
    "Finding",
    "check",
    "check_file",
    "prose",
    "query",
]
