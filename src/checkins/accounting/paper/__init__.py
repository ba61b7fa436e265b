"""The paper's statements, one function each, and its Table 1 and Figure 2 as plain data.

[BKMTT20] is "Privacy Amplification via Random Check-Ins", arXiv:2007.06605v2. Some of its formulas
contain mistakes. docs/theory/slips.md lists them and says what the code does instead.
"""
