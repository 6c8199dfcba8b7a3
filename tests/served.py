"""A small HTTP server that answers as vLLM's or llama.cpp's would, from the fake model; it can misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from fpa.engines.base import Request
from fpa.engines.fake import END, FakeEngine

PADDED = 1200  # a vocabulary of a size that a real model could have; ids above the fake model's never occur
Fault = Callable[["Handler", int, dict[str, Any]], bool]


class FakeServer:
    """``with FakeServer() as server: OpenAIEngine(url=server.url, tokenizer=server.model)``.

    Args:
        fault: called before each completion with the handler, the number of the request and its body; returns
            whether it has answered (or broken) the request itself.
        lacks: features to be without: ``ids``, ``prompt``, ``listed``, ``raw``, ``n``.
        llama: speak llama.cpp's way.
    """

    def __init__(
        self, fault: Fault | None = None, *, lacks: str = "", llama: bool = False, name: str = "fake"
    ) -> None:
        self.model = FakeEngine(name)
        self.fault = fault
        self.lacks = lacks.split()
        self.llama = llama
        self.asked: list[dict[str, Any]] = []
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()
        handler = type("BoundHandler", (Handler,), {"served": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def enter(self, body: dict[str, Any]) -> int:
        """Count a completion request in; its number."""
        with self._lock:
            self.asked.append(body)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return len(self.asked) - 1

    def leave(self) -> None:
        """Count it out."""
        with self._lock:
            self._at_once -= 1

    def logprobs(self, prefix: list[int]) -> np.ndarray:
        """(PADDED,) raw next-token log-probabilities."""
        p = np.zeros(PADDED)
        known = self.model._next(*self.model._split(prefix))
        p[: len(known)] = known
        with np.errstate(divide="ignore"):
            return np.log(p)

    def draws(
        self, prefix: list[int], body: dict[str, Any], n: int, most: int
    ) -> list[tuple[list[int], str]]:
        """Token ids and finish reason of each continuation."""
        if body["temperature"] == 0:
            path = self.model.greedy(prefix, most, 1.0)
            return [(list(path.token_ids), path.finish_reason)]
        request = Request("", tuple(prefix), n, body["seed"], body["temperature"], most, tuple(body["stop"]))
        [completion] = self.model.sample([request])
        return [(list(c.token_ids), c.finish_reason) for c in completion.continuations]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    served: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def send(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        """A whole JSON answer."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def cut(self, after: bytes = b"") -> None:
        """Promise more than is sent, then hang up."""
        if after:
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(after)
        self.close_connection = True
        self.connection.close()

    def do_GET(self) -> None:
        """What is served here."""
        if self.path == "/v1/models":
            card: dict[str, Any] = {"id": self.served.model.info.model, "max_model_len": 4096}
            if self.served.llama:
                card = {"id": f"/models/{card['id']}.gguf", "meta": {"n_vocab": PADDED}}
            self.send(200, {"data": [card]})
        elif self.path == "/props" and self.served.llama:
            self.send(200, {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 8})
        elif self.path == "/version" and not self.served.llama:
            self.send(200, {"version": "0.0"})
        else:
            self.send(404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        """Completions, and llama.cpp's text endpoints."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in ("/v1/completions", "/completion"):
            number = self.served.enter(body)
            try:
                if self.served.fault is None or not self.served.fault(self, number, body):
                    (self.llama_completion if self.served.llama else self.vllm_completion)(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client gave up
            finally:
                self.served.leave()
            return
        model = self.served.model
        if self.path == "/tokenize":
            text, special = body["content"], body.get("parse_special")
            if text == "</s>":
                ids = [END] if special else list(model.encode(text))
            elif special:  # a whole conversation: the fake model has a token for every word of a prompt
                ids = list(model.encode_chat([{"role": "user", "content": text}]))
            else:
                ids = list(model.encode(text)) if text else []
            self.send(200, {"tokens": ids})
        elif self.path == "/apply-template":
            self.send(200, {"prompt": " ".join(m["content"] for m in body["messages"])})
        elif self.path == "/detokenize":
            self.send(200, {"content": "".join(model.pieces([i for i in body["tokens"] if i > END]))})
        else:
            self.send(404, {"error": {"message": "not found"}})

    def steps(self, body: dict[str, Any], ids: list[int], listed: int) -> list[list[tuple[int, float]]]:
        """The likeliest tokens before each of ``ids``."""
        result = []
        for t in range(len(ids)):
            logprobs = self.served.logprobs([*body["prompt"], *ids[:t]])
            if "raw" in self.served.lacks and body["temperature"]:
                weights = np.exp(logprobs / body["temperature"])
                with np.errstate(divide="ignore"):
                    logprobs = np.log(weights / weights.sum())
            order = np.argsort(-logprobs, kind="stable")[: listed if listed >= 0 else None]
            result.append([(int(i), max(float(logprobs[i]), -9999.0)) for i in order])
        return result

    def vllm_completion(self, body: dict[str, Any]) -> None:
        """As vLLM."""
        lacks = self.served.lacks
        if "prompt" in lacks:
            self.send(400, {"error": {"message": "prompt must be a string"}})
            return
        listed = body.get("logprobs", 0)
        if "listed" in lacks and not 0 <= listed <= 20:
            self.send(400, {"error": {"message": f"Requested sample logprobs of {listed}, max allowed: 20"}})
            return
        choices = []
        n = 1 if "n" in lacks else body["n"]
        for index, (ids, reason) in enumerate(self.served.draws(body["prompt"], body, n, body["max_tokens"])):
            choice: dict[str, Any] = {"index": index, "text": "", "finish_reason": reason}
            if "ids" not in lacks:
                choice["token_ids"] = ids
            if listed:
                wanted = body.get("logprob_token_ids")
                tops = []
                for t, step in enumerate(self.steps(body, ids, -1 if wanted else listed)):
                    pairs = [(i, p) for i, p in step if not wanted or i in wanted or i == ids[t]]
                    tops.append({f"token_id:{i}": p for i, p in pairs})
                choice["logprobs"] = {"top_logprobs": tops}
            choices.append(choice)
        self.send(200, {"choices": choices[::-1]})

    def llama_completion(self, body: dict[str, Any]) -> None:
        """As llama.cpp: a bare object for one continuation; the steps leave the end-of-turn token out."""
        answers = []
        drawn = self.served.draws(body["prompt"], body, body["n_cmpl"], body["n_predict"])
        for index, (ids, reason) in enumerate(drawn):
            kind = {"length": "limit", "stop": "eos"}[reason]
            one: dict[str, Any] = {"index": index, "tokens": ids, "stop_type": kind}
            if body["n_probs"]:
                shown = ids[:-1] if ids[-1] == END and len(ids) > 1 else ids
                one["completion_probabilities"] = [
                    {"top_logprobs": [{"id": i, "logprob": p if p > -9999 else None} for i, p in step]}
                    for step in self.steps(body, shown, body["n_probs"])
                ]
            answers.append(one)
        self.send(200, answers if len(answers) > 1 else answers[0])
