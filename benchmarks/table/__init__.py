"""The cases that are timed when regard is developed, its comparisons with itself, and its goals.

``python -m benchmarks.table`` measures them with `regard._bench`, in the root of the repository.
"""
