"""The paper's statements, one function each, and its Table 1 and Figure 2 as plain data.

[BKMTT20] is "Privacy Amplification via Random Check-Ins", arXiv:2007.06605v2. Some of its formulas
contain mistakes. docs/theory/slips.md lists them and says what the code does instead.
"""

from checkins.accounting.paper.tables import (
    FIGURE_DELTA,
    Curve,
    Setting,
    SheetRow,
    TableRow,
    figure2,
    subsampling,
    table1,
    theorem_sheet,
)

__all__ = [
    "FIGURE_DELTA",
    "Curve",
    "Setting",
    "SheetRow",
    "TableRow",
    "figure2",
    "subsampling",
    "table1",
    "theorem_sheet",
]
