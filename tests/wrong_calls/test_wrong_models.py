"""Wrong calls of the attention of transformers' models, and of their recordings."""

import pytest

from messages import check, each

torch = pytest.importorskip("torch", reason='PyTorch is not installed: pip install ".[torch]"')
transformers = pytest.importorskip("transformers", reason="pip install transformers")

import regard.transformers  # noqa: E402

CALLS = regard.transformers._attention.attend
ROW = [torch.zeros(1, 2, 6, 4)] * 3
MODULE, CAUSAL = torch.nn.Module(), torch.nn.Module()
MODULE.is_causal, CAUSAL.is_causal = False, True
GOOD = torch.tensor([0, 2, 2, 6], dtype=torch.int32)


def attend(mask=None, module=MODULE, rows=1, **options):
    return CALLS(module, *[x.expand(rows, -1, -1, -1) for x in ROW], mask, **options)


def packed(queries=GOOD, keys=GOOD, **options):
    return attend(cu_seq_lens_q=queries, cu_seq_lens_k=keys, **options)


ROWS = [
    (lambda: packed(keys=[0, 2, 6]), TypeError, "cu_seq_lens_k must be a tensor of ... got [0, 2"),
    (lambda: packed(keys=None), TypeError, "cu_seq_lens_k must be a tensor of ... got nothing"),
    (lambda: packed(keys=GOOD.double()), TypeError, "cu_seq_lens_k must be ... got torch.float64"),
    (lambda: packed(queries=GOOD[None]), ValueError, "cu_seq_lens_q must contain ... got [[0, 2"),
    (lambda: packed(keys=GOOD - 1), ValueError, "cu_seq_lens_k must contain the ... got [-1, 1"),
    (lambda: packed(queries=GOOD[[0, 3, 2, 3]]), ValueError, "cu_seq_lens_q must ... got [0, 6"),
    (lambda: packed(keys=GOOD[[0, 3]], module=CAUSAL), ValueError, "cu_seq_lens_q and ... got [0"),
    (lambda: packed(rows=2), ValueError, "cu_seq_lens_q needs one row of packed ... got a batch"),
    (lambda: attend(torch.ones(1, 5)), ValueError, "attention_mask must have one"),
    (lambda: attend(indices=GOOD.expand(1, 6, -1) - 2), ValueError, "indices must be ... got -2"),
    (lambda: attend(head_mask=GOOD), TypeError, "attn_implementation='regard' does not accept"),
    (lambda: regard.transformers.record(torch.nn.Linear(2, 2), GOOD), TypeError, "model must be"),
]


@each(ROWS)
def test_attention_of_models(wrong, error, parts):
    check(wrong, error, parts)
