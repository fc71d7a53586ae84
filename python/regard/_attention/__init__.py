"""Attention in one call.

These modules are its parts::

    dense, ragged      the fused calls; rows returns the weights of some queries
    merge, stages      attention over parts of the keys joined, and its four stages one by one
    convert            calls that the compiled module does not take as they are
    explain            what a call would compute; explanation is its result
"""
