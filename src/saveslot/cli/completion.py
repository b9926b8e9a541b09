"""`saveslot completion`: a script for the shell. It asks `saveslot __complete` for ids and names (candidates.py)."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from saveslot.cli.screen import write

# bash splits words at @ and :, which ids and refs contain. Here they are whole again: split at blanks, and at the = of
# an option. What precedes the last break in the word under the cursor is cut off the answers, since bash keeps it.
BASH = r"""
_saveslot_words() {
  local -a parts words=()
  local part break cur
  read -ra parts <<< "${COMP_LINE:0:COMP_POINT}"
  [[ "${COMP_LINE:0:COMP_POINT}" == *[[:space:]] ]] && parts+=("")
  for part in "${parts[@]}"; do
    if [[ "$part" == -*=* ]]; then
      words+=("${part%%=*}" "=" "${part#*=}")
    else
      words+=("$part")
    fi
  done
  local -a COMP_WORDS=("${words[@]}")
  local COMP_CWORD=$((${#words[@]} - 1))
  cur="${words[COMP_CWORD]}"
  _saveslot "$@"
  for break in "@" ":"; do
    [[ "$COMP_WORDBREAKS" == *"$break"* && "$cur" == *"$break"* ]] || continue
    COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*"$break"}"}"}")
    cur="${cur##*"$break"}"
  done
}
complete -F _saveslot_words saveslot
"""


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"],
        Parameter(name="SHELL", help="For bash, put source <(saveslot completion bash) in ~/.bashrc."),
    ],
    /,
) -> None:
    from saveslot.cli.app import commands

    script = commands(aliases=True).generate_completion(shell=shell)
    write((script + BASH if shell == "bash" else script).encode())
