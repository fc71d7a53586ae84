"""Engines that a test can observe and change."""

from regard._bench.engines import NumPy


def engine_named(label, on_call=lambda *_: None, spoil=lambda output: output, error=None):
    """Return a class of NumPy engines under another name, with the differences that a test needs:
    with an error, it cannot be loaded."""

    class Named(NumPy):
        name, version = label, "1"
        packages = ("missing",) if error else NumPy.packages

        def __init__(self, threads):
            if error:
                raise error
            super().__init__(threads)

        def attention(self, *inputs, is_causal=False):
            call = super().attention(*inputs, is_causal=is_causal)

            def attend():
                on_call(*inputs)
                return spoil(call())

            return attend

    return Named
