"""Time calls alternately, as ``python -m regard bench`` does."""

import statistics

from regard._bench.rounds import Runner, in_turns


def medians(rounds, calls):
    """Return the median seconds of each call in each round, by name."""
    seconds = in_turns({name: Runner(call) for name, call in calls.items()}, rounds, settle=0)
    return {name: [statistics.median(each) for each in own] for name, own in seconds.items()}


def median(rounds, calls):
    """Return the median over rounds of `medians`, by name."""
    return {name: statistics.median(own) for name, own in medians(rounds, calls).items()}


def ratios(times, reference):
    """Return the median over rounds of each time relative to a reference, by name."""
    return {
        name: statistics.median(a / b for a, b in zip(own, times[reference], strict=True))
        for name, own in times.items()
    }
