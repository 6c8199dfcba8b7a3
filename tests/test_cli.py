"""The command line: results, JSON, exit codes, and one clear line for every mistake."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fpa.cli import main
from fpa.errors import UsageError
from fpa.parts import check_part
from fpa.presets import TEMPLATES
from fpa.settings import Settings
from fpa.strategies.base import SEEDS, seed_of
from fpa.streams import check_streams

PRESET = ["--preset", "llama3-8b-tinymmlu", "--plan"]
FAKE = ["--engine", "fake", "--model", "m", "--prompt", "published"]


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``fpa arguments``."""
    monkeypatch.setattr(sys, "argv", ["fpa", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the fake engine: 3 questions, every token, S=24."""
    out = tmp_path_factory.mktemp("cli") / "run"
    command = ["collect", *FAKE, "--limit", "3", "--samples", "24", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "fpa", *command], check=True, capture_output=True)
    return out


def test_the_pipeline_in_json(collected: Path, capsys, monkeypatch, tmp_path: Path) -> None:
    code, said, _ = run(capsys, monkeypatch, "smooth", str(collected), "--json")
    made = json.loads(said)
    assert code == 0
    curves = pd.read_parquet(made["curves"])
    assert list(curves.columns) == ["question_id", "method", "t", "category", "p", "lo", "hi"]
    totals = curves.groupby(["question_id", "t"])["p"].sum()
    assert totals.between(1 - 1e-9, 1 + 1e-9).all()
    assert ((curves["lo"] <= curves["p"] + 1e-9) & (curves["p"] <= curves["hi"] + 1e-9)).mean() > 0.95

    code, said, _ = run(
        capsys, monkeypatch, "forks", str(collected), "--threshold", "0.1", "--survival", "--json"
    )
    found = json.loads(said)
    assert code == 0
    assert all(fork["tv"] > 0.1 for fork in found["found"])
    check_part(Path(found["survival"]))  # it carries its digest, as every file of a run
    surviving = pd.read_parquet(found["survival"])
    assert surviving["survival"].between(0, 1).all()
    assert (surviving.groupby("question_id")["survival"].diff().dropna() <= 1e-12).all()

    code, said, _ = run(
        capsys, monkeypatch, "score", str(collected), "--samples", "5", "--every", "2", "--json", "--workers", "1",
        "--out", str(tmp_path / "scores.parquet"),
    )  # fmt: skip
    assert code == 0
    assert {row["method"] for row in json.loads(said)} == {"raw", "full", "auto"}
    assert len(pd.read_parquet(tmp_path / "scores.parquet")) == 3

    figure = tmp_path / "q.svg"
    code, said, _ = run(capsys, monkeypatch, "plot", str(collected), "demo-01", "--out", str(figure))
    assert code == 0
    assert "<svg" in figure.read_text()


def test_tables_are_for_people(collected: Path, capsys, monkeypatch) -> None:
    for command in (["smooth"], ["forks"], ["score", "--samples", "5", "--workers", "1"]):
        code, said, _ = run(capsys, monkeypatch, command[0], str(collected), *command[1:])
        assert code == 0
        assert said.strip()


def test_the_plan_spends_nothing(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, _ = run(capsys, monkeypatch, "collect", *FAKE, "--limit", "2", "--plan", "--json")
    assert code == 0
    assert json.loads(said)["questions"] == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["collect", "--evry", "2"], 2, "--every"),
        (["collect", "--every", "x", "--out", "r"], 2, "--every"),
        (["collect", *FAKE], 2, "--out"),
        (["collect", *FAKE, "--every", "0", "--out", "r"], 2, "--every"),
        (["collect", *FAKE, "--temperature", "0", "--out", "r"], 2, "--temperature"),
        (["collect", *FAKE, "--temperature", "1e-9", "--out", "r"], 2, "--temperature"),
        (["collect", "--chat-template", "none.jinja", "--out", "r"], 2, "r1-plain"),
        (["collect", "--chat-template", "/dev/null", "--out", "r"], 2, "the chat template is empty"),
        (["collect", *PRESET, "--chat-template", "/dev/null"], 2, "the chat template is empty"),
        (["collect", *FAKE, "--stop", "", "--out", "r"], 2, "--stop is empty"),
        (["collect", *FAKE, "--questions", "", "--out", "r"], 2, "--questions"),
        (["collect", "--engine", "gpt", "--out", "r"], 2, "llamacpp"),
        (["collect", *FAKE, "--strategy", "tree", "--out", "r"], 2, "branches"),
        (["collect", *FAKE, "--prompt", "rude", "--out", "r"], 2, "published"),
        (["collect", *FAKE, "--questions", "none.jsonl", "--out", "r"], 2, "none.jsonl"),
        (["collect", *FAKE, "--budget", "5", "--out", "r"], 2, "--budget belongs to --strategy adaptive"),
        (["collect", *FAKE, "--strategy", "branches", "--target-error", "0.1", "--out", "r"], 2, "adaptive"),
        (["collect", *FAKE, "--top-k", "3", "--out", "r"], 2, "--top-k belongs to --strategy branches"),
        (["collect", *FAKE, "--strategy", "stratified", "--min-p", "0.1", "--out", "r"], 2, "branches"),
        (
            ["collect", *FAKE, "--strategy", "adaptive", "--budget", "9", "--samples", "5", "--out", "r"],
            2,
            "--samples",
        ),
        (["collect", *FAKE, "--workers", "2", "--out", "r"], 2, "--workers belongs to --ray"),
        (["collect", *FAKE, "--gpus", "1", "--out", "r"], 2, "--gpus belongs to --ray"),
        (["collect", *FAKE, "--threads", "2", "--out", "r"], 2, "engine fake has no option 'threads'"),
        (["collect", *FAKE, "--deterministic", "--out", "r"], 2, "engine fake has no option 'deterministic'"),
        (["collect", *FAKE, "--url", "http://x", "--out", "r"], 2, "engine fake has no option 'url'"),
        (
            ["collect", *FAKE, "--engine-option", "thought=abc", "--out", "r"],
            2,
            "thought must be a whole number",
        ),
        (["collect", "--engine", "openai", "--url", "http://[::1", "--out", "r"], 2, "--url takes base URLs"),
        (["collect", *FAKE, "--threads", "0", "--out", "r"], 2, "--threads"),
        (["collect", *FAKE, "--parallel", "-1", "--out", "r"], 2, "--parallel"),
        (["collect", *FAKE, "--samples", "999999999999", "--out", "r"], 2, "at most 2,147,483,647"),
        (["collect", "--limit", "1", "--samples", "999999999999", "--out", "r"], 2, "at most 5,355,320,"),
        (["collect", *FAKE, "--seed", "2147483648", "--out", "r"], 2, "at most 2,147,483,647"),
        (["collect", *PRESET, "--budget", "5"], 2, "--budget belongs to --strategy adaptive; with branches"),
        (["collect", *PRESET, "--samples", "99999999999999999"], 2, "--samples must be at most"),
        (["collect", *PRESET, "--strategy", "nope"], 2, "no strategy named 'nope'"),
        (["collect", *PRESET, "--engine", "nope"], 2, "no engine named 'nope'"),
        (["collect", *PRESET, "--prompt", "nope"], 2, "no prompt style 'nope'"),
        (["collect", *PRESET, "--questions", "missing.jsonl"], 2, "missing.jsonl"),
        (["collect", *PRESET, "--threads", "3"], 2, "engine vllm has no option 'threads'"),
        (["collect", *PRESET, "--engine-option", "gpu_memory=7"], 2, "gpu_memory must be"),
        (["collect", *PRESET, "--strategy-option", "mode=adapt"], 2, "strategy branches has no option"),
        (["collect", *PRESET, "--strategy", "adaptive"], 2, "--budget"),
        (["collect", *PRESET, "--strategy", "eager", "--engine", "openai"], 2, "token by token"),
        (["collect", *PRESET, "--strategy", "entropix", "--engine", "openai"], 2, "token by token"),
        (["collect", "--strategy", "eager", "--ray", "local", "--out", "r"], 2, "llamacpp over Ray cannot"),
        (
            [
                "collect",
                "--strategy",
                "eager",
                "--engine",
                "openai",
                "--url",
                "http://localhost:1",
                "--out",
                "r",
            ],
            2,
            "openai cannot",
        ),
        (["forks", "none", "--survival-threshold", "0.3"], 2, "--survival"),
        (["forks", "none", "--survival", "--survival-threshold", "1.5"], 2, "below 1.414"),
        (["forks", "none", "--threshold", "1"], 2, "below 1"),
        (["forks", "none", "--threshold", "nan"], 2, "below 1"),
        (["smooth", "none"], 2, "manifest.json"),
        (["forks", "none"], 2, "manifest.json"),
        (["score", "none"], 2, "manifest.json"),
        (["plot", "none", "q"], 2, "manifest.json"),
        (["import", "none", "--out", "x"], 2, "none"),
        (["bogus"], 2, "bogus"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], code: int, says: str, capsys, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    got, _, error = run(capsys, monkeypatch, *arguments)
    assert (got, error.count("\n")) == (code, 1)
    assert error.startswith("error: ")
    assert says in error
    assert "Traceback" not in error


def test_mistakes_about_a_run_get_one_line(collected: Path, capsys, monkeypatch, tmp_path: Path) -> None:
    for arguments, says in (
        (["plot", str(collected), "demo-99"], "demo-99"),
        (["plot", str(collected), "demo-01", "--out", "x.docx"], ".pdf"),
        (["forks", str(collected), "--threshold", "7"], "--threshold"),
        (["smooth", str(collected / "manifest.json")], "is not a run"),
        (["smooth", str(collected), "--method", "spline"], "full"),
        (["smooth", str(collected), "--samples", "500"], "has only 24"),
        (["smooth", str(collected), "--penalty", "-1"], "penalty"),
        (["collect", *FAKE, "--limit", "3", "--samples", "25", "--out", str(collected)], "samples"),
    ):
        code, _, error = run(capsys, monkeypatch, *arguments)
        assert (code, error.count("\n")) == (2, 1)
        assert says in error


@pytest.mark.parametrize(
    "command",
    [
        ["plot", "RUN", "demo-01", "--out", "new/q.pdf"],
        [
            "score",
            "RUN",
            "--samples",
            "5",
            "--method",
            "raw",
            "--workers",
            "1",
            "--out",
            "new/scores.parquet",
        ],
    ],
)
def test_a_read_only_file_system_is_one_line(
    command: list[str], collected: Path, capsys, monkeypatch, tmp_path: Path
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    code, _, error = run(capsys, monkeypatch, *[str(collected) if a == "RUN" else a for a in command])
    assert (code, error.count("\n")) == (1, 1)
    assert f"cannot write {command[-1]}: the file system is read-only: choose another folder" in error


def test_options_of_a_preset_still_count_as_left_out(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    # The preset's own strategy takes --top-k, and brings it; another strategy does without.
    for extra in ([], ["--top-k", "5"], ["--strategy", "grid"]):
        code, said, _ = run(capsys, monkeypatch, "collect", *PRESET, *extra, "--json")
        assert code == 0
        assert json.loads(said)["continuations"] > 0
    code, _, error = run(capsys, monkeypatch, "collect", *PRESET, "--strategy", "grid", "--top-k", "5")
    assert code == 2
    assert "--top-k" in error


def test_the_plan_of_a_preset_follows_the_options(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"question": "Which?", "choices": ["a", "b"]}
    Path("one.jsonl").write_text(json.dumps(row) + "\n")

    def planned(*extra: str) -> dict[str, float]:
        code, said, _ = run(capsys, monkeypatch, "collect", *PRESET, *extra, "--json")
        assert code == 0
        return json.loads(said)

    whole = planned()
    assert whole["questions"] == 100
    assert planned("--limit", "5000") == whole  # the set has no more
    assert planned("--limit", "7")["questions"] == 7
    assert planned("--questions", "one.jsonl")["questions"] == 1
    assert planned("--questions", "one.jsonl", "--limit", "9")["questions"] == 1
    assert planned("--strategy", "adaptive", "--budget", "1000")["generated_tokens"] < 30_000
    assert planned("--strategy", "eager")["positions"] == 100
    # EAGER has its published M beside a preset too.
    assert planned("--strategy", "eager")["continuations"] == 100 * 32
    assert planned("--strategy", "eager", "--samples", "8")["continuations"] == 100 * 8
    assert planned("--rollout-tokens", "10")["generated_tokens"] < 0.1 * whole["generated_tokens"]
    # Another model is probed as ever: what the release took says nothing of it.
    probed = planned("--model", "m", "--engine", "fake", "--questions", "one.jsonl", "--samples", "2")
    assert probed["probed"] == 1


@pytest.mark.parametrize("name", ["r1-open", "r1-plain"])
def test_the_thought_is_opened_for_the_model_or_left_to_it(name: str, capsys, monkeypatch, tmp_path) -> None:
    given = {}

    def load(engine: str, model: str, **options: object) -> None:
        given.update(options)
        raise UsageError("far enough")

    monkeypatch.setattr("fpa.engines.load_engine", load)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    Path(tmp_path / "one.jsonl").write_text('{"question": "Which?", "choices": ["a", "b"]}\n')
    arguments = [
        "--preset",
        "r1-distill-8b-tinymmlu",
        "--questions",
        str(tmp_path / "one.jsonl"),
        "--out",
        "r",
    ]
    run(capsys, monkeypatch, "collect", *arguments, "--chat-template", name)
    assert given["chat_template"] == TEMPLATES[name]
    assert ("<｜Assistant｜><think>" in TEMPLATES[name]) == (name == "r1-open")


def test_a_threshold_may_be_close_to_one(collected: Path, capsys, monkeypatch) -> None:
    code, said, _ = run(capsys, monkeypatch, "forks", str(collected), "--threshold", "0.995", "--json")
    assert code == 0
    assert json.loads(said)["found"] == []


@pytest.mark.parametrize(
    ("strategy", "groups"), [("grid", 1), ("stratified", 1), ("branches", Settings().top_k + 1)]
)
def test_the_most_samples_that_fit_have_seeds_below_the_limit(strategy: str, groups: int) -> None:
    with pytest.raises(UsageError, match="at most") as refused:
        check_streams(Settings(strategy=strategy, samples=10**12), 100, "llamacpp")
    most = int(re.search(r"at most ([\d,]+)", str(refused.value))[1].replace(",", ""))  # type: ignore[index]
    # 2^31 - 1: the run seed's offset is then as large as it gets.
    fits = Settings(
        strategy=strategy, samples=most, seed=next(s for s in range(10**6) if offset(s) > 0.99999)
    )
    check_streams(fits, 100, "llamacpp")
    last = seed_of(99, fits.base_tokens, groups - 1, groups, fits) + most - 1
    assert 0.99 * 2**32 < last < 2**32 - 1
    with pytest.raises(UsageError, match="at most"):
        check_streams(replace(fits, samples=most + 1), 100, "llamacpp")


def offset(seed: int) -> float:
    """Where a run's seed puts its streams, as a share of the room there is for that."""
    return seed_of(0, 0, 0, 1, Settings(seed=seed)) / SEEDS


def test_failed_questions_exit_with_one(capsys, monkeypatch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, _, error = run(
        capsys,
        monkeypatch,
        "collect",
        *FAKE,
        "--limit",
        "2",
        "--samples",
        "2",
        "--context",
        "10",
        "--out",
        str(out),
    )
    assert code == 1
    assert "demo-01" in error
    assert "run the same command again" in error


def test_ctrl_c_stops_within_seconds_and_says_how_to_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # The fake engine takes its delay from the model name here: a slow server.
    code = (
        "import sys, fpa.engines.fake as f; init = f.FakeEngine.__init__;"
        "f.FakeEngine.__init__ = lambda self, model, **o: init(self, model, delay=0.2, **o);"
        "from fpa.cli import main; sys.argv[0] = 'fpa'; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "collect", *FAKE, "--limit", "5", "--samples", "2", "--out", str(out)],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    while not list((out / "rollouts").glob("*.parquet")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "run the same command again to resume" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_during_a_plan_leaves_an_engine_that_waits_for_its_requests(sent: signal.Signals) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded engine is not installed (extra: local)")
    # As the embedded engine does: freeing it waits for what is in flight.
    code = (
        "import sys, threading, fpa.engines as e, fpa.engines.fake as f, fpa.engines.llamacpp as l\n"
        "class Waits(f.FakeEngine):\n"
        "    def __init__(self, model, **o): super().__init__('m')\n"
        "    def sample(self, requests): print('drawing', flush=True); threading.Event().wait()\n"
        "    def close(self): threading.Event().wait(60)\n"
        "l.LlamaCppEngine = Waits\n"
        "from fpa.cli import main; sys.argv[0] = 'fpa'; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "collect", "--limit", "2", "--plan"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "drawing\n"
    process.send_signal(sent)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == "stopped; nothing was stored\n"


def test_help_and_version(capsys, monkeypatch) -> None:
    assert run(capsys, monkeypatch, "--version")[:2] == (0, "fpa 0.1.0\n")
    code, said, _ = run(capsys, monkeypatch, "collect", "--help")
    assert code == 0
    assert "resumes" in said


def test_import_counts_questions_and_names_what_it_skips(
    shared: Path, capsys, monkeypatch, tmp_path: Path
) -> None:
    source = tmp_path / "stores"
    source.mkdir()
    record = shared / "data" / "forking-fast" / "s200" / "deepseek" / "row000.json.gz"
    (source / record.name).write_bytes(record.read_bytes())
    (source / "notes.txt").write_text("not a record")
    code, said, error = run(capsys, monkeypatch, "import", str(source), "--out", str(tmp_path / "runs"))
    assert code == 1
    assert said.strip().endswith(": 1 questions")
    assert "notes.txt" in error


@pytest.mark.parametrize("command", [["smooth"], ["forks"], ["score"], ["check"], ["pass"], ["explore"]])
def test_a_damaged_or_missing_part_is_named_with_what_to_do(
    command: list[str],
    collected: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = shutil.copytree(collected, tmp_path / "run")
    part = sorted((copy / "rollouts").iterdir())[0]
    whole = part.read_bytes()
    monkeypatch.chdir(tmp_path)
    damages = {
        "flipped": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "cut": whole[:100],
        "gone": None,
    }
    for damage, content in damages.items():
        part.unlink(missing_ok=True)
        if content is not None:
            part.write_bytes(content)
        code, _, said = run(capsys, monkeypatch, *command, str(copy))
        assert code == 1, damage
        assert said.count("\n") == 1
        assert "rollouts" in said
        assert "run the command that made" in said
