"""Continuous batching: texts that begin, grow and end at any time share each step of a model."""

import collections
import itertools
import pathlib
import queue
import tempfile
import threading

import numpy as np

import regard

CHUNK = 256  # tokens of a step at most, for prompts: so that texts that grow do not wait long
IDLE = 8  # texts that have ended and are kept for others that begin alike


class Text:
    """A prompt and the tokens that continue it, which come through a queue."""

    def __init__(self, prompt, count, end=None, *, temperature=None, seed=None, **sampling):
        self.tokens, self.prompt, self.count, self.end = list(prompt), len(prompt), count, end
        self.rng = np.random.default_rng(seed)
        self.sampling = {"temperature": 1.0 if temperature is None else temperature, **sampling}
        regard.layers.sample([0.0], **self.sampling)  # raises an error for numbers out of range
        self.read = 0  # tokens in the caches
        self.waits_in = None  # a file, if the text had to make room for others
        self.is_done = self.is_cancelled = False
        self.reason = None  # why it ended, or the error that ended it
        self.queue = queue.SimpleQueue()

    def cancel(self):
        """End it before the next step, if it has not ended."""
        self.is_cancelled = True

    def stop(self):
        """End it, since those who read it have enough."""
        self.is_cancelled, self.reason = True, "stop"

    def __iter__(self):
        """Yield tokens as they come."""
        while (token := self.queue.get()) is not None:
            yield token
        if isinstance(self.reason, Exception):
            raise self.reason

    def finish(self, reason):
        """Write no more tokens."""
        if not self.is_done:
            self.is_done, self.reason = True, self.reason or reason
            self.queue.put(None)


class Batch:
    """Texts that a model continues together, step by step, in a thread of its own.

    Entry ``i`` of the caches has the tokens of ``texts[i]``. Some of the texts may be done: their
    pages are kept for texts that begin alike, until others need the room.
    """

    def __init__(self, model, most=32, **options):
        self.model, self.most = model, most
        self.caches = model.caches(batch=0, **options)
        self.texts, self.waiting = [], collections.deque()
        self.steps = self.shared = self.preempted = 0
        self._is_full = False  # no text begins until another has ended
        self._changed, self._stops = threading.Condition(), False
        self._folder = tempfile.TemporaryDirectory()
        self._names = itertools.count()
        self._thread = threading.Thread(target=self._run, name="batch")
        self._thread.start()

    def submit(self, text):
        """Let a text wait for its turn."""
        with self._changed:
            if self._stops:
                raise RuntimeError("the server is stopping")
            self.waiting.append(text)
            self._changed.notify()
        return text

    def counts(self):
        """Say what it does."""
        names = "steps", "shared", "preempted"
        counts = {name: getattr(self, name) for name in names}
        return counts | {"texts": self._count(), "waiting": len(self.waiting)}

    def close(self):
        """End all texts, and the thread."""
        with self._changed:
            self._stops = True
            self._changed.notify()
        self._thread.join()
        self.caches.close()
        self._folder.cleanup()

    def _run(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stops or self.waiting or self._grows())
                stops = self._stops
            if stops:
                break
            try:
                self._end_cancelled()
                self._admit()
                self._step()
            except Exception as error:  # a defect: the texts end, and the server goes on
                self.caches.rollback()
                self._end(error)
        self._end(RuntimeError("the server is stopping"))

    def _end(self, error):
        """End all texts."""
        with self._changed:
            texts = [*self.texts, *self.waiting]
            self.waiting.clear()
        for text in texts:
            text.finish(error)
        while self._make_room():
            pass

    def _end_cancelled(self):
        for text in self.texts:
            if text.is_cancelled:
                text.finish("cancelled")
                self._is_full = False

    def _count(self):
        return sum(not text.is_done for text in self.texts)

    def _grows(self):
        return self._count() > 0

    def _admit(self):
        """Give entries to texts that wait, as long as there is room for a page of each."""
        self._is_full &= self._grows()
        while self.waiting and not self._is_full and self._count() < self.most:
            text = self.waiting[0]
            try:
                if text.is_cancelled:
                    text.finish("cancelled")
                elif text.waits_in is None:
                    self._begin(text)
                else:
                    self.caches.resume(text.waits_in)
                    text.waits_in = None
                    self.texts.append(text)
            except MemoryError:
                if not self._make_room():
                    self._is_full = True
            else:
                self.waiting.popleft()

    def _begin(self, text):
        """Add an entry that shares the pages of the text with the longest common beginning."""
        common = [_common(other.tokens[: other.read], text.tokens) for other in self.texts]
        best = int(np.argmax(common)) if common else -1
        entries = list(range(len(self.texts)))
        if best >= 0 and common[best] > 0:
            self.caches.reorder([*entries, best])
            # The last token of a prompt is always read, since the next one is chosen after it.
            text.read = min(common[best], len(text.tokens) - 1)
            self.caches.truncate([*self.caches.lengths[:-1], text.read])
            self.shared += text.read
        else:
            self.caches.reorder([*entries, -1])
        self.texts.append(text)

    def _make_room(self):
        """Drop the oldest text that is done. Return whether there was one."""
        entry = next((entry for entry, text in enumerate(self.texts) if text.is_done), None)
        if entry is not None:
            self.caches.drop(entry)
            del self.texts[entry]
        return entry is not None

    def _preempt(self):
        """Let the youngest text wait in a file."""
        entry = max(e for e, text in enumerate(self.texts) if not text.is_done)
        text = self.texts[entry]
        if self._count() == 1:
            text.finish(MemoryError("the text does not fit into the server's memory for caches"))
            return
        if text.read == 0:
            self.caches.drop(entry)
        else:
            text.waits_in = pathlib.Path(self._folder.name) / f"{next(self._names)}"
            self.caches.preempt(entry, text.waits_in)
            self.preempted += 1
        del self.texts[entry]
        self.waiting.appendleft(text)
        self._is_full = True

    def _step(self):
        """Read the next tokens of all texts, and choose those that follow."""
        room, parts = CHUNK, []
        for text in self.texts:
            new = 0 if text.is_done else min(len(text.tokens) - text.read, max(room, 1))
            room -= new
            parts.append(text.tokens[text.read : text.read + new])
        counts = [len(part) for part in parts]
        if not any(counts):
            return
        starts = np.cumsum([0, *counts])
        try:
            x = self.model(np.concatenate(parts).astype(int), self.caches, starts)
        except MemoryError:
            self.caches.rollback()
            if not self._make_room():
                self._preempt()
            return
        self.steps += 1
        chosen = []
        for text, count in zip(self.texts, counts, strict=True):
            text.read += count
            chosen.append(count > 0 and text.read == len(text.tokens))
        logits = self.model.logits(x[starts[1:][chosen] - 1])
        for text, row in zip(itertools.compress(self.texts, chosen), logits, strict=True):
            self._continue(text, row)
        while sum(text.is_done for text in self.texts) > IDLE:
            self._make_room()

    def _continue(self, text, logits):
        token = regard.layers.sample(logits, **text.sampling, rng=text.rng)
        if token != text.end:
            text.tokens.append(token)
            text.queue.put(token)
        if token == text.end or len(text.tokens) - text.prompt == text.count:
            text.finish("stop" if token == text.end else "length")
            self._is_full = False


def _common(first, second):
    """Count the tokens that two texts begin with."""
    both = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
