"""How regard runs: targets, threads, optional packages, and reports of progress."""
