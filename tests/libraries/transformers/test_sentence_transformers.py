"""sentence-transformers passes the name of an attention implementation on to transformers."""

import warnings

import numpy as np
import pytest

from zoo import build, transformers

REASON = "sentence-transformers is not installed: pip install sentence-transformers"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    sentence_transformers = pytest.importorskip("sentence_transformers", reason=REASON)

TEXTS = ["one", "two words", "three words more", "a text of five words", ""]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a tiny BERT and a tokenizer of whole words."""
    words = sorted({word for text in TEXTS for word in text.split()})
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *words]), encoding="utf-8")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    build("bert").float().bert.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_embeddings(folder, batch_size, calls):
    embeddings = {}
    for name in ("eager", "regard"):
        model = sentence_transformers.SentenceTransformer(
            folder, device="cpu", model_kwargs={"attn_implementation": name}
        )
        assert len(calls) == 0
        embeddings[name] = model.encode(TEXTS, batch_size=batch_size, show_progress_bar=False)
    assert calls
    wanted = embeddings["eager"]
    assert np.abs(wanted[0] - wanted[1]).max() > 0.1
    np.testing.assert_allclose(embeddings["regard"], wanted, atol=32 * np.finfo(np.float32).eps)
