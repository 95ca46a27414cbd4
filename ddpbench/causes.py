"""Describe an exception in one line: what went wrong, and which line of the user's own code led to it.

Imports only the standard library, because ranks and their starters both use it.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import sysconfig
import traceback
from pathlib import Path

LONGEST = 600
"""Most characters of an exception's text that are quoted in full."""
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^[ \t]+File "([^"]+)", line (\d+)', re.MULTILINE)
_WORKER = re.compile(r"^Caught \w+ in (DataLoader worker process \d+|replica \d+ on device \S+)\.")
_NOISE = re.compile(
    r"CUDA kernel errors might|For debugging consider passing|Compile with .?TORCH_USE_CUDA_DSA|Device-side assertion|"
    r"Set TORCHDYNAMO_VERBOSE|Set TORCH_LOGS|You can suppress this exception|import torch\._dynamo$|"
    r"torch\._dynamo\.config\.|Exception raised from |frame #\d+|Please include the loss function|"
    r"Parameter indices which did not receive grad|from user code:$|Developer debug context|For more details "
)
"""Beginnings of lines in torch's messages that help to debug torch but do not tell the cause."""
_DEBUG = "TORCH_DISTRIBUTED_DEBUG"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`'\"(\d])|\n")
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), Path(__file__).parent)
)


def text_of(error: BaseException) -> str:
    """Return an exception's text; empty if its `__str__` raises."""
    try:
        return str(error).strip()
    except Exception:  # a class's __str__ may raise anything
        return ""


def exception_words(error: BaseException) -> str:
    """Return one line with an exception's type and text, its `__cause__`, its notes, and `environments_part`.

    If the text is longer than `LONGEST`, sentences in its middle are left out.
    """
    text = text_of(error)
    words = _of_callback(text) or _named(type(error).__name__, meaningful(text))
    cause = error.__cause__
    if cause is not None and not isinstance(cause, KeyboardInterrupt):
        reason = meaningful(text_of(cause))
        if reason and reason not in words:
            words += f" (from {_named(type(cause).__name__, reason)})"
    for note in getattr(error, "__notes__", ()):
        words += f"; {meaningful(str(note))}"
    return words + environments_part(error)


_UNPICKLED = re.compile(r"Can't (?:pickle|get) local object|Can't pickle <function ")


def environments_part(error: BaseException) -> str:
    """Return a clause `; ...` on what in the user's environment or code caused an exception; empty if unknown.

    For example, a warning filter, a text encoding, a call of `sys.exit`, or a limit on memory or processes.
    """
    if isinstance(error, Warning):
        return _filters_part()
    if isinstance(error, UnicodeError) and (part := _encoding_part(error)):
        return part
    if isinstance(error, SystemExit):
        return "; your code ends the process: remove that call, a sweep ends training itself"
    if _UNPICKLED.match(text_of(error)):
        return (
            "; loader workers receive the dataset by pickle, which needs its class and functions at "
            "the top level of a file: move them there, or set base.loader_workers = 0"
        )
    if isinstance(error, BlockingIOError):
        return limits_part("".join(traceback.format_exception(error)))
    return limits_part(f"{type(error).__name__}: {text_of(error)}")


def _filters_part() -> str:
    if filters := os.environ.get("PYTHONWARNINGS", ""):
        return f"; PYTHONWARNINGS={filters} in the environment raises warnings as errors: unset it"
    return (
        "; a warning filter in your code raises this warning as an error: see its calls of "
        "warnings.simplefilter and filterwarnings"
    )


def _encoding_part(error: UnicodeError) -> str:
    encoding = getattr(error, "encoding", "").lower()
    old = encoding in ("ascii", "latin-1", "iso8859-1", "charmap") or "cp125" in encoding
    if sys.flags.utf8_mode or not old:
        return ""
    given = os.environ.get("PYTHONUTF8", "")
    why = f"PYTHONUTF8={given} in the environment has" if given else "the locale has"
    advice = "set PYTHONUTF8=1, or open files with encoding='utf-8'"
    return f"; {why} Python read and write text as {encoding}: {advice}"


_WARNING_LINE = re.compile(r"(?:\w+\.)*\w*Warning(?::|$)")
_UNICODE_LINE = re.compile(r"Unicode(?:En|De)codeError: '(?:ascii|latin-1)'")


def environments_part_of(line: str, trace: str = "") -> str:
    """Like `environments_part`, for an exception in another process.

    `line` is the last line of that process's log, and `trace` is the traceback above it.
    """
    filters, utf8 = os.environ.get("PYTHONWARNINGS", ""), os.environ.get("PYTHONUTF8", "")
    if filters and _WARNING_LINE.match(line):
        return f"; PYTHONWARNINGS={filters} in the environment raises warnings as errors: unset it"
    if utf8 == "0" and _UNICODE_LINE.match(line):
        return f"; PYTHONUTF8={utf8} in the environment has Python read and write text as ascii: set PYTHONUTF8=1"
    return limits_part(trace or line)


_THREADS = (
    r"can't start new thread|pthread_create[^\n]{0,80} failed|Thread creation failed"
    # The whole text that std::thread throws; errors about locked files and sockets have more text.
    r"|(?:^|Error: |what\(\): +)Resource temporarily unavailable\s*$"
)
_OF_MEMORY = re.compile(
    r"\bMemoryError|(?i:can(?:'t|not) allocate memory|memory allocation still failed)|bad_alloc|failed to map segment|"
    # Torch ends with this text if it has started some of its threads and has no memory for another one's stack.
    rf"terminate called without an active exception|{_THREADS}",
    re.MULTILINE,
)
_OF_PROCESSES = re.compile(
    # A traceback whose last frame is a fork, and the messages of shells that cannot fork.
    rf"{_THREADS}|fork\w{{0,20}}\([^\n]*\n(?:(?![ \t]+File \")[ \t][^\n]*\n){{0,40}}BlockingIOError\b"
    r"|\bfork: [^\n]{0,80}Resource temporarily unavailable",
    re.MULTILINE,
)


def limits_part(words: str) -> str:
    """Return a clause `; ...` that names the resource limit behind an error message; empty if there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or not _OF_MEMORY.search(words):
        few = "; the limit of processes and threads is reached: raise it with ulimit -u"
        few += ", or the container's limit of processes"
        return few if _OF_PROCESSES.search(words) else ""
    return f"; memory is limited to {limit >> 20} MiB of address space: raise the limit with ulimit -v"


def signals_part(name: str) -> str:
    """Return a clause `; ...` on an environment variable that may explain a rank's end by this signal; or `""`."""
    if name == "SIGSEGV" and os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        return "; TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment may be why, DDP over gloo crashes so: unset it"
    return ""


def _named(kind: str, words: str) -> str:
    if not words:
        return kind
    return words if words.startswith(f"{kind}:") else f"{kind}: {words}"


def meaningful(text: str) -> str:
    """Return the part of an exception's text that says what is wrong, as one line.

    Of a traceback from another process, such as a loader worker, use the exception at its end.
    """
    if _TRACEBACK in text:
        return _of_traceback(text)
    text = _without_debug_advice(text)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line) and not set(line) <= set("-=~^* ")]
    joined = ""
    for line in lines:
        separator = (
            "; " if joined and (joined[-1].isalnum() or joined[-1] in ")]'\"`") and _begins(line) else " "
        )
        joined += f"{separator}{line}" if joined else line
    return _shortened(joined)


