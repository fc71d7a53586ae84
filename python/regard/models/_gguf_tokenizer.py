"""Tokenizers from the metadata of GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from regard._arguments.numbers import listed
from regard._runtime.public import needed

if TYPE_CHECKING:
    from collections.abc import Mapping

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for a space
# The types of tokens: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
    r" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_3, _QWEN_2 = _WORDS.format(digits=r"\p{N}{1,3}"), _WORDS.format(digits=r"\p{N}")
# How text is split before pairs are merged, by "tokenizer.ggml.pre": a pattern, or None for the
# pattern of GPT-2; and whether digits are split off first.
_SPLITS: dict[str, tuple[str | None, bool]] = {
    "default": (None, False),
    "gpt-2": (None, False),
    "smollm": (None, True),
    "llama-bpe": (_LLAMA_3, False),
    "llama3": (_LLAMA_3, False),
    "llama-v3": (_LLAMA_3, False),
    "smaug-bpe": (_LLAMA_3, False),
    "qwen2": (_QWEN_2, False),
    "deepseek-r1-qwen": (_QWEN_2, False),
}
_BEGIN_BY_DEFAULT = ("llama-bpe", "llama3", "llama-v3")


def tokenizer_of(where: str, metadata: Mapping[str, Any]) -> Any:
    """Return the tokenizer that the metadata describe, or raise ValueError.

    It is byte-pair encoding of bytes, as in GPT-2, or of characters by scores, as in SentencePiece.
    """
    return _Vocabulary(where, metadata).tokenizer()


class _Vocabulary:
    """The entries of a file's metadata that describe its tokenizer."""

    def __init__(self, where: str, metadata: Mapping[str, Any]) -> None:
        self._library = needed("tokenizers", "a model's file", "models")
        self._where, start = where, "tokenizer.ggml."
        self._own = {
            name.removeprefix(start): value
            for name, value in metadata.items()
            if name.startswith(start)
        }
        if self._own.get("model") not in ("gpt2", "llama"):
            self._refuse("model", f"one of gpt2, llama, got {self._own.get('model')!r}")
        self._names = self._list("tokens", str)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._kinds = [_NORMAL] * len(self._names)
        if "token_type" in self._own:
            self._kinds = self._list("token_type", int, len(self._names))

    def tokenizer(self) -> Any:
        library, names, is_bytes = self._library, self._names, self._own["model"] == "gpt2"
        tokenizer = self._of_bytes() if is_bytes else self._of_characters()
        special = [
            library.AddedToken(name, normalized=False)
            for name, kind in zip(names, self._kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
        tokenizer.add_special_tokens(special)
        by_default = not is_bytes or self._own.get("pre") in _BEGIN_BY_DEFAULT
        first: Any = self._own.get("bos_token_id")
        has_first = isinstance(first, int) and 0 <= first < len(names)
        if self._own.get("add_bos_token", by_default) and has_first:
            # A template is text, in which the name of a token could contain a space or a colon.
            tokenizer.post_processor = library.processors.TemplateProcessing(
                single=["first", "$A"],
                special_tokens=[{"id": "first", "ids": [first], "tokens": [names[first]]}],
            )
        return tokenizer

    def _of_bytes(self) -> Any:
        library, known = self._library, self._numbers.keys()
        split = self._own.get("pre", "default")
        if split not in _SPLITS:
            self._refuse("pre", f"one of {listed(_SPLITS)}, got {split!r}")
        merges = [tuple(pair.split(" ")) for pair in self._list("merges", str)]
        if any(len(pair) != 2 or not {*pair, "".join(pair)} <= known for pair in merges):
            self._refuse("merges", "pairs of tokens that make a token")
        tokenizer = library.Tokenizer(library.models.BPE(self._numbers, merges))
        pattern, has_digits = _SPLITS[split]
        pre = library.pre_tokenizers
        parts = [pre.Digits(individual_digits=True)] if has_digits else []
        if pattern is not None:
            parts.append(pre.Split(library.Regex(pattern), "isolated"))
        parts.append(pre.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
        tokenizer.pre_tokenizer = pre.Sequence(parts)
        tokenizer.decoder = library.decoders.ByteLevel()
        return tokenizer

    def _of_characters(self) -> Any:
        """Return the encoding that merges the two neighbors whose token has the largest score."""
        library, numbers = self._library, self._numbers
        scores = self._list("scores", float, len(self._names))
        of_kind = [
            {name for name, number in numbers.items() if self._kinds[number] == kind}
            for kind in (_NORMAL, _UNKNOWN)
        ]
        normal, unknown = of_kind[0], next(iter(of_kind[1]), None)
        found = [
            (-scores[numbers[name]], numbers[name], name[:at], name[at:])
            for name in normal
            for at in range(1, len(name))
            if name[:at] in normal and name[at:] in normal
        ]
        merges = [(first, second) for *_, first, second in sorted(found)]
        options = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
        tokenizer = library.Tokenizer(library.models.BPE(numbers, merges, **options))
        normalizers, decoders = library.normalizers, library.decoders
        parts = [normalizers.Prepend(SPACE)] if self._own.get("add_space_prefix", True) else []
        tokenizer.normalizer = normalizers.Sequence([*parts, normalizers.Replace(" ", SPACE)])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
            + ([decoders.Strip(" ", 1, 0)] if parts else [])
        )
        return tokenizer

    def _list(self, name: str, kind: type, length: int | None = None) -> list[Any]:
        value = self._own.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(x, kind) for x in value):
            got = "nothing" if value is None else f"a {type(value).__name__}"
            self._refuse(name, f"a list of {kind.__name__}, got {got}")
        if length is not None and len(value) != length:
            one = f"one {kind.__name__} for each of {length} tokens"
            raise ValueError(
                f"{self._where}: tokenizer.ggml.{name} must have {one}, got {len(value)}"
            )
        return value

    def _refuse(self, name: str, reason: str) -> NoReturn:
        raise ValueError(f"{self._where}: tokenizer.ggml.{name} must be {reason}")
