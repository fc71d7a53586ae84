"""The runtime: targets, threads, optional packages, and progress reports."""
