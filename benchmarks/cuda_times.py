"""Time regard.cuda and PyTorch's attention on a GPU, and print a table in Markdown.

    python benchmarks/cuda_times.py

The cases are typical of language models in bfloat16: whole sequences of 1024 to 16384 tokens,
causal and not, and one new token for a batch of long sequences. Calls of the engines are
interleaved. A time is the median of several measurements with the GPU's own clock, each over enough
calls to fill 20 ms. Each result is first compared with float32. Without PyTorch, nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ROUNDS = 7
ROUND_MS = 20.0


@dataclass(frozen=True)
class Case:
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    dim: int
    is_causal: bool = False

    @property
    def name(self) -> str:
        heads = f"{self.heads}/{self.kv_heads}" if self.heads != self.kv_heads else f"{self.heads}"
        if self.q_len == 1:
            return f"decode {self.batch}x{heads}x{self.kv_len}x{self.dim}"
        causal = " causal" if self.is_causal else ""
        return f"{self.batch}x{heads}x{self.kv_len}x{self.dim}{causal}"

    @property
    def flops(self) -> float:
        """The operations of both products; for a causal case, only of the visible half."""
        whole = 4.0 * self.batch * self.heads * self.q_len * self.kv_len * self.dim
        return whole / 2 if self.is_causal else whole

    @property
    def bytes(self) -> float:
        """The bytes of keys and values, read once, in 16 bits."""
        return 2.0 * 2 * self.batch * self.kv_heads * self.kv_len * self.dim

    def rate(self, seconds: float) -> str:
        if self.q_len == 1:
            return f"{self.bytes / seconds / 1e9:.0f} GB/s"
        return f"{self.flops / seconds / 1e12:.1f} TFLOP/s"


def cases() -> list[Case]:
    """Return the cases. Longer sequences have smaller batches, with the same total of tokens."""
    found = []
    for dim, heads in ((64, 32), (128, 16)):
        for length in (1024, 2048, 4096, 8192, 16384):
            for is_causal in (False, True):
                batch = 16384 // length
                found.append(Case(batch, heads, heads, length, length, dim, is_causal))
    for batch, length in ((1, 16384), (16, 4096), (64, 1024)):
        found.append(Case(batch, 32, 8, 1, length, 128))
        found.append(Case(batch, 32, 32, 1, length, 128))
    return found


Call = Callable[[], Any]


def medians(calls: dict[str, Call], timed: Callable[[Call, int], float]) -> dict[str, float]:
    """Return the seconds of a call of each engine. `timed` returns the seconds of several calls."""
    repeats = {}
    for name, call in calls.items():
        once = timed(call, 3) / 3
        repeats[name] = max(1, round(ROUND_MS / 1e3 / max(once, 1e-7)))
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rounds[name].append(timed(call, repeats[name]) / repeats[name])
    return {name: statistics.median(times) for name, times in rounds.items()}


def table(rows: list[tuple[Case, dict[str, float], dict[str, float]]]) -> str:
    """Return a table in Markdown with a row for each case."""
    engines = list(dict.fromkeys(name for _, times, _ in rows for name in times))
    others = [name for name in engines if name != "regard"]
    last = ["against the best"] if others else []
    lines = [
        "| " + " | ".join(["case", *engines, *last, "error of regard"]) + " |",
        "|" + "---|" * (len(engines) + len(last) + 2),
    ]
    for case, times, errors in rows:
        cells = [case.name]
        cells += [case.rate(times[name]) if name in times else "-" for name in engines]
        if others:
            best = min((times[name] for name in others if name in times), default=None)
            cells.append("-" if best is None else f"{best / times['regard']:.2f}x")
        cells.append(f"{errors['regard']:.1e}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def torch_engines(torch: Any, query: Any, key: Any, value: Any, case: Case) -> dict[str, Call]:
    """Return PyTorch's fused backends by name, without backends that cannot compute the case."""
    import torch.nn.attention as attention

    def with_backend(backend: Any) -> Call:
        def call() -> Any:
            with attention.sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    is_causal=case.is_causal,
                    enable_gqa=case.heads != case.kv_heads,
                )

        return call

    found = {}
    for name, backend in (
        ("PyTorch FlashAttention", attention.SDPBackend.FLASH_ATTENTION),
        ("PyTorch cuDNN", attention.SDPBackend.CUDNN_ATTENTION),
    ):
        call = with_backend(backend)
        try:
            call()
        except RuntimeError as error:
            print(f"{name} cannot compute {case.name}: {error}", file=sys.stderr)
            continue
        found[name] = call
    return found


def measure_with_torch(torch: Any) -> list[tuple[Case, dict[str, float], dict[str, float]]]:
    import regard.cuda

    def timed(call: Call, count: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    rows = []
    for case in cases():
        torch.manual_seed(0)
        shapes = [
            (case.batch, case.heads, case.q_len, case.dim),
            *[(case.batch, case.kv_heads, case.kv_len, case.dim)] * 2,
        ]
        query, key, value = (
            torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes
        )

        def call(query: Any = query, key: Any = key, value: Any = value, case: Case = case) -> Any:
            return regard.cuda.scaled_dot_product_attention(
                query, key, value, is_causal=case.is_causal
            )

        calls = {"regard": call} | torch_engines(torch, query, key, value, case)
        exact = exact_rows(torch, query, key, value, case)
        errors = {
            name: float((each()[:1].float() - exact).abs().max()) for name, each in calls.items()
        }
        rows.append((case, medians(calls, timed), errors))
        print(case.name, file=sys.stderr)
    return rows


def exact_rows(torch: Any, query: Any, key: Any, value: Any, case: Case) -> Any:
    """Compute the first batch entry in float32, head by head."""
    group, heads = case.heads // case.kv_heads, []
    for head in range(case.heads):
        q, k, v = (
            query[0, head].float(),
            key[0, head // group].float(),
            value[0, head // group].float(),
        )
        output = torch.empty_like(q)
        for first in range(0, case.q_len, 1024):
            scores = q[first : first + 1024] @ k.T * case.dim**-0.5
            if case.is_causal:
                rows = torch.arange(first, first + len(scores), device=q.device)[:, None]
                scores = scores.masked_fill(
                    torch.arange(case.kv_len, device=q.device) > rows, -torch.inf
                )
            output[first : first + 1024] = scores.softmax(-1) @ v
        heads.append(output)
    return torch.stack(heads)[None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: nothing is timed.")
        return 0
    if not torch.cuda.is_available():
        print("PyTorch has no CUDA device here: nothing is timed.")
        return 0
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, bfloat16.\n")
    print(table(measure_with_torch(torch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
