"""Draw what a command prints on a terminal as SVG: `python -m tools.draw_terminal stepwell demo > docs/pictures/demo.svg`.

The command runs on a pseudo-terminal, so that it prints what a person sees, with its colours.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import xml.sax.saxutils

__all__ = ["draw", "run_on_a_terminal"]

_CLASSES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "35": "m", "36": "c"}
_CHARACTER, _LINE, _MARGIN = 7.23, 17, 16  # the width of a character in a 12 px monospace font, by every browser's default font

_STYLE = """<style>
rect { fill: #f6f8fa; stroke: #d0d7de }
text { fill: #1f2328; white-space: pre; font: 12px ui-monospace, Menlo, Consolas, monospace }
.b { font-weight: 700 } .d { fill: #656d76 } .r { fill: #b3261e } .g { fill: #1a7f37 }
.y { fill: #8a5a00 } .m { fill: #8250df } .c { fill: #0a6a87 }
@media (prefers-color-scheme: dark) {
rect { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 }
.d { fill: #9aa4af } .r { fill: #ff7b72 } .g { fill: #56d364 } .y { fill: #e3b341 } .m { fill: #d2a8ff } .c { fill: #56d4dd }
}
</style>"""


def run_on_a_terminal(command: list[str]) -> str:
    """Return what a command prints on a terminal of 100 columns, in a folder of its own."""
    ours, theirs = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        )
        os.close(theirs)
        printed = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux reports the end of a terminal as EIO
                break
            if not chunk:
                break
            printed += chunk
        if process.wait():
            raise SystemExit(f"{shlex.join(command)} exited with {process.returncode}")
    os.close(ours)
    # A line that is written again replaces what was there, as on a terminal.
    lines = printed.decode().replace("\r\n", "\n").rstrip("\n").split("\n")
    return "\n".join(line.rsplit("\r", 1)[-1] for line in lines)


def draw(title: str, printed: str) -> str:
    """Return printed text, with its colours, as an SVG."""
    lines = printed.split("\n")
    columns = max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in lines)
    width, height = round(columns * _CHARACTER) + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    rows = [
        f'<text x="{_MARGIN}" y="{_MARGIN + 12 + number * _LINE}">{_spans(line)}</text>'
        for number, line in enumerate(lines)
        if line
    ]
    name = xml.sax.saxutils.escape(title)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t">',
            f'<title id="t">{name}</title>',
            _STYLE,
            f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *rows,
            "</svg>",
        ]
    )


def _spans(line: str) -> str:
    drawn, style = "", ""
    for piece in re.split(r"(\x1b\[\d+m)", line):
        if code := re.fullmatch(r"\x1b\[(\d+)m", piece):
            style = _CLASSES.get(code[1], "")
        elif piece:
            text = xml.sax.saxutils.escape(piece)
            drawn += f'<tspan class="{style}">{text}</tspan>' if style else text
    return drawn


if __name__ == "__main__":
    print(draw(f"A terminal: {shlex.join(sys.argv[1:])}", run_on_a_terminal(sys.argv[1:])))
