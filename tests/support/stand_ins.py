"""An engine that a test can watch and spoil."""

from regard.cli.engines import Engine, NumPy


class FakeEngine(Engine):
    """NumPy under another name, with what a test wants to be different."""

    name = "Fake"
    version = "1"

    def __init__(self, threads, on_call=lambda *_: None, spoil=lambda output: output):
        super().__init__(threads)
        self.numpy, self.on_call, self.spoil = NumPy(threads), on_call, spoil

    def attention(self, problem, *inputs):
        call = self.numpy.attention(problem, *inputs)

        def attend():
            self.on_call(*inputs)
            return self.spoil(call())

        return attend

    def matmul(self, a, b):
        return self.numpy.matmul(a, b)

    def softmax(self, x):
        return self.numpy.softmax(x)
