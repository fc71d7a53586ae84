"""Convert text to tokens and back with the vocabulary of a GGUF file."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # in tokenizer.ggml.token_type: a token that represents no text


def gguf_tokenizer(metadata):
    """Build GPT-2's byte-pair encoding from a GGUF file's tokens and merges."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    # SmolLM splits numbers into digits before it splits text into words.
    digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    return tokenizer


def stream(tokenizer, tokens):
    """Yield text as tokens arrive; a character of several tokens is yielded when it is complete."""
    seen, said = [], ""
    for token in tokens:
        seen.append(token)
        text = tokenizer.decode(seen)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text.removeprefix(said)
            said = text
