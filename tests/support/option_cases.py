"""Problems with options as cases, for tests that Hypothesis does not draw: each has a name, and is
built in a type that the test chooses."""

from typing import NamedTuple

import hypothesis

from cases import SIZES, Case
from drawn_problems import examples, problems


class Mix(NamedTuple):
    """A drawn problem with many options, the same in every run. Every second one is Gaussian."""

    number: int

    @property
    def name(self):
        return f"mix{self.number}"

    def build(self, dtype):
        found = []
        limits = {"types": [dtype], "gaussian": self.number % 2 == 0}

        @hypothesis.seed(self.number)
        @hypothesis.settings(examples(10), derandomize=False)
        @hypothesis.given(problems(**limits, mixed=False, dropout=False, ends=False))
        def keep(problem):
            found.append(problem)

        keep()
        return max(found, key=lambda problem: len(problem.options))


def _long():
    """Yield cases with several chunks of keys."""
    for name, (q_len, kv_len), options in (
        ("plain", (9, 5000), {}),
        ("one row", (1, 5000), {"key_lengths": (4999, 2100)}),
        ("causal", (20, 3000), {"is_causal": True, "query_offset": (2980, 700), "softcap": 4.0}),
        ("window", (30, 2600), {"window": (700, 40), "query_offset": 2000, "sinks": 1.0}),
        ("mask", (9, 4000), {"float_mask": (2, 1, 9, 4000), "left_padding": (0, 1900)}),
    ):
        shapes = (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 12)
        yield Case(f"long keys: {name}", *shapes, **options)


LONG = list(_long())
MIXES = [Mix(number) for number in range(72)]
FEW = [*SIZES[3::25], *MIXES[3::12]]
