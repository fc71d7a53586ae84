"""Attention in one call.

These modules are its parts::

    dense, ragged      the fused calls; rows returns the weights of some queries
    merge, stages      merging attention over parts of the keys, and the four separate stages
    convert            calls that the compiled module does not accept directly
    explain            the plan of a call; explanation is its result
"""
