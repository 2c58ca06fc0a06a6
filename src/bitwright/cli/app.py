"""The command line: its commands, exit codes and error messages."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from bitwright._version import __version__
from bitwright.cli.common import CommonOptions
from bitwright.cli.groups import expand_groups, make_group, options_of
from bitwright.cli.short_help import Overview, with_short_help
from bitwright.cli.stopping import Stopping
from bitwright.errors import ArgumentError, BitwrightError, OutputError
from bitwright.support import find_memory_shortage, indented, printable

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130

_LOGGER = logging.getLogger(__name__)

# The parent of every complaint about arguments. Typer brings its own copy of click since 0.26 and
# shares the installed one before; this child is the same public name in both.
_UsageError: Any = typer.BadParameter.__bases__[0]

_COMMANDS: dict[str, Callable[..., None]] = {
    name: getattr(import_module(f"bitwright.cli.{name}"), f"{name}_command")
    for name in (
        "quantize tune publish check plan apply compare sensitivity report inspect verify retarget "
        "bench preprocess recipes demo"
    ).split()
}
"""The commands in the order of the help, each in a file of its name."""


def run(arguments: Sequence[str] | None, stopping: Stopping) -> int:
    """Run one command and return its exit code, with a line for whatever ended it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json, verbose = "--json" in words, not {"-v", "--verbose"}.isdisjoint(words)
    try:
        with stopping.recognized(), _one_line_warnings(), _quiet_loggers():
            command = typer.main.get_command(_make_app())
            code = command.main(
                args=_with_verb(words), prog_name="bitwright", standalone_mode=False
            )
            if code == INTERRUPTED:
                # Some versions of typer turn Ctrl-C into this number and say nothing.
                raise KeyboardInterrupt
            sys.stdout.flush()
        problem = getattr(sys.stdout, "problem", None)
        if problem is not None:
            raise OutputError(
                f"what the command says could not be written ({problem}), though all else is done; "
                "give its standard output another place."
            )
    except BitwrightError as error:
        return _fail(error, error.for_command, FAILED, as_json, verbose)
    except _UsageError as error:
        return _fail(error, _explain_usage(error), MISUSED, as_json, verbose=False)
    except (KeyboardInterrupt, typer.Abort) as error:
        stopping.end()
        kept = any(word.partition("=")[0] == "--work" for word in words)
        resumes = kept or words[:1] == ["publish"]
        what = stopping.word
        message = f"{what}; the same command goes on from here." if resumes else f"{what}."
        return _fail(error, message, stopping.code, as_json, verbose=False, kind=what.capitalize())
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets a line and a code
        shortage = find_memory_shortage(error)
        if shortage is not None:
            return _fail(shortage, str(shortage), FAILED, as_json, verbose)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            start = str(error.filename)[:40]
            message = f"the path {start!r}… is longer than paths may be; choose another."
            return _fail(error, message, FAILED, as_json, verbose, kind="ArgumentError")
        hint = "" if verbose else "; run again with --verbose and report the traceback"
        reason = f"{type(error).__name__}: {error}".rstrip(".: ")
        return _fail(
            error, f"this is a bug in bitwright ({reason}){hint}.", FAILED, as_json, verbose
        )
    return code if isinstance(code, int) else DONE


def _with_verb(words: list[str]) -> list[str]:
    """Return the words of a command: a model alone is looked at, and what can be done with it."""
    first = words[0] if words and words[0] not in _COMMANDS else ""
    if first and Path(first).is_dir():
        raise ArgumentError(
            f"{first!r} is a folder; 'bitwright quantize {first} --bits 4' (or 8) quantizes its "
            f"models, and 'bitwright publish {first} -o OUT' writes every variant."
        )
    is_model = first.endswith(".onnx")
    return ["inspect", *words, "--choices"] if is_model else words


def _make_app() -> typer.Typer:
    app = typer.Typer(
        name="bitwright",
        cls=Overview,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        # Frames leave a third of a terminal to the sentences, and cut long words short.
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(_top)
    pages = {"quantize": with_short_help("quantize.txt")}
    for name, command in _COMMANDS.items():
        app.command(name, cls=pages.get(name))(_with_common_options(expand_groups(command)))
    return app


def _with_common_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options that all of them have."""
    own = inspect.signature(command)

    @functools.wraps(command)
    def call(**values: Any) -> None:
        common = make_group(CommonOptions, values)
        quiet = bool(values.get("quiet") or values.get("as_json"))
        with common.in_force(verbose=bool(values.get("verbose")), quiet=quiet):
            try:
                command(**values)
            except BaseException as error:
                _LOGGER.debug("ended by %s", type(error).__name__, exc_info=True)
                raise

    options = [*own.parameters.values(), *options_of(CommonOptions)]
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call


def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Quantize ONNX models: smaller, faster, and as accurate as the number format allows."""
    if version:
        typer.echo(f"bitwright {__version__}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(MISUSED)


def _explain_usage(error: Any) -> str:
    message = str(error.format_message()).rstrip(".")
    path = error.ctx.command_path if error.ctx is not None else "bitwright"
    if message.endswith("?"):  # did you mean another one?
        return f"{message} See '{path} --help'."
    return f"{message}; see '{path} --help'."


def _fail(
    error: BaseException,
    message: str,
    code: int,
    as_json: bool,
    verbose: bool,
    kind: str | None = None,
) -> int:
    if verbose:
        print(indented("".join(traceback.format_exception(error))), file=sys.stderr)
    line = printable(" ".join(message.split()))
    if as_json:
        named = kind or ("UsageError" if code == MISUSED else type(error).__name__)
        print(json.dumps({"error": {"type": named, "message": line}}, indent=2))
    print(f"error: {line}", file=sys.stderr)
    return code


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show warnings as lines of ours; a Python file and line number help no user."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        line = printable(" ".join(str(message).split()))
        _LOGGER.warning("%s", line)
        print(f"warning: {line}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Keep log lines of other packages off the screen: Python prints those that nobody handles."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
