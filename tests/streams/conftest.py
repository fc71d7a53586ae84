import pytest

from streams import is_reading


@pytest.fixture(autouse=True)
def no_thread_remains():
    """Check that the thread which reads for a stream has ended when the call has."""
    yield
    assert not is_reading()
