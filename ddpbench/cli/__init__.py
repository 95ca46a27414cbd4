"""The command line, with a file per subcommand."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ddpbench.cli import (
    baseline,
    bisect,
    compare,
    doctor,
    exit_codes,
    export,
    flags,
    init,
    merge,
    noise,
    pack,
    plan,
    profile,
    report,
    submit,
    sweep,
    verify,
)
from ddpbench.cli import list as list_command
from ddpbench.cli import show as show_command
from ddpbench.cli.lines import note_words, say, show
from ddpbench.command_line import carrying_out
from ddpbench.errors import DdpbenchError, InUseError, RequestError, nearest
from ddpbench.inherited_signals import accept_signals
from ddpbench.installed import functions, listed, packages_with, with_features
from ddpbench.text_safety import on_one_line, shortened, within
from ddpbench.version import VERSION

_EPILOG = "exit codes:\n" + "".join(f"  {code:<3}  {text}\n" for code, text in exit_codes.MEANINGS.items())


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command line, without importing anything slow.

    If the first of `words` is the command of an installed package, it is added.

    Raises:
        RequestError: several packages register that command.
    """
    parser = _Parser(
        prog="ddpbench",
        description="Measure what happens to data-parallel training in PyTorch when you add ranks or "
        "change the bucket size, backend or strategy, and explain why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ddpbench {VERSION}")
    if not words:
        parser.set_defaults(run=lambda _: _print_help(parser))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=bool(words))
    core = (
        sweep,
        plan,
        submit,
        report,
        show_command,
        pack,
        merge,
        compare,
        baseline,
        bisect,
        export,
        verify,
        init,
        profile,
        noise,
        doctor,
        list_command,
    )
    parsers = {module.__name__.rpartition(".")[2]: module.add_parser for module in core}
    for add_parser in with_features("command", parsers).values():
        add_parser(commands)
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        registered = functions("command", words[0])
        if len(registered) > 1:
            packages = " and ".join(sorted(one.package for one in registered))
            raise RequestError(
                f"the packages {packages} each have a command {words[0]!r}: uninstall all but one"
            )
        for add_parser in registered:
            add_parser(commands)
            if words[0] in commands.choices:
                _keep_function(commands.choices[words[0]])
    if not words or words[0] in _HELP:
        parser.epilog = f"{_installed_commands(commands.choices)}{_EPILOG}"
    return parser


_HELP = ("-h", "--help")
_FUNCTION = "_function"
"""Name of the parsed arguments' attribute that holds the function of a package's command. The name is not `run`, so
that a package's command may have an argument named `run`.
"""


def _keep_function(parser: argparse.ArgumentParser) -> None:
    function = parser._defaults.pop("run", None)
    if function is not None:
        parser.set_defaults(**{_FUNCTION: function})
    for action in parser._actions:
        # argparse copies the parser's default to an argument of the same name.
        if function is not None and action.default is function:
            action.default = None
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _keep_function(each)


def _installed_commands(known: Iterable[str]) -> str:
    lines = [
        f"  {on_one_line(name)}  {on_one_line(words)}\n" for name, words in listed("command", known).items()
    ]
    return f"commands of installed packages:\n{''.join(sorted(lines))}\n" if lines else ""


def _print_help(parser: argparse.ArgumentParser) -> int:
    show(parser.format_help(), end="")
    return exit_codes.REQUEST


