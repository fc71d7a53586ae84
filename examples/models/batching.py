"""Continuous batching: texts that begin, grow and end at any time share each step of a model."""

import collections
import itertools
import pathlib
import queue
import tempfile
import threading

import numpy as np

import regard

CHUNK = 256  # most tokens in a step, so that growing texts do not wait long for prompts
KEPT = 16  # prompts and finished texts that are kept for new texts with the same beginning


class Text:
    """A prompt and the tokens that continue it, which arrive through a queue."""

    def __init__(self, prompt, count, ends=(), *, temperature=None, seed=None, **sampling):
        self.tokens, self.prompt, self.count, self.ends = list(prompt), len(prompt), count, ends
        self.rng = np.random.default_rng(seed)
        self.sampling = {"temperature": 1.0 if temperature is None else temperature, **sampling}
        regard.models.sample([0.0], **self.sampling)  # raises an error for numbers out of range
        self.read = 0  # tokens in the caches
        self.given = 0  # tokens that `__iter__` has yielded
        self.waits_in = None  # a file, if the text had to make room for others
        self.is_done = self.is_cancelled = False
        self.reason = None  # why it ended, or the error that ended it
        self.queue = queue.SimpleQueue()

    def cancel(self, reason=None):
        """End the text before the next step, unless it has ended. A given reason always counts."""
        self.reason = reason or self.reason or "cancelled"
        self.is_cancelled = True

    def __iter__(self):
        """Yield tokens as they arrive. `check` is called while waiting, and may raise an error."""
        while True:
            try:
                token = self.queue.get(timeout=1)
            except queue.Empty:
                token = ()
            self.check()
            if token is None:
                break
            if token != ():
                self.given += 1
                yield token
        if isinstance(self.reason, Exception):
            raise RuntimeError(f"{self.reason}") from self.reason

    def check(self):
        """Do nothing. The reader of a text may replace this method."""

    def finish(self, reason):
        """Write no more tokens."""
        if not self.is_done:
            self.is_done, self.reason = True, self.reason or reason
            self.queue.put(None)
        if self.waits_in is not None:
            self.waits_in.unlink(missing_ok=True)


