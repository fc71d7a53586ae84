"""Blocks of `replacing_sdpa` end in any order, in any thread, and at any instruction."""

import contextlib
import itertools
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import regard.torch  # noqa: E402
from torch_modules import by_another_name, state_of_replacing  # noqa: E402

mha = torch.backends.mha
X = torch.ones(1, 2, 5, 8)


@contextlib.contextmanager
def installed():
    yield regard.torch.install()
    regard.torch.uninstall()


def here(function, *given):
    function(*given)


def in_a_thread(function, *given):
    failures = []

    def run():
        try:
            function(*given)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures


@pytest.mark.parametrize("run", [here, in_a_thread])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_end_in_any_order_and_in_any_thread(order, run):
    before = state_of_replacing()
    makers = [regard.torch.replacing_sdpa, installed, regard.torch.replacing_sdpa]
    blocks = [make() for make in makers]
    calls = [block.__enter__() for block in blocks]
    wanted = [0, 0, 0]
    is_open = [True, True, True]
    for number in (*order, None):
        by_another_name(X, X, X)
        wanted = [count + one for count, one in zip(wanted, is_open, strict=True)]
        assert [each.by_regard for each in calls] == wanted
        if number is not None:
            run(blocks[number].__exit__, None, None, None)
            is_open[number] = False
    assert state_of_replacing() == before


def test_threads_begin_and_end_blocks_at_the_same_time():
    before, counts = state_of_replacing(), []

    def work():
        for _ in range(20):
            with regard.torch.replacing_sdpa() as calls:
                by_another_name(X, X, X)
            counts.append(calls.by_regard)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert counts == [1] * 120
    assert state_of_replacing() == before


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("values", [[], [False], [True], [True, False], [False, True]])
def test_what_the_user_sets_in_a_block_stays(values, before):
    mha.set_fastpath_enabled(before)
    try:
        with regard.torch.replacing_sdpa():
            assert not mha.get_fastpath_enabled()
            for value in values:
                mha.set_fastpath_enabled(value)
        assert mha.get_fastpath_enabled() is [before, *values][-1]
    finally:
        mha.set_fastpath_enabled(True)