def _without_debug_advice(text: str) -> str:
    """Return a text without the sentences in which torch advises to set TORCH_DISTRIBUTED_DEBUG.

    Under DETAIL, DDP over gloo ends with a segfault. No pattern is used, because its time would grow with the square of
    a sentence's length.
    """
    kept = ""
    while _DEBUG in text:
        before, _, text = text.partition(_DEBUG)
        kept += before[: max(map(before.rfind, ".\n")) + 1].rstrip()
        end = re.search(r"[.\n]", text)
        text = "" if end is None else text[end.start() :].removeprefix(".")
    return kept + text


def _begins(line: str) -> bool:
    return line[0].isupper() or line[0].isdigit()


def _of_traceback(text: str) -> str:
    head, _, trace = text.partition(_TRACEBACK)
    last = trace.rpartition(_TRACEBACK)[2]
    frames = list(_FRAME.finditer(last))
    lines = last[frames[-1].end() :].splitlines()[1:] if frames else last.splitlines()
    while lines and (not lines[0].strip() or lines[0][0].isspace()):
        lines.pop(0)
    said = "\n".join(lines).strip()
    words = meaningful(said) if said else meaningful(head)
    places = [f"{shown(frame[1])}:{frame[2]}" for frame in frames if is_users(frame[1])][-1:]
    if worker := _WORKER.match(head.strip()):
        places.insert(0, worker[1])
    return f"{words} ({', '.join(places)})" if places else words


_CALLBACK = "Got the following error when running the callback: "
_CALLED_AT = re.compile(r"^[ \t]+(\S.*)\((\d+)\): ", re.MULTILINE)


def _of_callback(text: str) -> str:
    """Return the exception that a future's callback raised, with its place; empty for other texts.

    Each later callback makes torch raise it again, with the frames of all callbacks, innermost first.
    """
    if not text.startswith(_CALLBACK):
        return ""
    said, _, frames = text.rpartition(_CALLBACK)[2].partition("\n\nAt:\n")
    places = (f" ({shown(path)}:{line})" for path, line in _CALLED_AT.findall(frames) if is_users(path))
    return meaningful(said) + next(places, "")


def _shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    first, *others = [_cut(part, LONGEST // 2) for part in _SENTENCE_END.split(text) if part.strip()]
    room = LONGEST - len(first)
    kept: list[str] = []
    for part in reversed(others):
        room -= len(part) + 1
        if room < 0:
            break
        kept.insert(0, part)
    between = " " if len(kept) == len(others) else " ... "
    return first + between + " ".join(kept) if kept else first


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest].rpartition(' ')[0] or text[:longest]} ..."


def is_users(path: str) -> bool:
    """Return whether a file belongs to neither Python, an installed package nor this package."""
    if path.startswith("<") or "/site-packages/" in path or "/dist-packages/" in path:
        return False
    return not os.path.realpath(path).startswith(_LIBRARIES)


def shown(path: str) -> str:
    """Return a file's path, relative to the working directory if the file is below that."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        return path
    return path if relative.startswith(os.pardir) else relative


def users_line(error: BaseException) -> str:
    """Return the last line of user code in an exception's traceback, as ` (file:line)`; empty if there is none."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).is_file() and is_users(frame.filename):
            place = f" ({shown(frame.filename)}:{frame.lineno})"
    return place