def main(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code (see `exit_codes`)."""
    _open_standard_streams()
    code = run(argv)
    _end_without_threads(code)
    gc.freeze()  # collecting garbage at the end would take Python up to half a second after a report
    sys.exit(code)


_PATIENCE_S = 1.0
"""Seconds for which threads or processes that other code started may keep this process from ending."""


def _end_without_threads(code: int) -> None:
    """End with this code even if threads or processes that the user's files started still run."""
    if not _left_running():
        return

    def end() -> None:
        time.sleep(_PATIENCE_S)
        with contextlib.suppress(OSError):
            for one in _left_running():
                _tell(
                    f"ddpbench: {_whose(one)} was still running at exit and was ended: start it as a daemon"
                )
                if not isinstance(one, threading.Thread):
                    one.terminate()
            sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()


def _left_running() -> list[Any]:
    processes = sys.modules.get("multiprocessing.process")
    threads = [one for one in threading.enumerate() if one is not threading.main_thread()]
    return [one for one in (*threads, *(processes.active_children() if processes else ())) if not one.daemon]


def _whose(one: Any) -> str:
    if not isinstance(one, threading.Thread):
        return f"the process {one.name}"
    from ddpbench.user_files import file_of_thread

    file = file_of_thread(one)
    return f"the thread {one.name}{f', which importing {on_one_line(file)} started,' if file else ''}"


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null; otherwise the next opened file would get their output."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def run(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        with carrying_out("ddpbench", words=sys.argv[1:] if argv is None else argv):
            return _ended(argv)
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        _give_up_output()
        return exit_codes.NOT_READ


def _ended(argv: list[str] | None) -> int:
    """Run a command and return its exit code; a BrokenPipeError is passed on to `run`."""
    accept_signals()
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup it is ignored: leave it so
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        words = sys.argv[1:] if argv is None else argv
        note_words(words)
        for word in words:
            _check_readable(word)
        try:
            arguments = make_parser(words).parse_args(argv)
            _check_proc()
            _check_address_space()
            _check_environment(os.environ)
            code: int = _function(arguments)(arguments)
        except SystemExit:  # --help has already printed
            _flush_output()
            raise
        _flush_output()
    except DdpbenchError as error:
        _tell(f"ddpbench: {within(str(error))}")
        return _code(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _explained(error)
    except RuntimeError as error:  # raised by Path.resolve before Python 3.13
        if not str(error).startswith("Symlink loop"):
            raise
        _tell(f"ddpbench: {on_one_line(str(error))}: its symbolic links lead in a circle")
        return exit_codes.REQUEST
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and not any(words in str(error) for words in _NO_MEMORY):
            raise
        _tell(f"ddpbench: memory ran out; {_MORE_MEMORY}")
        return exit_codes.NOT_OK
    return code


def _code(error: DdpbenchError) -> int:
    if isinstance(error, InUseError):
        return exit_codes.IN_USE
    return exit_codes.REQUEST if isinstance(error, RequestError) else exit_codes.NOT_OK


def _function(arguments: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    """Return the function that carries out the command.

    Raises:
        RequestError: the command is from an installed package and sets no function.
    """
    function: Callable[[argparse.Namespace], int] | None = getattr(arguments, _FUNCTION, None)
    function = function or getattr(arguments, "run", None)
    if not callable(function):
        raise RequestError(
            f"command {arguments.command!r} of {packages_with('command', arguments.command)} has no function to "
            "run: call parser.set_defaults(run=FUNCTION) in add_parser"
        )
    return function


def _explained(error: OSError) -> int:
    """Print the error; return 2 if it concerns a file that the user named, otherwise 1."""
    from ddpbench.records import explain_os_error, explain_unreadable

    _give_up_output()
    name = on_one_line(str(error.filename or ""))  # may come from someone else's folder
    if why := explain_unreadable(error):
        _tell(f"ddpbench: {name} cannot be read: {why}")
        return exit_codes.REQUEST
    if error.errno == errno.ENAMETOOLONG:  # only names given on the command line can be that long
        _tell(f"ddpbench: {shortened(error.filename)}: the name is too long for this file system")
        return exit_codes.REQUEST
    _tell(f"ddpbench: {f'{name}: ' if name else ''}{explain_os_error(error)}")
    return exit_codes.NOT_OK


def _flush_output() -> None:
    """Flush standard output now: at exit, a failure would only give the exit code 120.

    Raises:
        DdpbenchError: standard output cannot be written, for example on a full disk.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from ddpbench.records import explain_os_error

        _give_up_output()
        raise DdpbenchError(f"standard output cannot be written: {explain_os_error(error)}") from None


def _tell(sentence: str) -> None:
    with _guarded_stderr():
        say(sentence, sys.stderr)


@contextlib.contextmanager
def _guarded_stderr() -> Iterator[None]:
    """Ignore failed writes to standard error, because the exit code still reports the outcome."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        _give_up_output()


def _give_up_output() -> None:
    """Redirect unwritable streams to /dev/null. Otherwise Python retries at exit and ends with code 120."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


_PROC = Path("/proc/self/fd")


def _check_proc() -> None:
    """Check that /proc is mounted; ddpbench reaches folders and processes through it.

    Raises:
        RequestError: it is not mounted, as in a chroot.
    """
    if not _PROC.exists():
        raise RequestError("/proc is not mounted here; mount it with: mount -t proc proc /proc")


_LEAST_ADDRESS_SPACE = 512 << 20
"""Minimum address space in bytes. With less, NumPy's libraries abort or hang before Python raises an error."""
_MORE_MEMORY = "raise the limit with ulimit -v, or free some memory"
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "cannot create shared object")
"""Messages of the library loader when memory runs out."""


def _check_address_space() -> None:
    """Check the address-space limit.

    Raises:
        RequestError: the limit is too low to load libraries.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE:
        from ddpbench.units import format_bytes

        raise RequestError(
            f"memory is limited to {format_bytes(limit)} of address space. A command needs at least "
            f"{format_bytes(_LEAST_ADDRESS_SPACE)}, and ranks with torch need several GiB: raise the "
            "limit with ulimit -v"
        )


_COUNTED = ("COLUMNS", "LINES")
_MOST_DIGITS = 9


def _check_environment(env: Mapping[str, str]) -> None:
    """Check variables that would end NumPy, Matplotlib or Rich with a traceback.

    Raises:
        RequestError: a variable's value cannot be used; the message names the variable.
    """
    given = env.get("SOURCE_DATE_EPOCH")
    if given is not None:
        try:
            datetime.fromtimestamp(int(given), UTC)
        except (ValueError, OverflowError, OSError):
            raise RequestError(
                f"SOURCE_DATE_EPOCH={shortened(given)} in the environment is not a time in seconds since 1970: "
                "give a whole number, or unset it"
            ) from None
    for name in _COUNTED:
        given = env.get(name, "")
        if given.isdigit() and not (given.isascii() and len(given) <= _MOST_DIGITS):
            raise RequestError(
                f"{name}={shortened(given)} in the environment is not the size of a terminal: unset it"
            )


def _check_readable(word: str) -> None:
    """Check that an argument can be a file, setting or message.

    Raises:
        RequestError: the argument has a NUL or bytes that are not UTF-8, or the locale cannot decode it.
    """
    surrogates = any("\ud800" <= one <= "\udfff" for one in word)
    if surrogates and "\0" not in word and _is_utf8(word):
        raise RequestError(
            f"argument {shortened(word)} is UTF-8, but Python decodes arguments as {sys.getfilesystemencoding()} "
            "here: set PYTHONUTF8=1, or a locale such as LC_ALL=C.UTF-8"
        )
    if "\0" in word or surrogates:
        raise RequestError(f"argument {shortened(word)} has a NUL or bytes that are not UTF-8: remove them")


def _is_utf8(word: str) -> bool:
    """Return whether an argument's bytes are UTF-8, however Python decoded them."""
    try:
        os.fsencode(word).decode("utf-8")
    except UnicodeError:
        return False
    return True


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        for name in (None, "store"):
            self.register("action", name, flags.Given)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuse empty values and `--flag=--`, which argparse reads as an empty list."""
        if "" in arg_strings and action.nargs != argparse.PARSER:
            raise argparse.ArgumentError(action, "the value is empty: give one, or leave the option out")
        if arg_strings == ["--"] and action.nargs is None and action.option_strings:
            raise argparse.ArgumentError(action, "expected one value, but got --")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [*map(str, action.choices)]
            if action.dest == "command":
                choices += listed("command", choices)
            advice = nearest(str(value), choices)
            raise argparse.ArgumentError(action, f"invalid choice {shortened(value)}; {advice}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; errors about unknown ones name the subcommand."""
        words = [*(sys.argv[1:] if args is None else args)]
        if words and self._is_unknown_flag(words[0]):  # argparse would only say that a command is missing
            self.error(f"unrecognized arguments: {words[0]}")
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            if unknown[0] in words[: words.index(known.command)]:
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
            (commands,) = (one for one in self._actions if isinstance(one, argparse._SubParsersAction))
            parser = commands.choices[known.command]
            flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
            wrong = next((one.partition("=")[0] for one in unknown if one.startswith("--")), "")
            close = difflib.get_close_matches(wrong, flags, n=1, cutoff=0.7)
            hint = f"; did you mean {close[0]}?" if close else ""
            if wrong and not close and "--set" in flags:
                hint = "; set an experiment's settings with --set KEY=VALUE"
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known

    def _is_unknown_flag(self, word: str) -> bool:
        flag, known = word.partition("=")[0], self._option_string_actions
        is_flag = word.startswith("-") and bool(flag.strip("-"))
        return is_flag and flag[:2] not in known and not any(one.startswith(flag) for one in known)

    def error(self, message: str) -> NoReturn:
        """Print the error without the usage, whose length would hide the error."""
        self.exit(exit_codes.REQUEST, f"{self.prog}: error: {message}\nFor all options: {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            message = within(message) if file is not sys.stdout else message  # help is printed in full
            with contextlib.nullcontext() if file is sys.stdout else _guarded_stderr():
                show(message, end="", file=file or sys.stderr)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
