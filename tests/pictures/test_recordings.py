"""Pictures of recordings equal pictures of query and key, with each layer's own options."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

import regard
import regard.plot

RNG = np.random.default_rng(0)
QUERY, KEY = RNG.standard_normal((2, 2, 4, 6, 8))
OPTIONS = [{"is_causal": True}, {"window": (1, 1)}]
TOKENS = list("abcdef")


def recording(batch=()):
    return regard.Recording(
        regard.RecordedLayer(
            f"layer {number}",
            np.broadcast_to(query, (*batch, *query.shape)),
            np.broadcast_to(key, (*batch, *key.shape)),
            query_tokens=TOKENS,
            key_tokens=TOKENS,
            **options,
        )
        for number, (query, key, options) in enumerate(zip(QUERY, KEY, OPTIONS, strict=True))
    )


def pixels(image):
    return np.asarray(image.get_array())


@pytest.mark.parametrize("batch", [(), (1,)])
def test_one_head(batch):
    for number, options in enumerate(OPTIONS):
        wanted = regard.plot.attention(
            (QUERY[number], KEY[number]), TOKENS, head=2, ax=Figure().subplots(), **options
        )
        for argument, head in ((recording(batch), (number, 2)), (recording(batch)[number], 2)):
            image = regard.plot.attention(argument, head=head, ax=Figure().subplots(), threads=1)
            assert np.array_equal(pixels(image), pixels(wanted))
            labels = [
                [each.get_text() for each in x.axes.get_xticklabels()] for x in (image, wanted)
            ]
            assert labels[0] == labels[1] == TOKENS


def test_all_heads():
    images = regard.plot.heads(recording(), figure=Figure())
    assert len(images) == 8
    for number, image in enumerate(images):
        layer, head = divmod(number, 4)
        wanted = recording().map(layer, head)
        assert np.array_equal(pixels(image), wanted)


def test_two_recordings():
    image = regard.plot.compare(recording()[0], recording()[1], head=1, ax=Figure().subplots())
    assert np.allclose(pixels(image), recording().map(0, 1) - recording().map(1, 1), atol=1e-15)
