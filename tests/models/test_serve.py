"""Test the example server: clients that come, go and vanish, a full pool, bad requests."""

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import regard
from inside_cache import assert_owners_are_right, caches_of, taken

pytest.importorskip("tokenizers")

import serve
from llama_models import tiny_llama
from models.batching import Batch, Text

PAGE = 3 * 2 * 16 * 2 * 8 * 4  # bytes: 3 layers, keys and values, 16 tokens, 2 heads of 8 float32
CLIENTS = 12


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def prompts(count, seed=0, longest=90):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, rng.integers(1, longest)).tolist() for _ in range(count)]


def alone(model, prompt, count, ends, *, temperature=1.0, seed=None, **sampling):
    """Generate a text by itself: no batch, no shared pages."""
    caches, rng, new, written = model.caches(), np.random.default_rng(seed), prompt, []
    while len(written) < count:
        logits = model.logits(model(np.array([new]), caches)[0, -1])
        token = regard.models.sample(logits, temperature, rng=rng, **sampling)
        if token in ends:
            break
        written.append(token)
        new = [token]
    return written


@contextlib.contextmanager
def batch_of(model, **options):
    batch = Batch(model, **{"page_size": 16} | options)
    try:
        yield batch
    finally:
        batch.close()


def assert_nothing_leaks(batch):
    """Check that nothing waits, and that only the pages of kept texts are in use."""
    deadline = time.monotonic() + 20
    while (counts := batch.counts())["texts"] or counts["waiting"]:
        assert time.monotonic() < deadline, counts
        time.sleep(0.01)
    assert_owners_are_right([batch.caches, *caches_of(batch.index)])
    while batch._make_room():
        pass
    assert taken(batch.caches) == 0
    assert os.listdir(batch._folder.name) == []


@pytest.mark.parametrize(
    ("most", "pages"),
    [(12, None), (8, 14), pytest.param(1, None, marks=pytest.mark.slow)],
)
def test_each_text_is_as_alone(model, most, pages):
    """This holds whatever the others do, and wherever the text waited."""
    end = {257}
    sampling = [{"temperature": 0}, {"temperature": 1.5, "seed": 3, "top_k": 20, "top_p": 0.9}]
    given = prompts(CLIENTS)
    given[5:9] = [given[4] + rest for rest in prompts(4, 1)]  # these begin alike
    with batch_of(model, most=most, max_bytes=pages and pages * PAGE) as batch:
        texts = [Text(p, 20, end, **sampling[i % 2]) for i, p in enumerate(given)]
        first = [next(iter(batch.submit(texts[4])))]
        for text in texts[:4] + texts[5:]:
            batch.submit(text)
        for i, (text, prompt) in enumerate(zip(texts, given, strict=True)):
            written = (first if i == 4 else []) + list(text)
            assert written == alone(model, prompt, 20, end, **sampling[i % 2])
        assert_nothing_leaks(batch)
        assert batch.shared > 0 or pages
        assert (batch.preempted > 0) == (pages is not None)


def test_a_text_that_does_not_fit_ends_with_an_error(model):
    with batch_of(model, max_bytes=3 * PAGE) as batch:
        small, large = Text([1, 2, 3], 10, temperature=0), Text(list(range(100)), 10)
        for text in (large, small):
            batch.submit(text)
        with pytest.raises(RuntimeError, match="does not fit"):
            list(large)
        assert list(small) == alone(model, [1, 2, 3], 10, (), temperature=0)
        assert_nothing_leaks(batch)


def test_texts_that_are_cancelled_and_a_server_that_stops(model):
    with batch_of(model, most=4) as batch:
        texts = [batch.submit(Text(prompt, 300)) for prompt in prompts(10)]
        next(iter(texts[0]))
        for text in texts[:9]:
            text.cancel()
        assert [len(list(text)) < 300 for text in texts[:9]] == [True] * 9
        assert texts[3].reason == "cancelled"
    with pytest.raises(RuntimeError, match="stopping"):
        list(texts[9])
    with pytest.raises(RuntimeError, match="stopping"):
        batch.submit(Text([1], 1))


@pytest.fixture
def server():
    batch = Batch(tiny_llama(), 16, page_size=16, max_bytes=1_000_000)
    server = serve.Server(("127.0.0.1", 0), batch)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(server, path="/v1/completions", method="POST", **body):
    connection = http.client.HTTPConnection(*server.server_address, timeout=30)
    connection.request(method, path, json.dumps(body) if method == "POST" else None)
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    if body.get("stream") and response.status == 200:
        assert content.endswith("data: [DONE]\n\n")
        return [json.loads(part[6:]) for part in content.split("\n\n")[:-2]]
    return response.status, json.loads(content)


