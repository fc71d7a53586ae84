"""Tokenizers from the metadata of GGUF files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import listed
from regard._cli.models._model import SPACE
from regard._runtime.optional import needed

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    library = needed("tokenizers", "a model's file", "models")
    own = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in metadata.items()
        if name.startswith("tokenizer.ggml.")
    }
    kind = own.get("model")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{where}: tokenizer.ggml.model must be one of gpt2, llama, got {kind!r}")
    names = _list(where, own, "tokens", str)
    kinds = _list(where, own, "token_type", int) if "token_type" in own else [_NORMAL] * len(names)
    if len(kinds) != len(names):
        raise ValueError(
            f"{where}: tokenizer.ggml.token_type must have one int for each of {len(names)} "
            f"tokens, got {len(kinds)}"
        )
    vocabulary = {name: number for number, name in enumerate(names)}
    made = _of_bytes if kind == "gpt2" else _of_characters
    tokenizer = made(library, where, own, vocabulary, kinds)
    special = [
        library.AddedToken(name, normalized=False)
        for name, each in zip(names, kinds, strict=True)
        if each in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_special_tokens(special)
    begins = own.get("add_bos_token", kind == "llama" or own.get("pre") in _BEGIN_BY_DEFAULT)
    first = own.get("bos_token_id")
    if begins and isinstance(first, int) and 0 <= first < len(names):
        # A template is text, in which the name of a token could contain a space or a colon.
        template = library.processors.TemplateProcessing
        tokenizer.post_processor = template(
            single=["first", "$A"],
            special_tokens=[{"id": "first", "ids": [first], "tokens": [names[first]]}],
        )
    return tokenizer


def _of_bytes(
    library: Any,
    where: str,
    own: Mapping[str, Any],
    vocabulary: dict[str, int],
    _kinds: list[int],
) -> Any:
    split = own.get("pre", "default")
    if split not in _SPLITS:
        raise ValueError(
            f"{where}: tokenizer.ggml.pre must be one of {listed(_SPLITS)}, got {split!r}"
        )
    merges = [tuple(pair.split(" ")) for pair in _list(where, own, "merges", str)]
    if any(len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys() for pair in merges):
        raise ValueError(
            f"{where}: tokenizer.ggml.merges must be pairs of tokens that make a token"
        )
    tokenizer = library.Tokenizer(library.models.BPE(vocabulary, merges))
    pattern, has_digits = _SPLITS[split]
    pre = library.pre_tokenizers
    parts = [pre.Digits(individual_digits=True)] if has_digits else []
    if pattern is not None:
        parts.append(pre.Split(library.Regex(pattern), "isolated"))
    parts.append(pre.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    tokenizer.pre_tokenizer = pre.Sequence(parts)
    return tokenizer


def _of_characters(
    library: Any,
    where: str,
    own: Mapping[str, Any],
    vocabulary: dict[str, int],
    kinds: list[int],
) -> Any:
    """Return the encoding that merges the two neighbors whose token has the largest score."""
    scores = _list(where, own, "scores", float)
    if len(scores) != len(vocabulary):
        raise ValueError(
            f"{where}: tokenizer.ggml.scores must have one number for each of {len(vocabulary)} "
            f"tokens, got {len(scores)}"
        )
    normal = {name for name, number in vocabulary.items() if kinds[number] == _NORMAL}
    found = [
        (-scores[vocabulary[name]], vocabulary[name], name[:at], name[at:])
        for name in normal
        for at in range(1, len(name))
        if name[:at] in normal and name[at:] in normal
    ]
    merges = [(first, second) for *_, first, second in sorted(found)]
    unknown = next((name for name, n in vocabulary.items() if kinds[n] == _UNKNOWN), None)
    encoder = library.models.BPE(
        vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = library.Tokenizer(encoder)
    normalizers = library.normalizers
    parts = [normalizers.Prepend(SPACE)] if own.get("add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*parts, normalizers.Replace(" ", SPACE)])
    return tokenizer


def _list(where: str, own: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = own.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(x, kind) for x in value):
        raise ValueError(
            f"{where}: tokenizer.ggml.{name} must be a list of {kind.__name__}, got "
            + ("nothing" if value is None else f"a {type(value).__name__}")
        )
    return value