class Batch:
    """Texts that a model continues together, step by step, in a separate thread.

    Entry ``i`` of the caches contains the tokens of ``texts[i]``. The index keeps the pages of
    prompts and finished texts for texts with the same beginning, until other texts need the memory.
    """

    def __init__(self, model, most=32, **options):
        if most < 1:
            raise ValueError(f"a batch must have room for at least 1 text, got {most}")
        self.model, self.most, self.options = model, most, {"batch": 0, **options}
        self._start_over()
        self.waiting = collections.deque()
        self.steps = self.shared = self.preempted = 0
        self._is_full = False  # until a text ends
        self._changed, self._stops = threading.Condition(), False
        self._folder = tempfile.TemporaryDirectory()
        self._names = itertools.count()
        self._thread = threading.Thread(target=self._run, name="batch")
        self._thread.start()

    def submit(self, text):
        """Add a text to the waiting ones."""
        with self._changed:
            if self._stops:
                raise RuntimeError("the server is stopping")
            self.waiting.append(text)
            self._changed.notify()
        return text

    def counts(self):
        """Return counts of the finished and the pending work."""
        done = {"steps": self.steps, "shared": self.shared, "preempted": self.preempted}
        return done | {"texts": len(self.texts), "waiting": len(self.waiting)}

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
                self._changed.wait_for(lambda: self._stops or self.waiting or self._count())
                stops = self._stops
            if stops:
                break
            try:
                self._end_cancelled()
                self._admit()
                self._step()
                self._retire()
            except Exception as error:  # a defect, or a full disk: the server continues
                self._end(error)
        self._end(RuntimeError("the server is stopping"))

    def _end(self, error):
        """End all texts, and start over with empty caches."""
        with self._changed:
            texts = [*self.texts, *self.waiting]
            self.waiting.clear()
        for text in texts:
            text.finish(error)
        self.caches.close()
        self._start_over()

    def _start_over(self):
        self.caches, self.texts = self.model.caches(**self.options), []
        self.index = regard.PrefixIndex(self.caches)

    def _end_cancelled(self):
        for text in [*self.texts, *self.waiting]:
            if text.is_cancelled and not text.is_done:
                text.finish("cancelled")
                self._is_full = False
        while self.waiting and self.waiting[0].is_done:
            self.waiting.popleft()

    def _count(self):
        return sum(not text.is_done for text in self.texts)

    def _admit(self):
        """Give entries to waiting texts, as many as a step can read.

        They may turn out not to fit. Once that has happened, texts begin one at a time.
        """
        self._is_full &= self._count() > 0
        while self.waiting and not self._is_full and self._count() < self.most:
            text = self.waiting[0]
            try:
                if text.waits_in is None:
                    self._begin(text)
                else:
                    self.caches.adopt(type(self.caches).load(text.waits_in))
                    text.waits_in.unlink()
                    text.waits_in = None
                    self.texts.append(text)
            except MemoryError:
                self._is_full = not self._make_room()
            else:
                self.waiting.popleft()
            if self.preempted or sum(self._unread()) >= CHUNK:
                break

    def _unread(self):
        """Count the tokens that each text has yet to read."""
        return [0 if text.is_done else len(text.tokens) - text.read for text in self.texts]

    def _begin(self, text):
        """Add an entry that shares the pages of the text with the longest common beginning."""
        found = self.index.find(text.tokens)
        text.read = int(found.lengths[0])
        self.shared += text.read
        self.caches.adopt(found)
        self.texts.append(text)

    def _retire(self):
        """Move the texts that are done to the index."""
        done = [entry for entry, text in enumerate(self.texts) if text.is_done]
        for entry in done:
            self._remember(entry)
        self.caches.drop(done)
        self.texts = [text for text in self.texts if not text.is_done]

    def _remember(self, entry):
        """Let texts with the same beginning find the tokens that a text has read."""
        text = self.texts[entry]
        if text.read > 0:
            self.index.add(text.tokens[: text.read], self.caches, entry)
        while len(self.index) > KEPT:
            self.index.evict()

    def _make_room(self):
        """Give up a remembered text. Return whether there was one."""
        if len(self.index) == 0:
            return False
        self.index.evict()
        return True

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
            self.caches.save(text.waits_in, entry)
            self.caches.drop(entry)
            self.preempted += 1
        del self.texts[entry]
        self.waiting.appendleft(text)
        self._is_full = True

    def _step(self):
        """Read the next tokens of all texts, and choose the tokens that follow."""
        wanted, room = self._unread(), CHUNK
        counts = [0] * len(wanted)
        for entry in np.argsort(wanted, kind="stable"):  # single tokens first, then prompts
            counts[entry] = min(wanted[entry], room)
            room -= counts[entry]
        parts = [
            text.tokens[text.read : text.read + count]
            for text, count in zip(self.texts, counts, strict=True)
        ]
        if not any(counts):
            return
        starts = np.cumsum([0, *counts])
        try:
            x = self.model(np.concatenate(parts).astype(int), self.caches, starts)
        except MemoryError:
            if not self._make_room():
                self._preempt()
            return
        self.steps += 1
        chosen = []
        for entry, (text, count) in enumerate(zip(self.texts, counts, strict=True)):
            text.read += count
            chosen.append(count > 0 and text.read == len(text.tokens))
            if text.read == text.prompt and count > 0:
                self._remember(entry)
        logits = self.model.logits(x[starts[1:][chosen] - 1])
        for text, row in zip(itertools.compress(self.texts, chosen), logits, strict=True):
            self._continue(text, row)

    def _continue(self, text, logits):
        token = regard.models.sample(logits, **text.sampling, rng=text.rng)
        is_end = token in text.ends
        if not is_end:
            text.tokens.append(token)
            text.queue.put(token)
        if is_end or len(text.tokens) - text.prompt == text.count:
            text.finish("stop" if is_end else "length")
            self._is_full = False
