"""Text to tokens and back with the vocabulary that a GGUF file carries."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # In tokenizer.ggml.token_type: a token that no text spells.


def gguf_tokenizer(metadata):
    """Build GPT-2's byte-pair encoding from a GGUF file's tokens and merges."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    # SmolLM splits numbers into digits before words are looked for.
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    return tokenizer


def stream(tokenizer, tokens):
    """Yield text as tokens come; a character of several tokens comes when it is complete."""
    seen, said = [], ""
    for token in tokens:
        seen.append(token)
        text = tokenizer.decode(seen)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text.removeprefix(said)
            said = text
