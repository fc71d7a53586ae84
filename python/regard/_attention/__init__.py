"""Attention in one call.

The modules::

    dense, ragged      the fused calls
    merge, stages      merging attention over parts of the keys, and the four separate stages
    check              the checked call, which other packages split into parts
    explain            the plan of a call; explanation is its result
"""
