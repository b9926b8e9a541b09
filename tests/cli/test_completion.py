"""Completion in the shell: what TAB offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def offered(run, *words: str) -> list[str]:
    """What the command answers to a shell: a mark, then one candidate per line."""
    answer = run("__complete", *words)
    assert (answer.code, answer.err) == (0, "")
    mark, *lines = answer.out.strip("\n").split("\n")
    assert mark == "\x1fbegin"
    return [line.partition("\t")[0] for line in lines]


def test_ids_are_completed(run, samples):
    """By their beginning, wherever a command takes one, also with the store before the command."""
    assert offered(run, "show", "less") == ["lesson-10", "lesson-1"]
    assert len(offered(run, "log", "")) == 4
    assert offered(run, "rm", "nightly", "mail") == ["mail:cleo@example.org"]
    os.environ.pop("SAVESLOT_URL")
    assert offered(run, "--store", samples.url, "pause", "night") == ["nightly"]
    assert offered(run, "pause", "--store", samples.url, "night") == ["nightly"]


def test_checkpoint_names_are_completed(run, samples):
    """After an @, and as the value of --to and --at."""
    assert "lesson-1@answered" in offered(run, "show", "lesson-1@")
    assert "answered" in offered(run, "rollback", "lesson-1", "--to", "")
    assert "@answered" in offered(run, "diff", "lesson-1@2", "@")


def test_agent_types_and_namespaces_are_completed(run, samples):
    assert offered(run, "ls", "--agent", "") == ["grader", "orchestrator", "tutor"]
    assert run("create", "tutor", "--namespace", "school-7").code == 0
    assert offered(run, "ls", "--namespace", "") == ["default", "school-7"]
    assert "failed" in run("completion", "bash").out


@pytest.mark.parametrize(
    "url", ["sqlite:///{tmp}/missing.db", "postgresql://127.0.0.1:1/x", "nonsense", "valkey://127.0.0.1:1"]
)
def test_failures_are_silent(url, run, monkeypatch, tmp_path):
    """Whatever is wrong with the store, a prompt is not the place to say it; no file is created."""
    monkeypatch.setenv("SAVESLOT_URL", url.format(tmp=tmp_path))
    for words in (["show", "x"], ["show", "x@"], ["ls", "--agent", ""], ["ls", "--namespace", ""]):
        assert offered(run, *words) == []
    assert not (tmp_path / "missing.db").exists()


def typed(script: Path, line: str, breaks: str) -> list[str]:
    """What bash would insert for a line that ends at the cursor."""
    code = f"""
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&({breaks}'
source {script}
COMP_LINE={line!r} COMP_POINT={len(line)}
_saveslot_words
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, env=environ, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_after_other_names(run, samples, tmp_path):
    """`delete`, `get` and the others complete like the commands that they are names of, and are offered themselves."""
    script = tmp_path / "saveslot.bash"
    script.write_text(run("completion", "bash").out)
    for name in ("rm", "delete", "show", "get", "tail", "watch"):
        assert typed(script, f"saveslot {name} night", "@:") == ["nightly"]
    assert typed(script, "saveslot li", "@:") == ["list"]
    assert typed(script, "saveslot list --st", "@:") == ["--state", "--store"]


def test_bash_completes_whole_refs(run, samples, tmp_path):
    """Bash breaks words at @ and :, which ids contain; what it has already is not inserted again."""
    script = tmp_path / "saveslot.bash"
    script.write_text(run("completion", "bash").out)
    for breaks, name, ref in (
        ("@:", "cleo@example.org", "answered"),
        ("", "mail:cleo@example.org", "lesson-1@answered"),
    ):
        assert typed(script, "saveslot show mail:", breaks) == [name]
        assert typed(script, "saveslot show lesson-1@ans", breaks) == [ref]
    assert typed(script, "saveslot rollback lesson-1 --to ans", "@:") == ["answered"]
    assert typed(script, "saveslot ls --agent=gra", "@:") == ["grader"]
    assert "workers" in typed(script, "saveslot ", "@:")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_ask_the_command(shell, run):
    """Their scripts call back for ids and names, with errors turned away."""
    assert "__complete" in run("completion", shell).out
    assert "2>/dev/null" in run("completion", shell).out
