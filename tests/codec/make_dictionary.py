"""Makes the dictionary for small frames: `python tests/codec/make_dictionary.py`. A released one is never made again.

Its text is below: what agents' frameworks write around their words, and words that most English texts share. How often
which letter and length occurs is counted in this repository's own pages and sources, as messages.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import msgspec
from another_zstd import zstd

from saveslot.codec.format_1 import Splice
from saveslot.codec.frame import LEVEL

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src/saveslot/codec/small.zdict"
# zstd writes its tables, of about 150 bytes, in front of the text.
ROOM = 1024
# Those of long messages fit short ones as well, and the other way round they do not.
SAMPLE = range(700, 2000)

WORDS = r"""
Unfortunately, I encountered an error while trying to process your request. Please check your configuration and try
again. Traceback (most recent call last):\n  File \"/usr/lib/python3/site-packages/__init__.py\", line 1, in <module>\n
raise ValueError( import json\nfrom typing import Any\n\n\nclass def __init__(self, None) -> None:\n        self.
        return        if not        for item in items:\n            await async with open(path) as file:\n print(f\"
https://www.example.com/ http://localhost:8000/api/v1/ .html?q= .json .org/ application/json; charset=utf-8
The user wants to know whether there are several different reasons why something should change before the next step.
According to the search results, the following information was found in the document: However, because of this approach,
For example, we could also consider using another option. Based on what you said above, here is a summary of the
results:\n- **Note**: 1. First, you need to make sure that it is available.\n2. Then create a new file with the name of
the project.\n3. Finally, January February March April June July August September October November December
Monday Tuesday Wednesday Thursday Friday customer account payment order number address email phone price total amount
date time today tomorrow available question answer problem solution example function method value string list data file
code test system service server model agent through during between against under after before where which while when
what other than then them their these those there about would could should might must shall people because without
within little great small large long many much most more must have been had has was were will can may not only also very
just even still such some same each every both first last two three information ation ing the ness ment able ible ity ly
and that this with from they your have are for you but all one out who how our use
Let me check that for you. I'll help you with that. Thank you for your help! Can you please tell me more about how to do
this? I don't think it's possible to do that, but you can use the one that we have in the same way as it is on the other
side. Here is what I found: It looks like this is one of the most important things to know about it. Is there anything
else?
"""

SHAPES = r"""
{"jsonrpc":"2.0","method":"tools/call","params":{"name":"query","arguments":{"path":"./src/main.py","limit":10}},
"result":{"isError":false,{"$saveslot":["datetime","2026-01-01T00:00:00+00:00"]},{"$saveslot":["bytes","
"metadata":{"source":"web","title":"","url":"https://","score":0.5,"language":"en","tags":[],"version":1,
"status":"completed","error":null,"created_at":"2026-01-01T00:00:00.000Z","updated_at":"2026-",
"timestamp":1780000000.0,"duration_ms":100,"model":"","temperature":0.7,"max_tokens":4096,"stop_reason":"end_turn",
"finish_reason":"stop","usage":{"input_tokens":100,"output_tokens":100,"total_tokens":1000,"cached_tokens":0},
"cost":0.01},"state":{"step":1,"plan":["search","read","write","done"],"current":null,"history":[],
"todo":[{"task":"","done":true},{"task":"","done":false}],"context":{"user_id":"user","session_id":"","topic":""},
"count":0,"index":0,"total":1,"items":[],"results":[{"id":1,"name":"","type":"object","properties":{},"required":[]
"type":"function_call_output","call_id":"call_","output":"{\"success\":true,\"message\":\"ok\",\"result\":[],\"query\":\"
{"type":"human","data":{"content":"","additional_kwargs":{},"response_metadata":{},"example":false}},
{"type":"ai","name":null,{"role":"system","content":"You are a helpful assistant.
{"type":"tool_result","tool_use_id":"toolu_","content":[{"type":"text","text":"
{"type":"tool_use","id":"toolu_","name":"search","input":{"query":"
{"role":"tool","tool_call_id":"call_","name":"search","content":"
{"role":"assistant","content":null,"tool_calls":[{"id":"call_","type":"function",
"function":{"name":"get_","arguments":"{\"query\": \"
{"id":"msg_","type":"message","role":"user","content":[{"type":"text","text":"
{"role":"assistant","content":"
"""

# A patch by one message, and a keyframe of one.
ENDS = (
    b'\x91\x95\x00\xa8messages\xcd\x01\xc5\x01,{"role":"assistant","content":"I '
    b'\x81\xa8messages\xc5\x01[{"role":"user","content":"'
)


def text() -> bytes:
    """What is nearer to the end is cheaper to point at: what all frames share comes last."""
    words = " ".join(WORDS.strip().splitlines())
    return (words + "".join(SHAPES.splitlines())).encode() + ENDS


def samples() -> list[bytes]:
    """Messages of this repository's own text, as keyframes and as patches."""
    dice = random.Random(1)
    pages = [file.read_text() for file in sorted(ROOT.glob("[A-Z]*.md")) + sorted(ROOT.glob("docs/**/*.md"))]
    # The benchmark's text is measured by: it must not be known beforehand.
    sources = [file.read_text() for file in sorted(ROOT.glob("src/**/*.py")) if file.stem != "benchmark"]
    prose = [part for page in pages for part in page.split("\n\n")]
    prose += [part for source in sources for part in re.findall(r'"""(.*?)"""', source, re.DOTALL)]
    code = [part for source in sources for part in source.split("\n\n\n")]
    said = [part for part in prose if len(part) in SAMPLE]
    said += dice.sample([part for part in code if len(part) in SAMPLE], 80)
    dice.shuffle(said)
    items: list[bytes] = []
    for n, content in enumerate(said):
        new = message(dice, n, " ".join(content.split()) if n % 3 else content)
        patch = [Splice("messages", dice.randrange(20000), 1, b"," + new)]
        items.append(msgspec.msgpack.encode(patch if n % 2 else {"messages": b"[" + new + b"]"}))
    return items


def message(dice: random.Random, n: int, content: str) -> bytes:
    """One message, in the form of one framework or another."""
    mark = f"{dice.getrandbits(96):024x}"
    forms = (
        {"role": "user", "content": content},
        {"role": "assistant", "content": content},
        {"id": f"msg_{mark}", "role": "assistant", "content": [{"type": "text", "text": content}]},
        {"role": "tool", "tool_call_id": f"call_{mark}", "content": json.dumps({"n": n, "result": content})},
    )
    return json.dumps(dice.choice(forms), separators=(",", ":"), ensure_ascii=False).encode()


def main() -> None:
    plain = zstd.ZstdDict(text(), is_raw=True)
    result = zstd.finalize_dict(plain, samples(), len(plain) + ROOM, LEVEL)
    FILE.write_bytes(result.dict_content)


if __name__ == "__main__":
    main()
