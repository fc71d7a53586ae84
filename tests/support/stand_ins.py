"""Engines that a test can observe and change."""

from regard._bench.engines import NumPy


class FakeEngine(NumPy):
    """NumPy under another name, with the differences that a test needs."""

    name = "Fake"
    version = "1"

    def __init__(self, threads, on_call=lambda *_: None, spoil=lambda output: output):
        super().__init__(threads)
        self.on_call, self.spoil = on_call, spoil

    def attention(self, *inputs, is_causal=False):
        call = super().attention(*inputs, is_causal=is_causal)

        def attend():
            self.on_call(*inputs)
            return self.spoil(call())

        return attend


def engine_named(label, **options):
    """Return a class of engines with another name."""

    class Named(FakeEngine):
        name = label

        def __init__(self, threads):
            super().__init__(threads, **options)

    return Named


def engine_that_raises(label, error):
    """Return a class of engines that cannot be loaded."""

    class Broken(FakeEngine):
        name = label
        packages = ("missing",)

        def __init__(self, threads):
            raise error

    return Broken