def test_clients_at_once(server):
    """Half of them stream, and all receive the texts that they would receive as the only client."""
    model = server.batch.model

    def client(i):
        asked = {"prompt": prompt_of(i), "max_tokens": 30, "temperature": i % 3, "seed": i}
        if i % 2:
            parts = ask(server, **asked, stream=True)
            return "".join(part["choices"][0]["text"] for part in parts), parts[-1]
        answer = ask(server, **asked)[1]
        return answer["choices"][0]["text"], answer

    def prompt_of(i):
        return f"{chr(97 + i)} tale of {'very ' * (i % 7)}long ago, number {i}"

    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(client, range(CLIENTS)))
    for i, (text, last) in enumerate(answers):
        prompt = model.tokenizer.encode(prompt_of(i)).ids
        written = alone(model, prompt, 30, model.end_tokens, temperature=i % 3, seed=i)
        unfinished = "\N{REPLACEMENT CHARACTER}"
        assert text.rstrip(unfinished) == model.tokenizer.decode(written).rstrip(unfinished)
        assert last["choices"][0]["finish_reason"] == ("length" if len(written) == 30 else "stop")
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(written)}
        assert last["usage"] == usage | {"total_tokens": len(prompt) + len(written)}
    assert_nothing_leaks(server.batch)


def test_chats_and_stops(server):
    tokenizer = server.batch.model.tokenizer
    greedy = {"max_tokens": 40, "temperature": 0}
    said = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    _, plain = ask(server, prompt=tokenizer.encode(said).ids, **greedy)
    path, text = "/v1/chat/completions", plain["choices"][0]["text"]
    content = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    neutral = {"logprobs": False, "tools": [], "max_completion_tokens": None, "n": 1}
    for said_so, more in (("hi", {}), (content, neutral)):
        messages = [{"role": "user", "content": said_so}]
        _, chat = ask(server, path, messages=messages, **greedy, **more)
        assert chat["choices"][0]["message"] == {"role": "assistant", "content": text}
        assert chat["object"] == "chat.completion"
    parts = ask(server, path, messages=messages, stream=True, **greedy)
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == text
    assert [part["choices"][0]["delta"].get("role") for part in parts][:2] == ["assistant", None]
    stop = text[5:8]
    before = text[: text.index(stop)]
    _, ended = ask(server, prompt=said, stop=["never", stop], **greedy)
    assert ended["choices"][0]["text"] == before
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] < 40
    parts = ask(server, prompt=said, stop=stop, stream=True, **greedy)
    assert "".join(part["choices"][0]["text"] for part in parts) == before
    assert ask(server, "/v1/models", "GET")[1]["data"][0]["object"] == "model"
    assert ask(server, "/health", "GET")[1]["steps"] > 0


def test_clients_that_vanish(server):
    """Their texts end, and the texts of others do not."""
    body = json.dumps({"prompt": "x", "max_tokens": 400, "stream": True, "temperature": 0}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for read in (0, 1, 200):
        connection = socket.create_connection(server.server_address)
        connection.sendall(head + body)
        if read:
            connection.recv(read)
        connection.close()
    waiting = socket.create_connection(server.server_address)
    waiting.sendall(head + body[:5])  # and one client that never sends the rest
    status, answer = ask(server, prompt="other", max_tokens=20, temperature=0)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 20
    assert_nothing_leaks(server.batch)
    waiting.close()


def test_bad_requests(server):
    for body, named in (
        ({}, "prompt"),
        ({"prompt": [1, 900]}, "prompt"),
        ({"prompt": "a", "n": 2}, "n is not supported"),
        ({"prompt": "a", "max_tokens": 512}, "max_tokens"),
        ({"prompt": "a", "temperature": True}, "temperature"),
        ({"prompt": "a", "top_p": 2}, "top_p"),
    ):
        status, answer = ask(server, **body)
        assert status == 400
        assert named in answer["error"]["message"]
    for messages in (3, [{"role": "user"}], [{"role": "user", "content": [1]}]):
        assert ask(server, "/v1/chat/completions", messages=messages)[0] == 400
    assert ask(server, "/v2", prompt="a")[0] == 404
    for content in (b"", b"[1]", b"{", b"\xff", b"[" * 100_000):
        connection = http.client.HTTPConnection(*server.server_address, timeout=30)
        connection.request("POST", "/v1/completions", content)
        assert connection.getresponse().status == 400
        connection.close()
    assert ask(server, prompt="a", max_tokens=2)[0] == 200
